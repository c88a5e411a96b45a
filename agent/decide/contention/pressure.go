// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The arithmetic of pressure: that of Linux PSI (kernel/sched/psi.c: update_averages, calc_avgs; kernel/sched/loadavg.c:
// calc_load, calc_load_n), in the kernel's own fixed point. What was lost is sampled in periods of two seconds, in whole
// percents of a period; periods that were missed count as nothing lost; what was lost in excess of a period is carried over
// to the next ones.

package contention

import "time"

// The kernel's numbers.
const (
	Period     = 2 * time.Second
	fixedShift = 11
	fixedOne   = 1 << fixedShift
	decay10    = 1677 // exp(-2/10) of fixedOne
	decay60    = 1981 // exp(-2/60)
	decay300   = 2034 // exp(-2/300)
)

// pressureClock tells when periods end. The zero value has not begun.
type pressureClock struct{ last, next time.Duration }

// begin starts the first period at a time.
func (c pressureClock) begin(now time.Duration) pressureClock {
	return pressureClock{last: now, next: now + Period}
}

// span is what one update of averages is for: how many whole periods were missed before it, and how long the period is that
// it samples.
type span struct {
	missed uint64
	period time.Duration
}

// end ends the period, if it is over; ok says whether.
func (c pressureClock) end(now time.Duration) (next pressureClock, passed span, ok bool) {
	if now < c.next {
		return c, span{}, false
	}
	passed.missed = uint64((now - c.next) / Period)
	skipped := time.Duration(passed.missed) * Period
	passed.period = now - (c.last + skipped)
	return pressureClock{last: now, next: c.next + skipped + Period}, passed, true
}

// meter is one line of a pressure file. Averages are in percents, in fixed point.
type meter struct {
	avg10, avg60, avg300 uint32
	total                time.Duration // lost ever
	sampled              time.Duration // of it, what is in the averages
}

// lose takes in time that was lost since the last call; not negative, and no more than a period or two at a time.
func (m *meter) lose(lost time.Duration) { m.total += max(0, lost) }

// update samples a period.
func (m *meter) update(passed span) {
	sample := min(m.total-m.sampled, passed.period)
	m.sampled += sample
	percent := uint64(0)
	if passed.period > 0 {
		percent = uint64(sample*100/passed.period) * fixedOne
	}
	if m.avg300|m.avg60|m.avg10 == 0 && percent == 0 {
		return
	}
	m.avg10 = average(m.avg10, decay10, percent, passed.missed)
	m.avg60 = average(m.avg60, decay60, percent, passed.missed)
	m.avg300 = average(m.avg300, decay300, percent, passed.missed)
}

// hold lets a period pass that says nothing: the averages stand still.
func (m *meter) hold() { m.sampled = m.total }

// zero says that nothing is lost, and has not been of late.
func (m *meter) zero() bool { return m.avg10|m.avg60|m.avg300 == 0 && m.total == m.sampled }

// averages is what is published.
func (m *meter) averages() Averages {
	part := func(average uint32) float64 { return float64(average) / (100 * fixedOne) }
	return Averages{Avg10: part(m.avg10), Avg60: part(m.avg60), Avg300: part(m.avg300), Total: m.total}
}

// average lets an average decay over the periods that were missed, and then towards what was sampled.
func average(average uint32, decay, percent, missed uint64) uint32 {
	load := uint64(average)
	if missed > 0 {
		load = approach(load, fixedPower(decay, missed), 0)
	}
	return uint32(approach(load, decay, percent))
}

// approach is the kernel's calc_load: it rounds up while the load rises, so that it gets there.
func approach(load, decay, active uint64) uint64 {
	sum := load*decay + active*(fixedOne-decay)
	if active >= load {
		sum += fixedOne - 1
	}
	return sum / fixedOne
}

// fixedPower is the kernel's fixed_power_int: a factor to the power of n, rounded after each multiplication.
func fixedPower(factor, n uint64) uint64 {
	result := uint64(fixedOne)
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			result = (result*factor + fixedOne/2) >> fixedShift
		}
		factor = (factor*factor + fixedOne/2) >> fixedShift
	}
	return result
}
