// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What an operation of a class takes undisturbed, learnt without a profiling run: a low quantile of what samples of it took
// in the last ten minutes, of those while nobody else used the card if there are enough, else of all that were not taken
// in a squeeze. It follows at once when operations become faster, and by a hundredth a minute when they become slower.

package contention

import (
	"math"
	"slices"
	"time"
)

const (
	warmup          = 50   // samples before which nothing is expected
	growthPerMinute = 0.01 // most by which a baseline rises

	reservoirSize = 64
	reservoirSpan = 10 * time.Minute
	reservoirStep = reservoirSpan / reservoirSize // between samples that are kept once there are enough
	soloEnough    = 10                            // samples while alone that are preferred to all others
	soloQuantile  = 0.10
	allQuantile   = 0.05
	growthAtOnce  = 10 * time.Minute // most of a pause for which growth is made up

	// Durations are kept as logarithms: 1/1024 of an octave above 16 ns, the grain of the pages.
	grain     = 16 * time.Nanosecond
	perOctave = 1024
)

// reservoir is the durations of the newest samples of one sort, in a ring. It is immutable: add makes a new one.
type reservoir struct {
	logs  [reservoirSize]uint16
	count uint16 // ever, at most twice the size: only the rest of it counts then
	kept  time.Duration
}

// candidate is one of the samples since one was kept last, any of them with the same chance.
type candidate struct {
	duration time.Duration
	of       uint32
}

// take lets samples stand for election; random is any number.
func (c *candidate) take(samples []time.Duration, random uint64) {
	for _, d := range samples {
		c.of++
		random = random*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
		if random>>33%uint64(c.of) == 0 {
			c.duration = d
		}
	}
}

// logarithm packs a duration of at least grain.
func logarithm(d time.Duration) uint16 {
	return uint16(min(max(math.Log2(float64(d)/float64(grain))*perOctave+0.5, 0), math.MaxUint16))
}

// duration is what a logarithm stands for, in nanoseconds.
func duration(log float64) float64 { return math.Exp2(log/perOctave) * float64(grain) }

// size is how many samples there are.
func (r *reservoir) size() int {
	if r == nil {
		return 0
	}
	return int(min(r.count, reservoirSize))
}

// due says how many of several new samples are to be kept: all until it is full, then one in a while.
func (r *reservoir) due(now time.Duration) int {
	switch {
	case r.size() < reservoirSize:
		return reservoirSize - r.size()
	case now-r.kept >= reservoirStep:
		return 1
	}
	return 0
}

// add keeps samples; r may be nil.
func (r *reservoir) add(samples []time.Duration, now time.Duration) *reservoir {
	next := &reservoir{}
	if r != nil {
		*next = *r
	}
	for _, d := range samples {
		next.logs[next.count%reservoirSize] = logarithm(d)
		if next.count++; next.count == 2*reservoirSize {
			next.count = reservoirSize
		}
	}
	next.kept = now
	return next
}

// quantile is the duration below which a part of the samples lies, in nanoseconds; 0 without any.
func (r *reservoir) quantile(part float64) float64 {
	size := r.size()
	if size == 0 {
		return 0
	}
	sorted := r.logs
	slices.Sort(sorted[:size])
	position := part * float64(size-1)
	low := int(position)
	high := min(low+1, size-1)
	return duration(float64(sorted[low]) + (position-float64(low))*(float64(sorted[high])-float64(sorted[low])))
}

// clocks are those of a card, in MHz; 0: not known.
type clocks struct{ sm, memory uint16 }

// highest takes the higher of each.
func (c clocks) highest(other clocks) clocks {
	return clocks{sm: max(c.sm, other.sm), memory: max(c.memory, other.memory)}
}

// lowest takes the lower of each that is known.
func (c clocks) lowest(other clocks) clocks {
	lower := func(a, b uint16) uint16 {
		if a == 0 || b == 0 {
			return max(a, b)
		}
		return min(a, b)
	}
	return clocks{sm: lower(c.sm, other.sm), memory: lower(c.memory, other.memory)}
}

// baseline is what is known of one class undisturbed.
type baseline struct {
	solo, all *reservoir // nil: none

	someSolo, someAll candidate

	value     float64       // ns, at the clocks below; 0: none yet
	at        time.Duration // when it was last set
	samples   uint64        // that were let in, ever
	reference clocks        // the highest while the samples were taken that are kept
	coming    clocks        // the same of those since the reservoirs were last renewed
	renewed   uint16        // samples kept since then
	self      float32       // part of its time that it is over its baseline without anybody else
}

// learn takes in new samples. alone: nobody else used the card; squeezed: the resource was used up, so that what is slow now
// is no reason to expect it.
func (b *baseline) learn(samples []time.Duration, alone, squeezed bool, at clocks, now time.Duration) {
	b.samples += uint64(len(samples))
	kept, elected := &b.all, &b.someAll
	if alone {
		kept, elected = &b.solo, &b.someSolo
	}
	due := min((*kept).due(now), len(samples))
	if (*kept).size() == reservoirSize {
		elected.take(samples, b.samples*0x9e3779b97f4a7c15^uint64(now))
		if due > 0 {
			samples = []time.Duration{elected.duration}
			*elected = candidate{}
		}
	}
	if due == 0 {
		return
	}
	*kept = (*kept).add(samples[:due], now)
	b.coming = b.coming.highest(at)
	b.reference = b.reference.highest(at)
	if b.renewed += uint16(due); b.renewed >= reservoirSize {
		b.reference, b.coming, b.renewed = b.coming, clocks{}, 0
	}
	b.follow(alone, squeezed, now)
}

// follow moves the value to where the samples are.
func (b *baseline) follow(alone, squeezed bool, now time.Duration) {
	target := b.all.quantile(allQuantile)
	fresh := b.solo.size() >= soloEnough && (now-b.solo.kept < reservoirSpan || b.all.size() == 0)
	if fresh {
		target = b.solo.quantile(soloQuantile)
	}
	passed := min(max(0, now-b.at), growthAtOnce)
	b.at = now
	switch {
	case target == 0:
	case b.value == 0 || target < b.value || b.samples < warmup:
		b.value = target
	case squeezed && (!alone || !fresh):
	default:
		b.value = min(target, b.value*(1+growthPerMinute*passed.Minutes()))
	}
}

// expected is what an operation takes at most at given clocks if nothing disturbs it, in nanoseconds; 0: not known. A clock
// that is lower than when it was learnt excuses it; one that is higher does not oblige it, for it may wait for something
// else than that clock.
func (b *baseline) expected(at clocks, kernel bool) float64 {
	if b.samples < warmup {
		return 0
	}
	factor := 1.0
	if kernel && at.sm > 0 && at.sm < b.reference.sm {
		factor = float64(b.reference.sm) / float64(at.sm)
	}
	if at.memory > 0 && at.memory < b.reference.memory {
		factor = max(factor, float64(b.reference.memory)/float64(at.memory))
	}
	return b.value * factor
}
