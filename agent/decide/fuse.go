// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// fuse.go brings contention and the other faults of cards together. A fault of the card comes first; a contended card that has
// none is withdrawn softly, and the fuse bounds how much of the node that is.

package decide

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
)

// fusePart is the largest part of a node's slices that is withdrawn for contention, whatever is seen: contention of most of a
// node is its normal state, and a node without slices helps nobody. Faults do not count and are not bounded. Slices are
// counted, not cards, so that on a node with one card half of its slices are withdrawn at most, and at least half stay.
const fusePart = 0.5

// mergeContention puts the verdicts on contention into those on the cards; known and next are the cards' states before and after this
// tick.
func (d *Decisions) mergeContention(snapshot *monitor.Snapshot, contended []health.Verdict, policy Policy, known, next map[string]GPUState) {
	found := map[string]health.Verdict{}
	for _, verdict := range contended {
		if verdict.Contended {
			found[verdict.UUID] = verdict
		}
	}
	allowed := d.fuseRoom(snapshot, found, policy)
	for i := range d.GPUs {
		gpu := &d.GPUs[i]
		verdict, is := found[gpu.UUID]
		was := known[gpu.UUID].Contended
		state := next[gpu.UUID]
		state.Contended = is
		next[gpu.UUID] = state
		gpu.Contended = is
		hadFault := known[gpu.UUID].Reason != ReasonOK
		switch {
		case !gpu.Healthy: // by a fault of its own, which is told
		case is:
			evidence := verdict.Evidence
			gpu.Healthy, gpu.Reason, gpu.Evidence = false, ReasonContended, &evidence
			gpu.Withdraw, gpu.MarkAllocated = allowed[gpu.UUID].room, policy.MarkAllocated
			if !was || hadFault {
				d.replace(Transition{UUID: gpu.UUID, Reason: ReasonContended, Detail: told(verdict, allowed[gpu.UUID]), Evidence: &evidence})
			}
		case was && !hadFault:
			d.replace(Transition{UUID: gpu.UUID, Healthy: true, Reason: ReasonOK, Detail: "no longer contended"})
		}
	}
}

// replace adds a transition in the place of one of the same card, in the order of cards.
func (d *Decisions) replace(transition Transition) {
	at, found := slices.BinarySearchFunc(d.Transitions, transition.UUID, func(t Transition, uuid string) int {
		return cmp.Compare(t.UUID, uuid)
	})
	if found {
		d.Transitions[at] = transition
		return
	}
	d.Transitions = slices.Insert(d.Transitions, at, transition)
}

// cardRoom is what of a contended card's slices may go.
type cardRoom struct {
	markable int // slices that would be withdrawn if there were no fuse
	room     int // those that the fuse lets go
}

// told is the detail of a transition. The fuse is spoken of where it keeps something.
func told(verdict health.Verdict, allowed cardRoom) string {
	detail := verdict.Evidence.String()
	if allowed.room < allowed.markable {
		detail += fmt.Sprintf("; of %d slices that would be withdrawn the fuse lets %d go: half of the node's stay", allowed.markable, allowed.room)
	}
	return detail
}

// fuseRoom says how many slices of each contended card may be withdrawn. The card that has been contended for longest comes
// first, so that cards do not change places all the time; the worse one of two that became so at once.
func (d *Decisions) fuseRoom(snapshot *monitor.Snapshot, found map[string]health.Verdict, policy Policy) map[string]cardRoom {
	held := heldSlices(snapshot)
	total := 0
	var contended []GPUVerdict
	for _, gpu := range d.GPUs {
		total += gpu.Slices
		if _, is := found[gpu.UUID]; is && gpu.Healthy {
			contended = append(contended, gpu)
		}
	}
	slices.SortStableFunc(contended, func(a, b GPUVerdict) int {
		x, y := found[a.UUID], found[b.UUID]
		return cmp.Or(cmp.Compare(x.Since, y.Since), -cmp.Compare(x.Evidence.Avg60, y.Evidence.Avg60), cmp.Compare(a.UUID, b.UUID))
	})
	left := int(fusePart * float64(total))
	allowed := map[string]cardRoom{}
	for _, gpu := range contended {
		markable := gpu.Slices
		if !policy.MarkAllocated {
			markable -= min(held[gpu.UUID], gpu.Slices)
		}
		room := min(markable, left)
		allowed[gpu.UUID] = cardRoom{markable, room}
		left -= room
	}
	return allowed
}

// heldSlices counts the slices of each card that are allocated.
func heldSlices(snapshot *monitor.Snapshot) map[string]int {
	held := map[string]int{}
	for _, allocation := range snapshot.Allocations {
		for _, share := range allocation.GPUs {
			held[share.GPUUUID] += len(share.SliceIDs)
		}
	}
	return held
}
