// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// releaseTimeout is how long after all tests with pods the last allocation may still be held: the agent releases none
// that is younger than a minute.
const releaseTimeout = 80 * time.Second

// A pod that has ended gives its slices back to the scheduler at once, and its allocation (record, pages, series) goes
// soon after. The second half of the test waits, by t.Parallel, until all others have run: the kubelet's last allocation
// is to be released, too, though no other one follows it.
func TestPodEndReleasesItsAllocation(t *testing.T) {
	const all = gpuCount * slicesPerGPU
	create(t, newPod("released", all, clientPath, "hold", "1000000"))
	awaitLog(t, "released", "held")
	if pages := allocationPages(t); len(pages) == 0 {
		t.Fatal("a pod with slices runs, and there are no pages")
	}
	remove(t, "released")
	create(t, newPod("takes-them-all", all, clientPath, "hold", "all")) // the same slices, to the last, at once
	if got, want := awaitLog(t, "takes-them-all", "held").number(t, "held"), all*env.gpus.sliceBytes(); got != want {
		t.Errorf("all slices together hold %d bytes, want %d", got, want)
	}
	remove(t, "takes-them-all")

	t.Parallel()
	env.beside.Wait()
	eventually(t, releaseTimeout, "allocations of pods that have ended are released", func() (bool, string) {
		pages := allocationPages(t)
		return len(pages) == 0, fmt.Sprint(pages)
	})
	eventually(t, metricsTimeout, "in the metrics every slice is free, and no allocation is left", func() (bool, string) {
		page, free := readMetricsFile(t), 0.0
		for _, s := range readSeries(t, page, "vgpud_slices", map[string]string{"state": "free"}) {
			free += s.value
		}
		left := readSeries(t, page, "vgpud_slice_memory_limit_bytes", nil)
		return free == all && len(left) == 0, fmt.Sprintf("%v free; series %v", free, left)
	})
}

// allocationPages are the folders with pages that the agent keeps.
func allocationPages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(env.cluster.Node.Path("/run/vgpud/pages/*/limits"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}
