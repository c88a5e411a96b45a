// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package ledger

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/plugin/ledger"
)

func TestReader(t *testing.T) {
	books, err := ledger.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	reader := New(books)
	books.SetCompute(ledger.ComputePolicy{Mode: ledger.ComputeElastic, CeilingPPM: 600_000})
	books.SetGPUs([]ledger.GPU{{UUID: "GPU-a", UsableBytes: 100 << 20, Slices: 10}})
	now := time.Unix(1700000000, 0).UTC()
	record, err := books.Hold("nvidia.com/gpu", []string{ledger.SliceID("GPU-a", 3)}, ledger.Library{BuildID: "00aa00aa", ContainerDir: "/usr/local/vgpud"}, "/run/vgpud/pages", now)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := reader.Allocations(); len(got) != 0 {
		t.Errorf("a hold that is not committed was shown: %+v", got)
	}
	if err := books.Commit(record.Key); err != nil {
		t.Fatal(err)
	}
	if err := books.Identify(record.Key, ledger.Identity{PodUID: "uid", Namespace: "ns", Pod: "p", Container: "c"}); err != nil {
		t.Fatal(err)
	}
	got, err := reader.Allocations()
	want := []source.Allocation{{Key: record.Key, CreatedAt: now,
		Grants: []source.Grant{{GPUUUID: "GPU-a", SliceIDs: []string{"GPU-a::3"}, MemoryLimitBytes: 10 << 20,
			Mode: source.ComputeElastic, SharePPM: 100_000, CeilingPPM: 600_000}},
		Owner: source.Owner{PodUID: "uid", Namespace: "ns", Pod: "p", Container: "c"}}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	rows, err := reader.Books()
	if diff := cmp.Diff([]source.Book{{GPUUUID: "GPU-a", UsableBytes: 100 << 20, HeldBytes: 10 << 20}}, rows); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func TestModes(t *testing.T) {
	for text, want := range map[string]source.ComputeMode{ledger.ComputeNone: source.ComputeNone, ledger.ComputeHard: source.ComputeHard,
		ledger.ComputeElastic: source.ComputeElastic, "of a later build": source.ComputeHard} {
		if got := mode(text); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
