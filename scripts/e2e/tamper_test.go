// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const (
	allocDir  = "/usr/local/vgpud/alloc/$VGPUD_ALLOCATION/"
	usagePage = allocDir + "usage"
)

// A container that does to its usage page what it can: the agent lives on and reports it, and no limit is raised. Where
// the page no longer knows what the container holds, it gets nothing more.
func TestTamperingWithTheUsagePageRaisesNoLimit(t *testing.T) {
	for _, attempt := range []struct {
		name, script string
		frozen       float64
	}{
		{"random bytes", "dd if=/dev/urandom of=" + usagePage + " bs=4096 count=64 conv=notrunc", 1},
		{"zeros", "dd if=/dev/zero of=" + usagePage + " bs=4096 count=64 conv=notrunc", 1},
		{"truncate", "truncate -s 0 " + usagePage, 1},
		{"shorten", "truncate -s 4096 " + usagePage, 1},
		{"grow sparse", "truncate -s 1G " + usagePage, 0},
		{"fill the node", "! dd if=/dev/zero of=" + usagePage + " bs=1M count=2048 oflag=append conv=notrunc 2>/tmp/dd" +
			" && grep 'No space left' /tmp/dd", 0},
	} {
		t.Run(attempt.name, func(t *testing.T) {
			name := "tamper-" + strings.ReplaceAll(attempt.name, " ", "-")
			agentPID, reported := newVictim(t, name), tamperReports(t)
			inPod(t, name, "sh", "-c", attempt.script)
			mustNotGetMore(t, name) // at once
			eventually(t, metricsTimeout, "the agent reports it", func() (bool, string) {
				now := tamperReports(t)
				return now > reported, fmt.Sprint(now)
			})
			awaitTick(t)
			verdict := ofPod(name)
			verdict["verdict"] = "frozen"
			awaitMetric(t, "vgpud_allocation_verdict", verdict, attempt.frozen)
			mustNotGetMore(t, name) // and when the agent has seen to it
			mustHaveSurvived(t, name, agentPID)
		})
	}
}

// What a container cannot change at all: it is told so, and the agent has nothing to report.
func TestContainerCannotChangeWhatItWasGiven(t *testing.T) {
	const name = "tamper-in-vain"
	agentPID, reported := newVictim(t, name), tamperReports(t)
	for _, attempt := range []struct{ name, script, complaint string }{
		{"unlink usage page", "rm -f " + usagePage, "busy"},
		{"unlink limits page", "rm -f " + allocDir + "limits", "busy"},
		{"write limits page", "dd if=/dev/urandom of=" + allocDir + "limits bs=4096 count=1 conv=notrunc", "Read-only"},
		{"write preload file", "dd if=/dev/null of=/etc/ld.so.preload", "Read-only"},
		{"unlink preload file", "rm -f /etc/ld.so.preload", "busy"},
		{"write library", "dd if=/dev/urandom of=/usr/local/vgpud/libvgpu.so count=1 conv=notrunc", "Read-only"},
	} {
		t.Run(attempt.name, func(t *testing.T) {
			result := tryInPod(t, name, "sh", "-c", attempt.script)
			if result.ExitCode == 0 || !strings.Contains(result.Stderr, attempt.complaint) {
				t.Errorf("exit code %d, want a complaint with %q: %s", result.ExitCode, attempt.complaint, result.Stderr)
			}
			mustNotGetMore(t, name)
		})
	}
	awaitTick(t)
	mustHaveSurvived(t, name, agentPID)
	if now := tamperReports(t); now != reported {
		t.Errorf("the agent reports %v pages changed", now-reported)
	}
}

// newVictim starts a pod that holds half of its slice, and returns the agent's process number.
func newVictim(t *testing.T, name string) (agentPID int) {
	t.Helper()
	half := env.gpus.sliceBytes() / 2
	create(t, newPod(name, 1, clientPath, "hold", fmt.Sprint(half)))
	awaitLog(t, name, "held")
	awaitMetric(t, "vgpud_slice_memory_used_bytes", ofPod(name), float64(half))
	return env.agent.process.PID()
}

// mustHaveSurvived fails the test unless the agent runs on and gives the pod its slice or less.
func mustHaveSurvived(t *testing.T, pod string, agentPID int) {
	t.Helper()
	if !env.agent.process.Running() || env.agent.process.PID() != agentPID {
		t.Fatalf("vgpud did not survive: %s", env.agent.lastWords())
	}
	limit := readSeries(t, readMetricsFile(t), "vgpud_slice_memory_limit_bytes", ofPod(pod))
	if len(limit) != 1 || limit[0].value > float64(env.gpus.sliceBytes()) {
		t.Errorf("the pod's limit is not its slice: %v", limit)
	}
}

// mustNotGetMore fails the test if a second process in the container brings it above its slice, of which the first one
// holds half; as the GPU counts, not as the container's own book does.
func mustNotGetMore(t *testing.T, pod string) {
	t.Helper()
	rest := env.gpus.sliceBytes() / 2
	out := tryInPod(t, pod, clientPath, "fill").Stdout
	if filled, ok := find(out, "filled"); ok && filled.number(t, "filled") > rest {
		t.Errorf("a second process got %s bytes, the slice had %d left", filled["filled"], rest)
	}
}

// tamperReports is how often the agent says that a container has changed its page.
func tamperReports(t *testing.T) float64 {
	t.Helper()
	found := readSeries(t, readMetricsFile(t), "vgpud_tampered_pages_total", nil)
	if len(found) != 1 {
		t.Fatalf("metric of tampered pages: %v", found)
	}
	return found[0].value
}

// awaitTick waits until the agent has looked at everything once more.
func awaitTick(t *testing.T) {
	t.Helper()
	last := func() float64 {
		found := readSeries(t, readMetricsFile(t), "vgpud_last_tick_timestamp_seconds", nil)
		if len(found) != 1 {
			t.Fatalf("metric of the last tick: %v", found)
		}
		return found[0].value
	}
	started := float64(time.Now().UnixNano()) / 1e9
	eventually(t, metricsTimeout, "a whole tick", func() (bool, string) {
		now := last()
		return now > started, fmt.Sprint(now)
	})
}
