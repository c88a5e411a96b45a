// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The inventory: which slices are offered, and in what health. It keeps the latest state and wakes its readers; it
// is never a queue, so a slow kubelet stream misses intermediate states and never the last one.

package plugin

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// NoNUMA is the NUMA node of a GPU that has none (sysfs says -1): no topology is sent then.
const NoNUMA = -1

// ReasonMemoryCommitted is the reason of a free slice that the GPU's memory book cannot serve any more.
const ReasonMemoryCommitted = "memory-committed"

// ReasonMemoryTaken is the reason of a free slice whose memory somebody holds who was not granted it.
const ReasonMemoryTaken = "memory-taken"

// GPU is one GPU as the tick sees it: what is cut, where it is, and how it is.
type GPU struct {
	ledger.GPU
	NUMA   int // NUMA node, or NoNUMA
	Health Health
	// TakenBytes is memory that containers hold beyond what they were granted. So many free slices could not be served.
	TakenBytes uint64
}

// Health is the verdict on a GPU. The zero value is healthy.
type Health struct {
	Reason string // empty: healthy
	// Hard faults (GPU lost, split by MIG) also mark allocated slices and make Allocate refuse. Soft ones (the memory
	// cannot be read) mark free slices only, and IDs that the kubelet picked an instant before are still served.
	Hard bool
	// Most bounds how many slices a soft fault marks; 0: all that it can. Those with the highest numbers are marked, for the
	// lowest are chosen first (see Prefer).
	Most int
	// Allocated: a soft fault marks allocated slices, too, after the free ones. They are served all the same.
	Allocated bool
}

// Slice is one slice as the kubelet is told about it.
type Slice struct {
	ID     string
	Reason string // why it is Unhealthy; empty: Healthy
	NUMA   int    // NUMA node, or NoNUMA
}

// Healthy reports whether the slice is offered.
func (s Slice) Healthy() bool { return s.Reason == "" }

// Inventory holds the GPUs of the node and derives the slices from them and from the ledger.
type Inventory struct {
	books *ledger.Ledger

	mu        sync.Mutex
	gpus      []GPU
	nodeFault string          // reason that holds for every free slice, such as an unusable library
	noCDI     map[string]bool // GPUs that no CDI spec file defines, by UUID
	slices    []Slice         // never changed in place
	changed   chan struct{}   // closed when slices is replaced
}

// NewInventory returns an empty inventory over the books.
func NewInventory(books *ledger.Ledger) *Inventory {
	return &Inventory{books: books, changed: make(chan struct{})}
}

// ErrListTooLarge says that the kubelet could not receive the list of all slices.
var ErrListTooLarge = errors.New("list of slices too large")

// Update replaces the GPUs (and the ledger's view of them). One that the kubelet could not be told of is left out, and
// the error holds its numbers: an impossible one, or one with which the list would be too large (ErrListTooLarge; those
// that are offered already come first). The others are taken as they are now: an error never keeps an older state.
func (inv *Inventory) Update(gpus []GPU) error {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	offered := map[string]bool{}
	for _, g := range inv.gpus {
		offered[g.UUID] = true
	}
	fit, err := choose(gpus, offered)
	cut := make([]ledger.GPU, 0, len(fit))
	for _, g := range fit {
		cut = append(cut, g.GPU)
	}
	inv.books.SetGPUs(cut)
	inv.gpus = fit
	inv.recomputeLocked()
	return err
}

// choose returns the GPUs that the kubelet can be told of, sorted by UUID, and why not the others.
func choose(gpus []GPU, offered map[string]bool) ([]GPU, error) {
	rank := func(g GPU) int {
		if offered[g.UUID] {
			return 0
		}
		return 1
	}
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b GPU) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a.UUID, b.UUID)) })
	var valid []GPU
	var faults []error
	for _, g := range sorted {
		if err := checkGPU(g, valid); err != nil {
			faults = append(faults, fmt.Errorf("GPU %q is not offered: %w", g.UUID, err))
			continue
		}
		valid = append(valid, g)
	}
	fit := valid
	if err := checkListBytes(valid); err != nil {
		faults = append(faults, err)
		for checkListBytes(fit) != nil {
			fit = fit[:len(fit)-1]
		}
	}
	slices.SortFunc(fit, func(a, b GPU) int { return cmp.Compare(a.UUID, b.UUID) })
	return fit, errors.Join(faults...)
}

// Refresh derives the slices again, after the books have changed.
func (inv *Inventory) Refresh() {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.recomputeLocked()
}

// setNodeFault marks every free slice with reason; an empty one takes the mark back.
func (inv *Inventory) setNodeFault(reason string) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.nodeFault = reason
	inv.recomputeLocked()
}

// setUnresolved marks the free slices of these GPUs, and of no others, as not to be had through CDI.
func (inv *Inventory) setUnresolved(uuids map[string]bool) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.noCDI = uuids
	inv.recomputeLocked()
}

// unresolved reports whether the GPU of a device ID is marked by setUnresolved.
func (inv *Inventory) unresolved(id string) bool {
	uuid, _, err := ledger.ParseSliceID(id)
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return err == nil && inv.noCDI[uuid]
}

// uuids lists the GPUs.
func (inv *Inventory) uuids() []string {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	var all []string
	for _, g := range inv.gpus {
		all = append(all, g.UUID)
	}
	return all
}

// Slices returns the current slices, sorted by GPU and number, and a channel that is closed when they change. The
// caller changes nothing in the list.
func (inv *Inventory) Slices() ([]Slice, <-chan struct{}) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.slices, inv.changed
}

// hardFault returns the hard fault of the GPU that a device ID belongs to, or "".
func (inv *Inventory) hardFault(id string) string {
	uuid, _, err := ledger.ParseSliceID(id)
	if err != nil {
		return ""
	}
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for _, g := range inv.gpus {
		if g.UUID == uuid && g.Health.Hard {
			return g.Health.Reason
		}
	}
	return ""
}

func (inv *Inventory) recomputeLocked() {
	gpus := slices.Clone(inv.gpus)
	for i, g := range gpus {
		if inv.noCDI[g.UUID] && g.Health.Reason == "" {
			gpus[i].Health = Health{Reason: ReasonCDI}
		}
	}
	fresh := deriveSlices(gpus, inv.nodeFault, inv.books.Held(), inv.books.Books())
	if slices.Equal(fresh, inv.slices) {
		return
	}
	inv.slices = fresh
	close(inv.changed)
	inv.changed = make(chan struct{})
}

// deriveSlices is the pure heart of the inventory. gpus are sorted by UUID.
func deriveSlices(gpus []GPU, nodeFault string, held map[string]bool, books []ledger.BookRow) []Slice {
	heldBytes := map[string]uint64{}
	for _, row := range books {
		heldBytes[row.UUID] = row.HeldBytes
	}
	derived := []Slice{}
	for _, g := range gpus {
		room, booked := roomFor(g, heldBytes[g.UUID]+min(g.TakenBytes, g.UsableBytes)), roomFor(g, heldBytes[g.UUID])
		marked := g.marked(held)
		for n := range g.Slices {
			slice := Slice{ID: ledger.SliceID(g.UUID, n), NUMA: g.NUMA}
			switch free := !held[slice.ID]; {
			case marked(n):
				slice.Reason = g.Health.Reason
			case free && nodeFault != "":
				slice.Reason = nodeFault
			case free && booked == 0:
				slice.Reason = ReasonMemoryCommitted
			case free && room == 0:
				slice.Reason = ReasonMemoryTaken
				booked--
			case free:
				room--
				booked--
			}
			derived = append(derived, slice)
		}
	}
	return derived
}

// marked says which slices of the GPU its health marks.
func (g GPU) marked(held map[string]bool) func(n int) bool {
	if g.Health.Reason == "" || g.Health.Hard {
		return func(int) bool { return g.Health.Reason != "" }
	}
	left := g.Slices
	if g.Health.Most > 0 {
		left = g.Health.Most
	}
	chosen := map[int]bool{}
	mark := func(allocated bool) {
		for n := g.Slices - 1; n >= 0 && left > 0; n-- {
			if held[ledger.SliceID(g.UUID, n)] == allocated {
				chosen[n] = true
				left--
			}
		}
	}
	mark(false)
	if g.Health.Allocated {
		mark(true)
	}
	return func(n int) bool { return chosen[n] }
}

// roomFor says how many default slices the GPU's book can still serve.
func roomFor(g GPU, heldBytes uint64) uint64 {
	slice := g.SliceBytes()
	if slice == 0 || heldBytes >= g.UsableBytes {
		return 0
	}
	return (g.UsableBytes - heldBytes) / slice
}

// checkGPU refuses what no kubelet could be told, beside the GPUs that are offered already.
func checkGPU(g GPU, beside []GPU) error {
	if !validUUID(g.UUID) {
		return errors.New("its UUID is empty or no plain text, which neither the kubelet nor a container runtime could be told")
	}
	if slices.ContainsFunc(beside, func(other GPU) bool { return other.UUID == g.UUID }) {
		return errors.New("it is listed twice")
	}
	if g.Slices < 1 {
		return fmt.Errorf("%d slices; at least 1 is needed", g.Slices)
	}
	id := ledger.SliceID(g.UUID, g.Slices-1)
	if len(id) > ledger.MaxIDBytes {
		return fmt.Errorf("device ID %s has %d characters; the kubelet's limit is %d", id, len(id), ledger.MaxIDBytes)
	}
	if g.SliceBytes() == 0 {
		return fmt.Errorf("%d slices of %d usable bytes leave less than 1 MiB each", g.Slices, g.UsableBytes)
	}
	return nil
}

// validUUID accepts printable ASCII without what separates UUIDs in a container's environment.
func validUUID(uuid string) bool {
	separates := func(r rune) bool { return r <= ' ' || r > '~' || r == ',' }
	return uuid != "" && !strings.ContainsFunc(uuid, separates)
}
