// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A container that does to its pages what it can: the agent lives on and reports it, and no limit is raised.
func TestTamperingWithPagesRaisesNoLimit(t *testing.T) {
	const (
		usage  = "/usr/local/vgpud/alloc/$VGPUD_ALLOCATION/usage"
		limits = "/usr/local/vgpud/alloc/$VGPUD_ALLOCATION/limits"
	)
	for _, attempt := range []struct {
		name     string
		script   string
		tampers  bool   // the agent has to notice
		complain string // what the attempt has to end with; empty: it succeeds
	}{
		{"random bytes", "dd if=/dev/urandom of=" + usage + " bs=4096 count=64 conv=notrunc", true, ""},
		{"zeros", "dd if=/dev/zero of=" + usage + " bs=4096 count=64 conv=notrunc", true, ""},
		{"truncate", "truncate -s 0 " + usage, true, ""},
		{"shorten", "truncate -s 4096 " + usage, true, ""},
		{"grow sparse", "truncate -s 1G " + usage, true, ""},
		{"fill the node", "dd if=/dev/zero of=" + usage + " bs=1M count=2048 oflag=append conv=notrunc", true, "No space left"},
		{"unlink", "rm -f " + usage, false, "busy"},
		{"write limits", "dd if=/dev/urandom of=" + limits + " bs=4096 count=1 conv=notrunc", false, "Read-only"},
		{"unlink limits", "rm -f " + limits, false, "Read-only"},
		{"write preload file", "dd if=/dev/null of=/etc/ld.so.preload", false, "Read-only"},
		{"write library", "dd if=/dev/urandom of=/usr/local/vgpud/libvgpu.so count=1 conv=notrunc", false, "Read-only"},
	} {
		t.Run(attempt.name, func(t *testing.T) {
			name := "tamper-" + strings.ReplaceAll(attempt.name, " ", "-")
			half := env.gpus.sliceBytes() / 2
			create(t, newPod(name, 1, clientPath, "hold", fmt.Sprint(half)))
			awaitLog(t, name, "held")
			awaitMetric(t, "vgpud_slice_memory_used_bytes", ofPod(name), float64(half))
			agentPID, reported := env.agent.process.PID(), tamperReports(t)

			result := tryInPod(t, name, "sh", "-c", attempt.script)
			if (result.ExitCode == 0) != (attempt.complain == "") || !strings.Contains(result.Stderr, attempt.complain) {
				t.Errorf("the attempt ended with %d, want an end with %q: %s", result.ExitCode, attempt.complain, result.Stderr)
			}
			mustNotGetMore(t, name) // at once
			if attempt.tampers {
				eventually(t, metricsTimeout, "the agent reports it", func() (bool, string) {
					now := tamperReports(t)
					return now > reported, fmt.Sprint(now)
				})
			}
			awaitTick(t)
			mustNotGetMore(t, name) // and when the agent has seen to it
			if !env.agent.process.Running() || env.agent.process.PID() != agentPID {
				t.Fatalf("vgpud did not survive: %s", env.agent.lastWords())
			}
			if !attempt.tampers && tamperReports(t) != reported {
				t.Error("the agent reports an attempt that changed nothing")
			}
			awaitMetric(t, "vgpud_slice_memory_limit_bytes", ofPod(name), float64(env.gpus.sliceBytes()))
		})
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
