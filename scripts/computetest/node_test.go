// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/plugin/kubelettest"
)

const (
	resourceName = "nvidia.com/gpu"
	slicesPerGPU = 10
)

// node is a machine with one simulated card, a kubelet and the agent of the build.
type node struct {
	t       *testing.T
	card    *card
	dir     string
	kubelet *kubelettest.Kubelet
	agent   *process
	flags   []string
	starts  int
}

// newNode starts the agent with these flags beside its usual ones, and waits until its slices can be had.
func newNode(t *testing.T, c *card, flags ...string) *node {
	t.Helper()
	require.Root(t)
	n := &node{t: t, card: c, dir: shortTemp(t), flags: flags}
	if err := os.Mkdir(n.path("metrics"), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if n.kubelet, err = kubelettest.Start(n.path("kubelet"), kubelettest.Options{PodResources: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.kubelet.Close(); err != nil {
			t.Error(err)
		}
		// The agent leaves its tmpfs for the containers that run.
		if err := unix.Unmount(n.path("pages"), unix.MNT_DETACH); err != nil {
			t.Errorf("unmount pages: %v", err)
		}
		if t.Failed() {
			t.Logf("log of the agent:\n%s", n.log())
		}
	})
	n.startAgent()
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

// startAgent starts the agent, for the first time or again, and waits until its slices can be had.
func (n *node) startAgent() {
	n.t.Helper()
	build := require.Build(n.t)
	arguments := []string{"run", "--kubelet-dir=" + n.path("kubelet"), "--state-dir=" + n.path("state"), "--pages-dir=" + n.path("pages"),
		"--textfile-dir=" + n.path("metrics"), "--library=" + filepath.Join(build, "libvgpu.so"), "--container-dir=" + containerDir,
		"--nvml-library=" + filepath.Join(n.card.sim, "libnvidia-ml.so.1"), "--resource-name=" + resourceName,
		"--slices-per-gpu=" + strconv.Itoa(slicesPerGPU), "--log-level=debug"}
	command := exec.Command(filepath.Join(build, "vgpud"), append(arguments, n.flags...)...)
	command.Env = append(cleanEnvironment(), n.card.environment()...)
	log, err := os.OpenFile(n.path("log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.agent = startInto(n.t, command, log)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.kubelet.WaitAllocatable(ctx, resourceName, slicesPerGPU); err != nil {
		n.t.Fatalf("the agent offers no slices: %v\n%s", err, n.log())
	}
}

// log is all that the agent has written.
func (n *node) log() string {
	text, err := os.ReadFile(n.path("log"))
	if err != nil {
		n.t.Error(err)
	}
	return string(text)
}

// metrics is the agent's metrics file as it is now.
func (n *node) metrics() string {
	text, err := os.ReadFile(filepath.Join(n.path("metrics"), "vgpud.prom"))
	if err != nil {
		n.t.Error(err)
	}
	return string(text)
}

// pod is a container that was started, with its program.
type pod struct {
	*process
	name string
	pid  int // of the program
	at   time.Time
	env  map[string]string // what the kubelet was told to set
	node *node
}

// end ends the program and gives the pod's slices back.
func (p *pod) end() {
	p.t.Helper()
	p.kill()
	if err := p.node.kubelet.RemovePod(p.name); err != nil {
		p.t.Error(err)
	}
}

// start starts a pod with this many slices that runs a program, and returns when that is at work.
func (n *node) start(name string, slices int, arguments ...string) *pod {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n.starts++
	uid := fmt.Sprintf("%s-%d", name, n.starts)
	a, err := n.kubelet.Allocate(ctx, kubelettest.Pod{UID: uid, Namespace: "test", Name: uid},
		kubelettest.Container{Name: "main"}, resourceName, slices)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := n.kubelet.StartContainer(ctx, uid, "main"); err != nil {
		n.t.Fatal(err)
	}
	p := start(n.t, newContainer(a).command(n.t, n.card.environment(), arguments...))
	return &pod{process: p, name: uid, pid: p.ready(), at: time.Now(), env: a.Response.GetEnvs(), node: n}
}

// percent watches the card for a while and answers what each pod had of it, and how long a thread of them or of the agent
// waited for a processor.
func (n *node) percent(d time.Duration, pods ...*pod) (shares []float64, waited float64) {
	n.t.Helper()
	agent := []int{n.agent.command.Process.Pid}
	first, before := n.card.mark(), waitedForProcessor(agent)
	time.Sleep(d)
	last, after := n.card.mark(), waitedForProcessor(agent)
	for _, p := range pods {
		shares = append(shares, last.percentOf(n.t, p.pid, first))
	}
	return shares, max(last.waitedSince(first), longestWait(before, after, last.at-first.at))
}

// bounds are percentages of the card that a pod may have.
type bounds struct {
	pod       *pod
	low, high float64
}

func (p *pod) between(low, high float64) bounds { return bounds{p, low, high} }

// mustHave watches the card for a while and fails the test unless each pod has what it is to have; see judge.
func (n *node) mustHave(when string, d time.Duration, want ...bounds) {
	n.t.Helper()
	var pods []*pod
	for _, b := range want {
		pods = append(pods, b.pod)
	}
	for try := 1; ; try++ {
		got, waited := n.percent(d, pods...)
		var less, more bool
		text := when + ":"
		for i, b := range want {
			less, more = less || got[i] < b.low, more || got[i] > b.high
			text += fmt.Sprintf(" %s has %.1f %% (want %g to %g)", b.pod.name, got[i], b.low, b.high)
		}
		n.t.Log(text)
		if judge(n.t, less, more, waited, try) {
			return
		}
	}
}

// series returns the lines of the metrics file about a pod that begin with this name.
func (n *node) series(name, pod string) (found []string) {
	for line := range strings.SplitSeq(n.metrics(), "\n") {
		if strings.HasPrefix(line, name) && strings.Contains(line, `pod="`+pod+`"`) {
			found = append(found, line)
		}
	}
	return found
}

// eventually polls until done says so.
func eventually(t *testing.T, timeout time.Duration, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(timeout); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, timeout)
		}
	}
}
