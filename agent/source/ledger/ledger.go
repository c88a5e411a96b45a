// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package ledger shows the plugin's books as a source: what is granted, for the tick to observe. It never writes.
package ledger

import (
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Reader reads one ledger. The books are in memory, so a read does not fail.
type Reader struct{ books *ledger.Ledger }

var _ source.Ledger = Reader{}

// The plugin's books and what observes them count shares in the same unit; neither may import the other.
var _ = [1]struct{}{}[source.WholePPM-ledger.WholePPM]

// New reads books, which stay the caller's.
func New(books *ledger.Ledger) Reader { return Reader{books: books} }

// Allocations implements source.Ledger: the committed records.
func (r Reader) Allocations() ([]source.Allocation, error) {
	var allocations []source.Allocation
	for _, record := range r.books.Snapshot() {
		allocation := source.Allocation{Key: record.Key, CreatedAt: record.CreatedAt}
		for _, grant := range record.Grants {
			allocation.Grants = append(allocation.Grants, source.Grant{
				GPUUUID: grant.UUID, SliceIDs: grant.SliceIDs, MemoryLimitBytes: grant.MemoryLimitBytes,
				Mode: mode(grant.Compute.Mode), SharePPM: grant.Compute.SharePPM, CeilingPPM: grant.Compute.CeilingPPM})
		}
		if pod := record.Pod; pod != nil {
			allocation.Owner = source.Owner{PodUID: pod.PodUID, Namespace: pod.Namespace, Pod: pod.Pod, Container: pod.Container}
			allocation.PodSeen = pod.Seen
		}
		allocations = append(allocations, allocation)
	}
	return allocations, nil
}

// mode is the observers' word for the ledger's.
func mode(text string) source.ComputeMode {
	switch text {
	case ledger.ComputeNone:
		return source.ComputeNone
	case ledger.ComputeElastic:
		return source.ComputeElastic
	}
	return source.ComputeHard
}

// Books implements source.Ledger.
func (r Reader) Books() ([]source.Book, error) {
	var books []source.Book
	for _, row := range r.books.Books() {
		books = append(books, source.Book{GPUUUID: row.UUID, UsableBytes: row.UsableBytes, HeldBytes: row.HeldBytes})
	}
	return books, nil
}
