// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package health

import (
	"maps"
	"slices"
	"time"
)

// Record is what of a State outlives the agent, so that its restart neither offers a contended card for the
// minutes that it takes to see the contention again, nor lets a card flap. Times are ages: clocks do not outlive a boot.
type Record struct {
	GPUs []GPURecord `json:"gpus"`
}

// GPURecord is the record of one card whose verdict has ever changed.
type GPURecord struct {
	UUID       string        `json:"uuid"`
	Contended  bool          `json:"contended"`
	ChangedAgo time.Duration `json:"changedAgo"` // nanoseconds, as the others
	Hold       time.Duration `json:"hold"`
	Repeats    int           `json:"repeats"`
	Evidence   Evidence      `json:"evidence,omitzero"` // its Since means nothing any more
}

// Bounds of what is believed of a record.
const (
	longestHold = 24 * time.Hour
	mostRepeats = 64
)

// Record is what is to be written to disk, as of now.
func (s State) Record(now time.Duration) Record {
	var record Record
	for _, uuid := range slices.Sorted(maps.Keys(s.gpus)) {
		gpu := s.gpus[uuid]
		if !gpu.moved {
			continue
		}
		record.GPUs = append(record.GPUs, GPURecord{UUID: uuid, Contended: gpu.contended, ChangedAgo: now - gpu.changed,
			Hold: gpu.hold, Repeats: gpu.repeats, Evidence: gpu.evidence})
	}
	return record
}

// Restore makes the state of a record that was written elapsed ago. A verdict is kept unless its hold is over by then;
// from there on it counts as any other. Streaks and cuts are not kept: what the new agent sees moves the clocks from zero,
// and shares are whole until it says otherwise. Entries that cannot be so are left out.
func Restore(record Record, elapsed, now time.Duration) State {
	state := State{gpus: map[string]gpuContention{}}
	if elapsed < 0 {
		return state
	}
	for _, entry := range record.GPUs {
		impossible := entry.UUID == "" || entry.ChangedAgo < 0 || entry.Hold < 0 || entry.Hold > longestHold ||
			entry.Repeats < 0 || entry.Repeats > mostRepeats
		if impossible {
			continue
		}
		gpu := gpuContention{moved: true, changed: now - entry.ChangedAgo - elapsed, hold: entry.Hold, repeats: entry.Repeats}
		if entry.Contended && elapsed < entry.Hold {
			gpu.contended, gpu.evidence = true, entry.Evidence
		}
		state.gpus[entry.UUID] = gpu
	}
	return state
}
