// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// resident is a pod that lives through a restart of something: it holds half a slice, and allocates and frees beside
// that; it ends with an error if it ever gets more than its slice.
type resident struct {
	name     string
	restarts int32
	held     uint64
}

func newResident(t *testing.T, name string) *resident {
	t.Helper()
	r := &resident{name: name, held: env.gpus.sliceBytes() / 2}
	create(t, newPod(name, 1, clientPath, "loop", strconv.FormatUint(r.held, 10)))
	awaitLog(t, name, "loop")
	return r
}

// mustRunOn fails the test unless the container has run without a break and its program still does its rounds.
func (r *resident) mustRunOn(t *testing.T) {
	t.Helper()
	status, _ := container(t, r.name)
	if status.State.Running == nil || status.RestartCount != r.restarts {
		t.Fatalf("container did not run on: restarts %d, want %d; state %+v", status.RestartCount, r.restarts, status.State)
	}
	before := awaitLog(t, r.name, "loop").number(t, "loop")
	eventually(t, podTimeout, "the program goes on", func() (bool, string) {
		now := awaitLog(t, r.name, "loop")
		return now.number(t, "loop") > before, now["loop"]
	})
}

// mustBeLimited fails the test unless a second process in the container gets the rest of the slice and no more.
func (r *resident) mustBeLimited(t *testing.T) {
	t.Helper()
	info := mustFind(t, inPod(t, r.name, clientPath, "info"), "cuda")
	if got, want := info.number(t, "total"), env.gpus.sliceBytes(); got != want {
		t.Errorf("container sees %d bytes, want its slice, %d", got, want)
	}
	// The loop holds its half now and then only, so a second process gets something between half and all.
	out := inPod(t, r.name, clientPath, "fill")
	if got := mustFind(t, out, "filled").number(t, "filled"); got < r.held || got > 2*r.held {
		t.Errorf("a second process gets %d bytes, want between %d and %d", got, r.held, 2*r.held)
	}
}

// awaitRestart waits until kubelet has started the container again after a crash.
func (r *resident) awaitRestart(t *testing.T) {
	t.Helper()
	r.restarts++
	eventually(t, podTimeout, "the container is started again", func() (bool, string) {
		status, phase := container(t, r.name)
		return status.RestartCount == r.restarts && status.State.Running != nil, string(phase)
	})
}

// registrations is how often the kubelet that runs now has had our resource registered.
func registrations(t *testing.T) int {
	t.Helper()
	page, err := env.cluster.KubeletMetrics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	prefix := `kubelet_device_plugin_registration_total{resource_name="` + resource + `"} `
	for _, line := range strings.Split(page, "\n") {
		if value, ok := strings.CutPrefix(line, prefix); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
	}
	return 0
}

// mustComeBack fails the test unless all slices can be had again within backTimeout: registered anew, exactly once,
// and shown on the node.
func mustComeBack(t *testing.T, registrationsBefore int) {
	t.Helper()
	started := time.Now()
	eventually(t, backTimeout, "the agent registers again", func() (bool, string) {
		n := registrations(t)
		return n > registrationsBefore, strconv.Itoa(n)
	})
	if err := env.agent.awaitSlices(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(started); took > backTimeout {
		t.Errorf("slices were back after %s, want %s", took, backTimeout)
	}
	if n := registrations(t); n != registrationsBefore+1 {
		t.Errorf("%d registrations, want 1", n-registrationsBefore)
	}
}

func TestContainerCrashIsRestartedWithItsLimit(t *testing.T) {
	r := newResident(t, "crash")
	other := newResident(t, "crash-neighbour")
	if err := env.cluster.CrashContainer(t.Context(), r.name, containerName); err != nil {
		t.Fatal(err)
	}
	r.awaitRestart(t)
	r.mustRunOn(t)
	r.mustBeLimited(t)
	other.mustRunOn(t)
	other.mustBeLimited(t)
}

func TestAgentStopsCleanlyAndContainersRunOn(t *testing.T) {
	restartAgent(t, "agent-stop", syscall.SIGTERM)
}

func TestAgentIsKilledAndContainersRunOn(t *testing.T) {
	restartAgent(t, "agent-kill", syscall.SIGKILL)
}

func restartAgent(t *testing.T, name string, signal syscall.Signal) {
	r := newResident(t, name)
	before := registrations(t)
	if err := env.agent.stop(signal); err != nil {
		t.Error(err)
	}
	t.Cleanup(func() { ensureAgent(t) })
	if code := env.agent.process.ExitCode(); signal == syscall.SIGTERM && code != 0 {
		t.Errorf("vgpud ended with %s, want exit code 0: %s", env.agent.process.State(), env.agent.lastWords())
	}
	r.mustRunOn(t)
	r.mustBeLimited(t)
	if err := env.agent.launch(nil); err != nil {
		t.Fatal(err)
	}
	mustComeBack(t, before)
	r.mustRunOn(t)
	r.mustBeLimited(t)
}

// A container that crashes while no agent runs is started again by the kubelet from its checkpoint: with its limit, or,
// as the agent is asked before each start, not before the agent is back. Never without a limit.
func TestContainerCrashWhileTheAgentIsAway(t *testing.T) {
	r := newResident(t, "crash-no-agent")
	before := registrations(t)
	if err := env.agent.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ensureAgent(t) })
	if err := env.cluster.CrashContainer(t.Context(), r.name, containerName); err != nil {
		t.Fatal(err)
	}
	eventually(t, podTimeout, "kubelet notices the crash", func() (bool, string) {
		status, _ := container(t, r.name)
		return status.LastTerminationState.Terminated != nil || status.State.Running == nil, "running"
	})
	if err := env.agent.launch(nil); err != nil {
		t.Fatal(err)
	}
	mustComeBack(t, before)
	eventually(t, podTimeout, "the container runs again", func() (bool, string) {
		status, phase := container(t, r.name)
		r.restarts = status.RestartCount
		return status.RestartCount > 0 && status.State.Running != nil, string(phase)
	})
	r.mustRunOn(t)
	r.mustBeLimited(t)
}

func TestKubeletRestartsAndContainersRunOn(t *testing.T) {
	r := newResident(t, "kubelet-restart")
	if err := env.cluster.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustComeBack(t, 0) // a new kubelet counts from 0
	r.mustRunOn(t)
	r.mustBeLimited(t)
}

// Five restarts in a row: one registration for each kubelet, no more, and the slices are there after the last.
func TestKubeletRestartsInARow(t *testing.T) {
	r := newResident(t, "kubelet-restarts")
	for range 4 {
		if err := env.cluster.RestartKubelet(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := env.cluster.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustComeBack(t, 0)
	r.mustRunOn(t)
	r.mustBeLimited(t)
}

// ensureAgent leaves the agent running with its usual flags for the tests that follow.
func ensureAgent(t *testing.T) {
	t.Helper()
	if env.agent.process.Running() {
		return
	}
	ctx, cancel := cleanupContext()
	defer cancel()
	if err := env.agent.start(ctx, nil); err != nil {
		t.Error(err)
	}
}
