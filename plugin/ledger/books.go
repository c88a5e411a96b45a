// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The memory book of each GPU: what it can grant, what is held.

package ledger

import (
	"cmp"
	"fmt"
	"slices"
)

// SliceUnit is the granularity of an equal share, and its least size, in bytes.
const SliceUnit = 1 << 20

// GPU is what the books know of one GPU.
type GPU struct {
	UUID        string
	UsableBytes uint64 // memory that may be granted: total minus the driver's reserve minus the margin
	Slices      int    // how many equal shares it is cut into
}

// SliceBytes is the equal share: UsableBytes / Slices, rounded down to a whole MiB.
func (g GPU) SliceBytes() uint64 {
	if g.Slices <= 0 {
		return 0
	}
	return g.UsableBytes / uint64(g.Slices) / SliceUnit * SliceUnit
}

// BookRow is one GPU's memory book. A GPU that is no longer known but of which something is held has
// UsableBytes 0.
type BookRow struct {
	UUID        string
	UsableBytes uint64
	HeldBytes   uint64
}

// SetGPUs replaces what the books know of the GPUs. What is held stays held.
func (l *Ledger) SetGPUs(gpus []GPU) {
	known := make(map[string]GPU, len(gpus))
	for _, g := range gpus {
		known[g.UUID] = g
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gpus = known
}

// Books returns the memory book of every GPU, sorted by UUID.
func (l *Ledger) Books() []BookRow {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.heldBytesLocked(nil)
	var rows []BookRow
	for uuid, g := range l.gpus {
		rows = append(rows, BookRow{UUID: uuid, UsableBytes: g.UsableBytes, HeldBytes: held[uuid]})
	}
	for uuid, bytes := range held {
		if _, ok := l.gpus[uuid]; !ok {
			rows = append(rows, BookRow{UUID: uuid, HeldBytes: bytes})
		}
	}
	slices.SortFunc(rows, func(a, b BookRow) int { return cmp.Compare(a.UUID, b.UUID) })
	return rows
}

// grantsLocked turns device IDs into grants of default slices, one per GPU, sorted.
func (l *Ledger) grantsLocked(ids []string) ([]Grant, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("%w: no device IDs in the request", ErrUnknownDevice)
	}
	var grants []Grant
	for i, id := range sortedIDs(ids) {
		uuid, n, err := ParseSliceID(id)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnknownDevice, err)
		}
		gpu, ok := l.gpus[uuid]
		if !ok || n >= gpu.Slices {
			return nil, fmt.Errorf("%w: %s names no slice of this node", ErrUnknownDevice, id)
		}
		last := len(grants) - 1
		if last < 0 || grants[last].UUID != uuid {
			grants = append(grants, Grant{UUID: uuid})
			last++
		} else if slices.Contains(grants[last].SliceIDs, id) {
			return nil, fmt.Errorf("%w: %s is twice in request (position %d)", ErrUnknownDevice, id, i)
		}
		grants[last].SliceIDs = append(grants[last].SliceIDs, id)
		grants[last].MemoryLimitBytes += gpu.SliceBytes()
		grants[last].Compute = l.compute.grant(len(grants[last].SliceIDs), gpu.Slices)
	}
	return grants, nil
}

// fitsLocked checks that every GPU's book still holds with the grants added.
func (l *Ledger) fitsLocked(grants []Grant) error {
	before := l.heldBytesLocked(nil)
	after := l.heldBytesLocked(grants)
	for _, g := range grants {
		usable := l.gpus[g.UUID].UsableBytes
		if g.MemoryLimitBytes == 0 || (after[g.UUID] > usable && after[g.UUID] > before[g.UUID]) {
			return fmt.Errorf("%w: GPU %s has %d of %d bytes held, %d more were asked for",
				ErrNoMemory, g.UUID, before[g.UUID], usable, after[g.UUID]-before[g.UUID])
		}
	}
	return nil
}

// heldBytesLocked sums the books per GPU, with more added to them. An ID that several allocations hold counts
// once, with the largest share that any of them gives it.
func (l *Ledger) heldBytesLocked(more []Grant) map[string]uint64 {
	share := map[string]uint64{}
	count := func(grants []Grant) {
		for _, g := range grants {
			each := (g.MemoryLimitBytes + uint64(len(g.SliceIDs)) - 1) / uint64(len(g.SliceIDs))
			for _, id := range g.SliceIDs {
				share[id] = max(share[id], each)
			}
		}
	}
	for _, e := range l.entries {
		count(e.record.Grants)
	}
	count(more)
	held := map[string]uint64{}
	for id, bytes := range share {
		if uuid, _, err := ParseSliceID(id); err == nil {
			held[uuid] += bytes
		}
	}
	return held
}
