// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"sync"
	"testing"
)

// Two pods at once, ten rounds: each gets exactly its own slices' memory, whatever the other one takes. The second pod
// has a slice on each GPU, so they always share one.
func TestTwoPodsKeepToTheirOwnLimits(t *testing.T) {
	const rounds = 10
	awaitRemovals(t) // what is in use on the GPUs is this test's, from here on
	var ended sync.WaitGroup
	defer ended.Wait()
	slice := env.gpus.sliceBytes()
	for round := range rounds {
		tenants := []struct {
			name      string
			slices    int
			wantBytes uint64
		}{
			{fmt.Sprintf("round-%d-a", round), 1, slice},
			{fmt.Sprintf("round-%d-b", round), gpuCount, gpuCount * slice},
		}
		for _, tenant := range tenants {
			create(t, newPod(tenant.name, tenant.slices, clientPath, "hold", "all"))
		}
		for _, tenant := range tenants {
			if got := awaitLog(t, tenant.name, "held").number(t, "held"); got != tenant.wantBytes {
				t.Errorf("round %d: pod %s holds %d bytes, want %d", round, tenant.name, got, tenant.wantBytes)
			}
		}
		ended.Wait()                     // the pods of the round before
		for _, tenant := range tenants { // both are full now: nobody gets one more byte, not even a second process
			out := inPod(t, tenant.name, clientPath, "fill")
			if got := mustFind(t, out, "filled").number(t, "filled"); got != 0 {
				t.Errorf("round %d: a second process of pod %s got %d bytes more", round, tenant.name, got)
			}
		}
		if got, want := usedBytes(t), (1+gpuCount)*slice; got != want {
			t.Errorf("round %d: the GPUs themselves say that %d bytes are in use, want %d", round, got, want)
		}
		for _, tenant := range tenants {
			ended.Go(func() { remove(t, tenant.name) })
		}
	}
	ended.Wait()
	if got := usedBytes(t); got != 0 {
		t.Errorf("after the last pod's end the GPUs say that %d bytes are in use", got)
	}
}

// usedBytes is what is allocated on all simulated GPUs, by their own account.
func usedBytes(t *testing.T) (sum uint64) {
	t.Helper()
	status, err := readSim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, gpu := range status.GPUs {
		sum += gpu.UsedBytes
	}
	return sum
}
