// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vgpud/vgpud/scripts/e2e/node"
)

// Namespace is where all pods of the tests live.
const Namespace = "default"

// CreatePod creates the pod; the scheduler places it.
func (c *Cluster) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	_, err := c.API.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create pod %s: %w", pod.Name, err)
	}
	return nil
}

// Pod reads the pod's present state.
func (c *Cluster) Pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return c.API.CoreV1().Pods(Namespace).Get(ctx, name, metav1.GetOptions{})
}

// DeletePod deletes the pod and returns when it is gone; one that is not there is no error.
func (c *Cluster) DeletePod(ctx context.Context, name string) error {
	err := c.API.CoreV1().Pods(Namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return c.await(ctx, "end of pod "+name, func() bool {
		_, err := c.Pod(ctx, name)
		return apierrors.IsNotFound(err)
	})
}

// Logs is what the pod's container has written so far; previous asks for its life before the last restart.
func (c *Cluster) Logs(ctx context.Context, pod, container string, previous bool) (string, error) {
	options := &corev1.PodLogOptions{Container: container, Previous: previous}
	out, err := c.API.CoreV1().Pods(Namespace).GetLogs(pod, options).DoRaw(ctx)
	return string(out), err
}

// Result is how a command in a container ended.
type Result struct {
	Stdout, Stderr string
	ExitCode       int
}

// Exec runs a command in a running container. A command that ends with another code than 0 is no error.
func (c *Cluster) Exec(ctx context.Context, pod, container string, command ...string) (Result, error) {
	request := c.API.CoreV1().RESTClient().Post().Resource("pods").Namespace(Namespace).Name(pod).
		SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Container: container, Command: command, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(c.rest, http.MethodGet, request.URL().String())
	if err != nil {
		return Result{}, fmt.Errorf("exec in pod %s: %w", pod, err)
	}
	var stdout, stderr bytes.Buffer
	err = c.Node.InNetwork(func() error { // this client has no dialler of its own, but dials before it forks off
		return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	})
	result := Result{Stdout: stdout.String(), Stderr: stderr.String()}
	if exit, isExit := errors.AsType[utilexec.CodeExitError](err); isExit {
		result.ExitCode, err = exit.Code, nil
	}
	if err != nil {
		return result, fmt.Errorf("exec %v in pod %s: %w: %s", command, pod, err, result.Stderr)
	}
	return result, nil
}

// MainPID is the container's first process, as the test process sees it.
func (c *Cluster) MainPID(ctx context.Context, pod, container string) (int, error) {
	p, err := c.Pod(ctx, pod)
	if err != nil {
		return 0, err
	}
	for _, status := range p.Status.ContainerStatuses {
		if status.Name != container || status.State.Running == nil {
			continue
		}
		_, id, _ := strings.Cut(status.ContainerID, "://")
		pattern := filepath.Join(cgroupMount, "pids", c.cgroup, "kubepods", "*", "pod"+string(p.UID), id)
		dirs, err := filepath.Glob(pattern)
		if err != nil || len(dirs) != 1 {
			return 0, fmt.Errorf("find cgroup of container %s: %d match %s", container, len(dirs), pattern)
		}
		return firstProcess(dirs[0])
	}
	return 0, fmt.Errorf("find main process: container %s of pod %s does not run", container, pod)
}

// firstProcess is the cgroup's process with number 1 in its own pid namespace.
func firstProcess(cgroup string) (int, error) {
	procs, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return 0, err
	}
	for _, pid := range strings.Fields(string(procs)) {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue // it has just ended
		}
		for _, line := range strings.Split(string(status), "\n") {
			if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok && strings.HasSuffix(numbers, "\t1") {
				return strconv.Atoi(pid)
			}
		}
	}
	return 0, fmt.Errorf("find first process: none in %s", cgroup)
}

// CrashContainer kills the container's main process as a crash would.
func (c *Cluster) CrashContainer(ctx context.Context, pod, container string) error {
	pid, err := c.MainPID(ctx, pod, container)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// Allocatable is what the node's status says of a resource: what the scheduler may give to pods in all.
func (c *Cluster) Allocatable(ctx context.Context, resource string) (int64, error) {
	n, err := c.API.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	quantity := n.Status.Allocatable[corev1.ResourceName(resource)]
	return quantity.Value(), nil
}

// Get fetches a page over HTTP from inside the node.
func (c *Cluster) Get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: %s", url, response.Status)
	}
	return string(body), err
}

// KubeletMetrics is kubelet's own metrics page.
func (c *Cluster) KubeletMetrics(ctx context.Context) (string, error) {
	path := "/api/v1/nodes/" + node.Name + "/proxy/metrics"
	page, err := c.API.Discovery().RESTClient().Get().AbsPath(path).DoRaw(ctx)
	return string(page), err
}

// AllocatableDevices is how many healthy devices of a resource kubelet itself knows at this moment, given or not.
func (c *Cluster) AllocatableDevices(ctx context.Context, resource string) (int, error) {
	socket := "unix://" + c.Node.Path("/var/lib/kubelet/pod-resources/kubelet.sock")
	connection, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	response, err := podresources.NewPodResourcesListerClient(connection).GetAllocatableResources(ctx,
		&podresources.AllocatableResourcesRequest{})
	if err != nil {
		return 0, fmt.Errorf("ask kubelet for its devices: %w", err)
	}
	count := 0
	for _, device := range response.GetDevices() {
		if device.GetResourceName() == resource {
			count += len(device.GetDeviceIds())
		}
	}
	return count, nil
}
