// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpud/vgpud/scripts/e2e/cluster"
)

const (
	containerName = "main"
	podTimeout    = 30 * time.Second // from a pod's creation to its container's start or end, on a busy machine
)

// newPod is a pod of the test image with this many slices (none: no limits entry at all).
func newPod(name string, slices int, command ...string) *corev1.Pod {
	container := corev1.Container{Name: containerName, Image: testImage, ImagePullPolicy: corev1.PullNever,
		Command: command}
	if slices > 0 {
		container.Resources.Limits = corev1.ResourceList{resource: *apiresource.NewQuantity(int64(slices), "")}
	}
	no, grace := false, int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{container}, RestartPolicy: corev1.RestartPolicyAlways,
			TerminationGracePeriodSeconds: &grace, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		},
	}
}

// onePod is newPod for a command that is to end and not to be started again.
func onePod(name string, slices int, command ...string) *corev1.Pod {
	pod := newPod(name, slices, command...)
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	return pod
}

// besideOthers lets a test run at the same time as others, after all those that want the node for themselves.
func besideOthers(t *testing.T) {
	t.Helper()
	env.beside.Add(1)
	t.Cleanup(env.beside.Done)
	t.Parallel()
}

// create creates the pod, which is deleted when the test ends, and shown if the test has failed. The next test does not
// wait until it is gone; one that needs this calls awaitRemovals.
func create(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := env.cluster.CreatePod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			describe(t, pod.Name)
		}
		env.removals.Go(func() error { return deletePod(pod.Name) })
	})
}

// remove deletes the pod and returns when it is gone.
func remove(t *testing.T, name string) {
	t.Helper()
	if err := deletePod(name); err != nil {
		t.Error(err)
	}
}

func deletePod(name string) error {
	ctx, cancel := cleanupContext()
	defer cancel()
	return env.cluster.DeletePod(ctx, name)
}

// awaitRemovals returns when the pods of earlier tests are gone.
func awaitRemovals(t *testing.T) {
	t.Helper()
	if err := env.removals.Wait(); err != nil {
		t.Error(err)
	}
}

// describe writes what an engineer would ask for first.
func describe(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := cleanupContext()
	defer cancel()
	pod, err := env.cluster.Pod(ctx, name)
	if err != nil {
		t.Logf("pod %s: %v", name, err)
		return
	}
	t.Logf("pod %s: %s %s %s", name, pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
	for _, c := range pod.Status.ContainerStatuses {
		t.Logf("container %s: restarts %d, state %+v, last %+v", c.Name, c.RestartCount, c.State, c.LastTerminationState)
		log, err := env.cluster.Logs(ctx, name, c.Name, false)
		t.Logf("its log (%v):\n%s", err, log)
	}
	t.Logf("the agent's last words: %s", env.agent.lastWords())
}

// eventually polls until done says so, and fails the test with what done said last when the time is over.
func eventually(t *testing.T, timeout time.Duration, what string, done func() (ok bool, now string)) {
	t.Helper()
	for deadline := time.Now().Add(timeout); ; time.Sleep(50 * time.Millisecond) {
		ok, now := done()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s; now: %s", what, timeout, now)
		}
	}
}

// container is the state of a pod's (only) container.
func container(t *testing.T, pod string) (status corev1.ContainerStatus, phase corev1.PodPhase) {
	t.Helper()
	p, err := env.cluster.Pod(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Status.ContainerStatuses) > 0 {
		status = p.Status.ContainerStatuses[0]
	}
	return status, p.Status.Phase
}

// awaitRunning waits until the pod's status, which lags behind, says that its container runs.
func awaitRunning(t *testing.T, pod string) {
	t.Helper()
	eventually(t, podTimeout, "pod "+pod+" runs", func() (bool, string) {
		status, phase := container(t, pod)
		return phase == corev1.PodRunning && status.State.Running != nil, fmt.Sprintf("%s %+v", phase, status.State)
	})
}

// awaitLog waits until the pod's log has a line of the client with this key, and returns the line.
func awaitLog(t *testing.T, pod, key string) fields {
	t.Helper()
	var line fields
	eventually(t, podTimeout, "pod "+pod+" prints "+key, func() (bool, string) {
		log, err := env.cluster.Logs(t.Context(), pod, containerName, false)
		if err != nil {
			return false, err.Error()
		}
		var ok bool
		line, ok = find(log, key)
		return ok, log
	})
	return line
}

// awaitEnd waits until the pod's container has ended for good and returns its log and exit code.
func awaitEnd(t *testing.T, pod string) (log string, exitCode int) {
	t.Helper()
	eventually(t, podTimeout, "pod "+pod+" ends", func() (bool, string) {
		status, phase := container(t, pod)
		if phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return false, fmt.Sprintf("%s %+v", phase, status.State)
		}
		if status.State.Terminated == nil {
			t.Fatalf("pod %s has ended without a container: %s", pod, phase)
		}
		exitCode = int(status.State.Terminated.ExitCode)
		return true, ""
	})
	log, err := env.cluster.Logs(t.Context(), pod, containerName, false)
	if err != nil {
		t.Fatal(err)
	}
	return log, exitCode
}

// inPod runs a command in the pod's running container; it has to succeed.
func inPod(t *testing.T, pod string, command ...string) string {
	t.Helper()
	result := tryInPod(t, pod, command...)
	if result.ExitCode != 0 {
		t.Fatalf("%v in pod %s: exit code %d\n%s%s", command, pod, result.ExitCode, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

func tryInPod(t *testing.T, pod string, command ...string) cluster.Result {
	t.Helper()
	result, err := env.cluster.Exec(t.Context(), pod, containerName, command...)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// fields is one line of the client: key=value pairs.
type fields map[string]string

func parse(line string) fields {
	f := fields{}
	for _, word := range strings.Fields(line) {
		if key, value, ok := strings.Cut(word, "="); ok {
			f[key] = value
		}
	}
	return f
}

// find returns the last line of the client's output that begins with key=.
func find(output, key string) (fields, bool) {
	var found fields
	for _, line := range strings.Split(output, "\n") {
		if strings.HasPrefix(line, key+"=") {
			found = parse(line)
		}
	}
	return found, found != nil
}

// mustFind is find for output that has to have the line.
func mustFind(t *testing.T, output, key string) fields {
	t.Helper()
	f, ok := find(output, key)
	if !ok {
		t.Fatalf("no line %s= in the client's output:\n%s", key, output)
	}
	return f
}

// number reads a number of a client's line.
func (f fields) number(t *testing.T, key string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(f[key], 10, 64)
	if err != nil {
		t.Fatalf("client's line %v: %s: %v", f, key, err)
	}
	return n
}

// requireTool skips the test where the machine lacks a program. VGPU_TEST_REQUIRE lists the names, separated by
// commas, whose lack is a failure instead.
func requireTool(t *testing.T, name string) string {
	t.Helper()
	path := tool(name)
	if path == "" {
		skip(t, name, "the machine has no "+name)
	}
	return path
}

func skip(t *testing.T, need, reason string) {
	t.Helper()
	for _, required := range strings.Split(os.Getenv("VGPU_TEST_REQUIRE"), ",") {
		if required == need {
			t.Fatalf("required (VGPU_TEST_REQUIRE): %s", reason)
		}
	}
	t.Skip(reason)
}

// onNode runs a program of this machine in the node, on the bare simulated GPU, as an unsliced user would.
func onNode(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	out, err := env.cluster.Node.Output(t.Context(), []string{"LD_LIBRARY_PATH=" + simPath("")}, path, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// cleanupContext is for work after a test, when the test's own context has ended.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), podTimeout)
}
