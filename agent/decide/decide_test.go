// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Runs every case of testdata/*.txt. A case is a sequence of ticks; each says what is observed and, after
// "want", every line of what must be decided. See testdata/README.md for the words.

package decide

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/monitor"
)

func TestCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no cases (%v)", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			runCase(t, string(text))
		})
	}
}

// runCase plays the ticks of one file.
func runCase(t *testing.T, text string) {
	t.Helper()
	policy := Policy{SlicesPerGPU: 10, RecoverAfter: 3, ReleaseAge: time.Minute, ReleaseAfter: 2}
	var state State
	for number, tick := range strings.Split(text, "\ntick")[1:] {
		snapshot, want := parseTick(t, tick)
		var decisions Decisions
		before := fmt.Sprintf("%+v", state)
		previous := state
		decisions, state = Decide(snapshot, nil, policy, state)
		if after := fmt.Sprintf("%+v", previous); after != before {
			t.Errorf("tick %d: Decide changed the state it was given:\n%s\n%s", number+1, before, after)
		}
		if diff := cmp.Diff(want, render(decisions, state)); diff != "" {
			t.Errorf("tick %d (-want +got):\n%s", number+1, diff)
		}
	}
}

// parseTick reads one tick: observation lines, and the "want" lines.
func parseTick(t *testing.T, text string) (*monitor.Snapshot, []string) {
	t.Helper()
	sources := map[string]string{"nvml": "up", "ledger": "up", "pages": "up", "procs": "up", "kubelet": "up"}
	snapshot := &monitor.Snapshot{At: time.Unix(0, 0)}
	var want []string
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		switch words[0] {
		case "want":
			want = append(want, strings.TrimSpace(strings.TrimPrefix(line, "want")))
		case "at":
			snapshot.At = snapshot.At.Add(time.Duration(number(t, words[1])) * time.Second)
		case "source":
			sources[words[1]] = words[2]
		case "gpu":
			snapshot.GPUs = append(snapshot.GPUs, parseGPU(t, words[1:]))
		case "allocation":
			snapshot.Allocations = append(snapshot.Allocations, parseAllocation(t, words[1:]))
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	for name, status := range sources {
		snapshot.Sources = append(snapshot.Sources,
			monitor.SourceStatus{Name: name, Up: status == "up", Absent: status == "absent"})
	}
	return snapshot, want
}

func parseGPU(t *testing.T, words []string) monitor.GPU {
	t.Helper()
	gpu := monitor.GPU{UUID: words[0], Health: monitor.GPUHealth(words[1]), NUMANode: -1}
	if gpu.Health == monitor.GPUReadable {
		gpu.TotalBytes, gpu.ReservedBytes = 1000, 100
	}
	for _, word := range words[2:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "total":
			gpu.TotalBytes = number(t, value)
		case "reserved":
			gpu.ReservedBytes = number(t, value)
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	return gpu
}

func parseAllocation(t *testing.T, words []string) monitor.Allocation {
	t.Helper()
	share := monitor.Share{GPUUUID: "GPU-a", LimitBytes: 100, Measured: true}
	allocation := monitor.Allocation{Key: words[0], Age: time.Hour, Pages: monitor.PagesReadable, PodProcesses: -1}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "age":
			allocation.Age = time.Duration(number(t, value)) * time.Second
		case "absent":
			allocation.Absent = true
		case "directory":
			allocation.PodDirectory = monitor.Presence(value)
		case "seen":
			allocation.PodSeen = true
		case "pod":
			allocation.Owner = monitor.Owner{PodUID: value}
		case "processes":
			allocation.PodProcesses = int(number(t, value))
		case "pages":
			allocation.Pages, share.Measured = monitor.PagesState(value), value == "readable"
			allocation.Reason = "pages are " + value
		case "damage":
			allocation.Damage = monitor.Damage(number(t, value))
		case "grown":
			allocation.Damage = monitor.DamageGrown
		case "frozen":
			allocation.Frozen = monitor.Damage(number(t, value))
		case "used":
			share.UsedBytes = number(t, value)
		case "limit":
			share.LimitBytes = number(t, value)
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	allocation.GPUs = []monitor.Share{share}
	return allocation
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// render writes decisions in the words of the test files.
func render(decisions Decisions, state State) []string {
	var lines []string
	for _, gpu := range decisions.GPUs {
		line := fmt.Sprintf("gpu %s healthy=%t reason=%s usable=%d slices=%d", gpu.UUID, gpu.Healthy, gpu.Reason, gpu.UsableBytes, gpu.Slices)
		if gpu.Hard {
			line += " hard"
		}
		lines = append(lines, line)
	}
	for _, transition := range decisions.Transitions {
		lines = append(lines, fmt.Sprintf("transition %s healthy=%t reason=%s",
			transition.UUID, transition.Healthy, transition.Reason))
	}
	for _, verdict := range decisions.Allocations {
		line := "allocation " + verdict.Key
		for _, flag := range []struct {
			name string
			set  bool
		}{{"tampered", verdict.Tampered}, {"missing", verdict.Missing}, {"over-limit", verdict.OverLimit},
			{"freeze", verdict.Freeze != monitor.DamageNone}, {"frozen", verdict.Frozen}, {"release", verdict.Release}} {
			if flag.set {
				line += " " + flag.name
			}
		}
		lines = append(lines, line)
	}
	if state.TamperedTotal > 0 {
		lines = append(lines, fmt.Sprintf("tampered-total %d", state.TamperedTotal))
	}
	return lines
}
