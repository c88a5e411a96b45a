// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// On what others are in a slice's way, and what it loses to them.

package contention

import (
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// activity is on what others are active.
type activity struct {
	rx, tx          bool
	kernels, copies bool // in DRAM, so that they are in the way of kernels, and of copies within the card
}

// on says whether operations of a kind have others in their way.
func (a activity) on(kind monitor.OperationKind) bool {
	switch kind {
	case monitor.OperationHostToDevice:
		return a.rx
	case monitor.OperationDeviceToHost:
		return a.tx
	case monitor.OperationDeviceCopy:
		return a.copies
	}
	return a.kernels
}

// active says on what others are active: on links with copies, in this look or, as a copy is counted before it is done, in
// the one before. In DRAM kernels of others are in the way of kernels only where they run at once; copies within the card
// always are.
func (l *look) active(others use) activity {
	on := func(direction, resource int) bool {
		return max(others.rates[direction], others.before[direction]) > max(l.policy.Floor, linkUse*l.card.achievable(resource, l.policy))
	}
	copies := max(others.rates[monitor.DeviceToDevice], others.before[monitor.DeviceToDevice]) > copiesUse
	kernels := others.activity > otherUse
	found := activity{rx: on(int(monitor.HostToDevice), onRX), tx: on(int(monitor.DeviceToHost), onTX)}
	switch l.card.sharing {
	case monitor.SharingMPS:
		found.kernels, found.copies = kernels || copies, kernels || copies
	case monitor.SharingTimeSliced:
		found.kernels, found.copies = copies, kernels || copies
	}
	return found
}

// lose meters what was lost on a resource.
func (s *sliceTraffic) lose(on int, found *loss, light *classLight) {
	period := &s.period[on]
	period.took += found.took
	period.unknown += found.unknown
	switch {
	case found.unknown > found.took:
		s.vague[on] = light.now
	case found.took > 0:
		s.vague[on] = 0
	}
	if found.lost > 0 && (period.samples == 0 || found.samples < period.samples) {
		period.samples = found.samples
	}
	stretch := light.passed.Seconds() + found.longest
	if stretch <= 0 {
		return
	}
	atOnce := found.took / stretch
	s.several[on] = mix(s.several[on], atOnce, light.keep, meanLeast)
	if light.slow || light.young {
		period.hushed = true
		return
	}
	if found.lost <= 0 {
		return
	}
	some, full := found.pressure(stretch, light.policy.Engines)
	s.pressure[on].some.loseAtMost(seconds(some))
	s.pressure[on].full.loseAtMost(seconds(full))
}

// loseAtMost takes in what was lost, but not more than can be in the averages soon.
func (m *meter) loseAtMost(lost time.Duration) { m.lose(min(lost, m.sampled+aheadMost-m.total)) }
