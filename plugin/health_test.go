// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Health of a GPU as a kubelet sees it: what is withdrawn, what is still served, and that it comes back.

package plugin

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/vgpud/vgpud/plugin/kubelettest"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// seen is how long a kubelet may need to see a verdict.
const seen = 2 * time.Second

// within fails the test unless the kubelet comes to see want devices in time.
func (n *node) within(k *kubelettest.Kubelet, limit time.Duration, want int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := k.WaitAllocatable(ctx, n.cfg.ResourceName, want); err != nil {
		_, now := k.Counts(n.cfg.ResourceName)
		n.t.Fatalf("%d allocatable: %v", now, err)
	}
}

// A pod runs on slice 3 all the time.
func TestContendedGPUIsWithdrawnAndComesBack(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	slice := ledger.SliceID(uuidA, 3)
	runs, err := k.AllocateIDs(t.Context(), pod("runs"), app, resource, []string{slice})
	must(t, err)
	_, err = k.StartContainer(t.Context(), "runs", "app")
	must(t, err)
	contended := func(health Health) {
		gpus := twoGPUs()
		gpus[0].Health = health
		n.update(gpus...)
	}
	for range 3 {
		contended(Health{Reason: "contended", Most: 9})
		n.within(k, seen, 11) // slice 3, and the other GPU's
		// Chosen an instant before: served, for the book allows it. Its pod ends again.
		id := ledger.SliceID(uuidA, 0)
		late, err := k.AllocateIDs(t.Context(), pod("late"), app, resource, []string{id})
		must(t, err)
		n.within(k, seen, 12)
		must(t, k.RemovePod("late"))
		must(t, n.books.Release(keyOf(late)))
		n.srv.inv.Refresh()
		n.within(k, seen, 11)
		contended(Health{})
		n.within(k, seen, 20)
	}
	contended(Health{Reason: "gpu-lost", Hard: true})
	n.within(k, seen, 10)
	if _, err := k.AllocateIDs(t.Context(), pod("refused"), app, resource, []string{ledger.SliceID(uuidA, 1)}); status.Code(errors.Unwrap(err)) != codes.Unavailable {
		t.Errorf("a slice of a lost GPU: %v", err)
	}
	contended(Health{})
	n.within(k, seen, 20)
	// Nothing was done to the one that runs.
	record, held := n.books.Record(keyOf(runs))
	if !held || record.SliceIDs()[0] != slice || n.pages.epoch(record.Key) != 1 {
		t.Errorf("%+v, epoch %d", record, n.pages.epoch(record.Key))
	}
}

// TestAllocatedSlicesAreMarkedOnRequest: a running container can start again all the same.
func TestAllocatedSlicesAreMarkedOnRequest(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	_, err := k.AllocateIDs(t.Context(), pod("runs"), app, resource, []string{ledger.SliceID(uuidA, 3)})
	must(t, err)
	gpus := twoGPUs()
	gpus[0].Health = Health{Reason: "contended", Most: 10, Allocated: true}
	n.update(gpus...)
	n.within(k, seen, 10)
	_, err = k.StartContainer(t.Context(), "runs", "app")
	must(t, err)
	n.update(twoGPUs()...)
	n.within(k, seen, 20)
}
