// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Probes in a whole agent: as the operator chose, and where they cannot be had. Package bpf has the tests of what they see.

package main

import (
	"strings"
	"testing"

	"github.com/vgpud/vgpud/internal/require"
)

// probing is a node whose agent looks from outside, with these probes.
func probing(t *testing.T, mode string) *node {
	t.Helper()
	n := newNode(t)
	n.config.Probes, n.config.Witness, n.config.WitnessOverheadBytes = mode, wordReport, 1<<30
	n.parts.memories = &memories{}
	return n
}

func TestProbesAreThoseThatWereChosen(t *testing.T) {
	require.Root(t)
	for _, mode := range []string{wordOff, "sampled", "full"} {
		t.Run(mode, func(t *testing.T) {
			n := probing(t, mode)
			agent := n.start()
			agent.allocatable(20)
			said := "probes are at work"
			if mode != wordOff {
				agent.eventually("probes are tried", func() bool {
					return strings.Contains(agent.log.String(), said) || strings.Contains(agent.log.String(), "no probes")
				})
				require.Need(t, "bpf", strings.Contains(agent.log.String(), said), "there are no probes to be had")
			}
			agent.shows(1, "vgpud_probes_info", "mode="+mode)
			want := map[bool]int{true: 0, false: 1}[mode == wordOff]
			if log := agent.log.String(); strings.Count(log, said) != want || strings.Count(log, "mode="+mode) != want {
				t.Errorf("said %d times, want %d:\n%s", strings.Count(log, said), want, log)
			}
		})
	}
}

// What is missing is told once, in words; all else goes on.
func TestAgentWithoutRightsForProbes(t *testing.T) {
	require.Root(t)
	if !alone(t, require.Tool(t, "setpriv"), "--bounding-set=-bpf,-perfmon,-sys_admin") {
		return
	}
	n := probing(t, "full")
	agent := n.start()
	agent.allocatable(20)
	agent.eventually("the reason is published", func() bool {
		value, _ := n.value("vgpud_probes_info", "mode=off")
		return value == 1 && strings.Contains(n.prom(), "CAP_BPF and CAP_PERFMON missing")
	})
	key, _ := agent.allocate("p", 1)
	agent.shows(sliceSize, "vgpud_slice_memory_limit_bytes", "allocation="+key, "pod=p")
	agent.nextTick()
	log := agent.log.String()
	if said := strings.Count(log, "no probes: calls of the driver are not counted from outside"); said != 1 || strings.Count(log, "CAP_BPF") != 1 {
		t.Errorf("said %d times, want once:\n%s", said, log)
	}
	agent.shows(1, "vgpud_gpu_healthy", "gpu_uuid="+gpuA, "reason=ok")
}
