// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"maps"
	"strconv"
	"testing"
)

// copied is what `client copy-check` does to a container's counts: one context, two allocations, a copy in each of three
// directions.
type copied struct {
	runs  uint64
	bytes uint64 // in each direction
}

func (c *copied) add(t *testing.T, pod string, bytes uint64, environment ...string) {
	t.Helper()
	command := append(append([]string{"/usr/bin/env"}, environment...), clientPath, "copy-check", strconv.FormatUint(bytes, 10))
	if same := mustFind(t, inPod(t, pod, command...), "copied")["same"]; same != "1" {
		t.Fatalf("pod %s: copied bytes differ", pod)
	}
	c.runs++
	c.bytes += bytes
}

// await waits until the metrics of the pod say exactly that, beside `held` processes that each made a context and one
// allocation.
func (c *copied) await(t *testing.T, pod string, held uint64) {
	t.Helper()
	for direction, want := range map[string]uint64{"host_to_device": c.bytes, "device_to_host": c.bytes, "device_to_device": c.bytes, "unknown": 0} {
		awaitMetric(t, "vgpud_container_copied_bytes_total", callsOf(pod, "direction", direction), float64(want))
	}
	for call, want := range map[string]uint64{"copy": 3 * c.runs, "allocation": 2*c.runs + held, "context": c.runs + held, "missed": 0} {
		awaitMetric(t, "vgpud_container_calls_total", callsOf(pod, "call", call), float64(want))
	}
}

// callsOf are the labels of one series of a pod's calls.
func callsOf(pod, label, value string) map[string]string {
	labels := maps.Clone(ofPod(pod))
	labels[label] = value
	return labels
}

// probedLibraries is how many files the agent says that it probes.
func probedLibraries(t *testing.T) float64 {
	t.Helper()
	found := readSeries(t, readMetricsFile(t), "vgpud_probes_libraries", nil)
	if len(found) != 1 {
		t.Fatalf("vgpud_probes_libraries: %v", found)
	}
	return found[0].value
}

// TestProbesCountWhatPodsDo: calls and bytes of each container, as the kernel counted them, are exactly those of its
// program: through the host's library, which each container sees by a bind mount of its own; through a private copy of it
// in a container; and through another file that takes the copy's place while it is in use.
func TestProbesCountWhatPodsDo(t *testing.T) {
	restartWith(t, map[string]string{"probes": "full"}) // a virtual machine's hits may cost more than the budget of auto
	awaitMetric(t, "vgpud_probes_info", map[string]string{"mode": "full"}, 1)

	t.Run("host library", func(t *testing.T) {
		pods := map[string]*copied{"probes-a": {}, "probes-b": {}}
		for pod := range pods {
			create(t, newPod(pod, 1, clientPath, "hold", "1000000"))
		}
		for pod := range pods {
			awaitLog(t, pod, "held")
		}
		before := probedLibraries(t)
		for round := uint64(1); round <= 3; round++ {
			pods["probes-a"].add(t, "probes-a", 1000*round)
			pods["probes-b"].add(t, "probes-b", 77777*round)
		}
		pods["probes-b"].add(t, "probes-b", 1)
		for pod, done := range pods {
			done.await(t, pod, 1)
		}
		if after := probedLibraries(t); after != before {
			t.Errorf("%v libraries are probed, %v were before", after, before)
		}
	})

	t.Run("private copy, and its replacement", func(t *testing.T) {
		const pod, private = "probes-copy", "/private"
		const original = libraryDir + "/libcuda.so.1"
		own := "LD_LIBRARY_PATH=" + private
		// The copy is in use by a process that allocates once and waits, so that it is found before calls are compared.
		hold := fmt.Sprintf("mkdir %[1]s; cp %[2]s %[1]s/libcuda.so.1; %[3]s %[4]s hold 1000", private, original, own, clientPath)
		before := probedLibraries(t)
		create(t, newPod(pod, 1, "/usr/bin/sh", "-ec", hold))
		awaitLog(t, pod, "held")
		awaitMetric(t, "vgpud_probes_libraries", nil, before+1)

		// What the first process did before it was found may be missing: compare from here on.
		start := uint64(metricOf(t, "vgpud_container_calls_total", callsOf(pod, "call", "context")))
		if start > 1 {
			t.Fatalf("%d contexts counted of one", start)
		}
		var done copied
		done.add(t, pod, 12345, own)
		done.add(t, pod, 54321, own)
		done.await(t, pod, start)

		inPod(t, pod, "/usr/bin/sh", "-ec", fmt.Sprintf("rm %[1]s/libcuda.so.1; cp %[2]s %[1]s/libcuda.so.1; %[3]s %[4]s hold 1000 </dev/null >/dev/null 2>&1 &", private, original, own, clientPath))
		awaitMetric(t, "vgpud_probes_libraries", nil, before+2) // both, as both are in use
		counted := uint64(metricOf(t, "vgpud_container_calls_total", callsOf(pod, "call", "context"))) - done.runs
		done.add(t, pod, 999, own)
		done.await(t, pod, counted)
	})
}

// metricOf returns the value of the one series of the name and labels; 0 if there is none.
func metricOf(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	found := readSeries(t, readMetricsFile(t), name, labels)
	if len(found) > 1 {
		t.Fatalf("%s%v: %v", name, labels, found)
	}
	if len(found) == 0 {
		return 0
	}
	return found[0].value
}
