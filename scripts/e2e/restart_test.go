// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
)

// resident is a pod that lives through a restart of something: it holds half a slice, and allocates and frees a little
// beside that; it ends with an error if it ever gets more than its slice.
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
	awaitRunning(t, name)
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
	const loopPiece = 1 << 20 // what the loop has beside what it holds, now and then
	out := inPod(t, r.name, clientPath, "fill")
	if got := mustFind(t, out, "filled").number(t, "filled"); got < r.held-loopPiece || got > r.held {
		t.Errorf("a second process gets %d bytes, the slice has %d left", got, r.held)
	}
}

// awaitRestart waits until kubelet has started the container again after a crash.
func (r *resident) awaitRestart(t *testing.T) {
	t.Helper()
	r.restarts++
	eventually(t, podTimeout, "the container is started again", func() (bool, string) {
		status, _ := container(t, r.name)
		return status.RestartCount == r.restarts && status.State.Running != nil, fmt.Sprintf("%+v", status)
	})
}

// mustCountRegistrations reads how often the kubelet that runs now has had our resource registered.
func mustCountRegistrations(t *testing.T) int {
	t.Helper()
	n, err := registrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// mustComeBack fails the test unless within backTimeout the agent has registered, exactly once, and all slices can be
// had again.
func mustComeBack(t *testing.T, registrationsBefore int) {
	t.Helper()
	if err := env.agent.awaitBack(t.Context(), registrationsBefore); err != nil {
		t.Fatal(err)
	}
	if n := mustCountRegistrations(t); n != registrationsBefore+1 {
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
	before := mustCountRegistrations(t)
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
	before := mustCountRegistrations(t)
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
