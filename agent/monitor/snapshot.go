// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"errors"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Snapshot is everything that was observed in one tick. Nobody changes it once Collect has returned it.
// All lists are sorted (GPUs by UUID, allocations by key) and free of duplicates.
type Snapshot struct {
	At          time.Time
	Sources     []SourceStatus
	GPUs        []GPU
	Allocations []Allocation
	// Elsewhere has the cards that other plugins gave, by the UID of the pod; nil: the kubelet's record could not be read.
	Elsewhere map[string][]string
}

// SourceStatus says whether a source answered. A source that this agent runs without is Absent.
type SourceStatus struct {
	Name   string
	Up     bool
	Absent bool
	Error  string // empty when up or absent

	NotAsked bool // not up for the fault of another source alone
}

// Fault is what is wrong with a source; nil where it is absent or up.
func (s SourceStatus) Fault() error {
	if s.Up || s.Absent {
		return nil
	}
	return errors.New(s.Error)
}

// PagesState says what became of an allocation's two pages; see package source.
type PagesState = source.PagesState

// The states of an allocation's pages.
const (
	PagesReadable = source.PagesReadable
	PagesTampered = source.PagesTampered
	PagesMissing  = source.PagesMissing
	PagesUnknown  = source.PagesUnknown
)

// Damage is what was done to a usage page; see package source.
type Damage = source.Damage

// Damage that decisions tell from the others.
const (
	DamageNone  = source.DamageNone
	DamageGrown = source.DamageGrown
)

// Owner is the container that holds an allocation; see package source.
type Owner = source.Owner

// GPUHealth is what the driver lets us do with a card.
type GPUHealth string

// The states of a card.
const (
	GPUReadable   GPUHealth = "readable"
	GPUUnreadable GPUHealth = "unreadable" // there, but its memory cannot be read
	GPULost       GPUHealth = "lost"       // the driver says that it fell off the bus
	GPUMIG        GPUHealth = "mig"        // split by MIG; the whole card cannot be used
)

// GPU is one card with its book.
type GPU struct {
	UUID          string
	Index         int
	Model         string
	TotalBytes    uint64
	ReservedBytes uint64
	UsedBytes     uint64
	UsableBytes   uint64 // of the ledger's book; 0 before the card is in it
	HeldBytes     uint64 // by allocations
	NUMANode      int    // -1: none known
	Health        GPUHealth
	Detail        string // why it is not readable
}

// Allocation is one record of the ledger with what is observed of it.
type Allocation struct {
	Key    string
	Age    time.Duration // since it was made; never negative
	Owner  Owner
	Pages  PagesState
	Reason string // why its pages are not readable
	Damage Damage // to its usage page
	Epoch  uint32 // of its limits page; 0: it cannot be read
	Frozen Damage // why nothing more may be allocated in this epoch
	GPUs   []Share

	// OldestProcess is when the oldest process on its usage page started, in clock ticks after boot; 0: none, or not known.
	// It is the container's own claim.
	OldestProcess uint64
	// Absent is true when the kubelet's record was read and does not hold the allocation.
	Absent bool
	// PodDirectory says whether the kubelet keeps its pod on disk; unknown as long as the pod is.
	PodDirectory Presence
	// PodSeen: the pod's directory is there, or was in an earlier tick, also of an agent before this one.
	PodSeen bool
	// PodProcesses counts the processes of its pod that still run; -1 when that is not known. It is looked
	// up only for allocations that are absent or whose pod has no directory.
	PodProcesses int
}

// Presence says whether something is there.
type Presence string

// The answers.
const (
	PresenceUnknown Presence = ""
	Present         Presence = "present"
	NotPresent      Presence = "absent"
)

// Share is what an allocation holds and uses of one GPU.
type Share struct {
	GPUUUID     string
	SliceIDs    []string
	LimitBytes  uint64
	Mode        ComputeMode // how its GPU time is limited
	SharePPM    uint32      // millionths of the GPU's time; 0 with ComputeNone
	CeilingPPM  uint32      // most of it, loans included; 0 with ComputeNone
	UsedBytes   uint64
	Allocations uint64 // how many times memory was allocated
	Refusals    uint64 // how many times it was refused
	Measured    bool   // the usage page could be read
}

// SourceDown says that the named source is present and did not answer.
func (s *Snapshot) SourceDown(name string) bool {
	for _, status := range s.Sources {
		if status.Name == name {
			return !status.Up && !status.Absent
		}
	}
	return false
}

// SourceUp says whether the named source answered.
func (s *Snapshot) SourceUp(name string) bool {
	for _, status := range s.Sources {
		if status.Name == name {
			return status.Up
		}
	}
	return false
}
