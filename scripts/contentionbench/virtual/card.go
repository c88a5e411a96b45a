// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// How operations share the card, as libvgpu/sim has it. A process has one copy in each direction under way, the others wait
// in order; copies that are under way share their direction evenly. With time slices one process' kernels run at a time; with
// MPS all do, and share multiprocessors and memory: a kernel that waits for memory for a part m of its time takes P·((1 - m)
// + m·X) as long, with P the multiprocessors that all want, at least 1, and X ≥ 1 the least stretch with which all that run
// get no more out of the memory than it has.

package virtual

import (
	"slices"
	"time"

	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

// Truth is what really was, since the scene's begin. Stalled is the time in which all of a tenant's operations on a resource
// were slowed by others, weighted with how much by; Used is bytes, or for DRAM the part of its peak times nanoseconds.
type Truth struct {
	Stalled [Resources]time.Duration
	Used    [Resources]float64
}

// Resource numbers what is shared.
type Resource int

// The resources.
const (
	RX Resource = iota // host to device
	TX
	DRAM
	Resources // how many there are
)

// meters are the card's own counters.
type meters struct {
	copied [Resources]float64 // bytes
	dram   float64            // part of the peak × ns
	busy   float64            // ns in which a kernel ran
	memory float64            // ns in which DRAM was used
}

// linkOf is where an operation is copied.
func linkOf(o *scene.Operation) Resource {
	if o.Kind == scene.HostToDevice {
		return RX
	}
	return TX
}

// share sets the rate of everything that is under way.
func (w *world) share() {
	w.shareLink(RX)
	w.shareLink(TX)
	w.pickTurn()
	w.shareKernels()
}

// shareLink sets the rates of copies in one direction.
func (w *world) shareLink(at Resource) {
	under := w.under[:0] // way: the first copy of each process
	for _, x := range w.workers {
		if x.doing != copying || linkOf(x.operation()) != at {
			continue
		}
		x.rate, x.alone = 0, 0
		i := slices.IndexFunc(under, func(other *worker) bool { return other.process == x.process })
		switch {
		case i < 0:
			under = append(under, x)
		case x.order < under[i].order:
			under[i] = x
		}
	}
	w.under = under
	if len(under) == 0 {
		return
	}
	w.copied = w.now
	rate := w.scene.Card.LinkRate * w.link / 1e9
	for _, x := range under {
		own := 0
		for _, other := range under {
			if other.tenant == x.tenant {
				own++
			}
		}
		x.rate, x.alone = rate/float64(len(under)), rate/float64(own)
	}
}

// pickTurn says whose slice it is.
func (w *world) pickTurn() {
	if w.scene.Card.Sharing == scene.MPS {
		return
	}
	best, mine := -1, false // the next process with a kernel, after the one that had the last turn
	after := func(process int) int { return (process - w.turn - 1 + w.processes) % w.processes }
	for _, x := range w.workers {
		if x.doing != computing {
			continue
		}
		mine = mine || x.process == w.turn
		if best < 0 || after(x.process) < after(best) {
			best = x.process
		}
	}
	if best >= 0 && (!mine || w.now >= w.until) {
		w.turn, w.until = best, w.now+timeslice
	}
}

// runs says whether the card works on a worker's kernel.
func (w *world) runs(x *worker) bool {
	return x.doing == computing && (w.scene.Card.Sharing == scene.MPS || x.process == w.turn)
}

func (w *world) shareKernels() {
	fills, stretch := w.crowding(nil)
	for _, x := range w.workers {
		if x.doing != computing {
			continue
		}
		if !w.runs(x) {
			x.rate, x.alone = 0, 0
			continue
		}
		if x.began < 0 {
			x.began = w.now
		}
		x.rate = 1 / w.slowdown(x.operation(), fills, stretch)
	}
	for _, t := range w.tenants {
		alone := 0.0
		for _, x := range t.workers {
			if !w.runs(x) {
				continue
			}
			if alone == 0 {
				_, alone = w.crowding(t)
			}
			x.alone = 1 / w.slowdown(x.operation(), fills, alone)
		}
	}
}

// crowding is P and X of what runs: all of it, or one tenant's.
func (w *world) crowding(only *tenant) (fills, stretch float64) {
	running := w.running[:0]
	for _, x := range w.workers {
		if w.runs(x) && (only == nil || x.tenant == only) {
			running = append(running, x)
			fills += x.operation().Fills
		}
	}
	w.running = running
	fills = max(1, fills)
	gets := func(stretch float64) (sum float64) {
		for _, x := range running {
			sum += x.operation().DRAM / w.slowdown(x.operation(), fills, stretch)
		}
		return sum
	}
	reach := w.scene.Card.DRAMReach * w.memory
	low, high := 1.0, 1.0
	for gets(high) > reach && high < 1e3 {
		low, high = high, 2*high
	}
	for high-low > 1e-4 {
		if middle := (low + high) / 2; gets(middle) > reach {
			low = middle
		} else {
			high = middle
		}
	}
	return fills, high
}

// slowdown is how much longer a kernel takes.
func (w *world) slowdown(o *scene.Operation, fills, stretch float64) float64 {
	return fills * ((1-o.Bound)/w.clock + o.Bound*stretch)
}

// measure counts what happens in so many nanoseconds, for the card's counters and for the truth.
func (w *world) measure(ns float64) {
	busy, used := false, 0.0
	for _, t := range w.tenants {
		var least [Resources]float64
		var active [Resources]bool
		for _, x := range t.workers {
			at := DRAM
			switch {
			case x.doing == copying && x.rate > 0:
				at = linkOf(x.operation())
				t.truth.Used[at] += x.rate * ns
				w.meters.copied[at] += x.rate * ns
			case w.runs(x):
				busy = true
				if x.operation().DRAM == 0 {
					continue
				}
				part := x.operation().DRAM * x.rate
				used += part
				t.truth.Used[DRAM] += part * ns
			default:
				continue
			}
			slowed := 1 - x.rate/x.alone
			if !active[at] || slowed < least[at] {
				least[at] = slowed
			}
			active[at] = true
		}
		for at := range least {
			t.truth.Stalled[at] += time.Duration(least[at] * ns)
		}
	}
	w.meters.dram += used * ns
	if busy {
		w.meters.busy += ns
	}
	if used > 0 {
		w.meters.memory += ns
	}
}
