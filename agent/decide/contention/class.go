// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// One class of operations between looks: how long its new samples took, and how much of that was lost.

package contention

import (
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

const (
	// Kernels of which a sample may hold another tenant's turn are judged only if they are shorter than this part of a turn,
	// and by samples that are shorter than this part.
	turnKernel = 0.25
	turnSample = 0.5

	selfLearns = 64  // samples over which is learnt what an operation loses to itself
	selfMost   = 0.5 // most that can be
	relaxed    = 0.3 // part of what a resource can do, below which nobody is in another's way on it
)

// classTraffic is what is remembered of one class. It is not changed once it is in a state.
type classTraffic struct {
	id                         uint64
	kind                       monitor.OperationKind
	samples, operations, bytes uint64 // ever
	time                       time.Duration
	baseline                   baseline
}

// loss is what operations on one resource took and lost since the last look, in seconds.
type loss struct {
	took, lost float64
	unknown    float64 // took, without a baseline
	longest    float64
	samples    uint64 // least behind a baseline

	kernels, work float64 // of kernels: what they took, and what they take undisturbed
	fresh         float64 // samples of them
}

// pressure is the time that was lost on at least one of the operations under way, and on all. As long as they follow each
// other both are the same. Where several are under way at once, they are to what can be at once what tasks are to the CPUs
// in the kernel's PSI.
func (l *loss) pressure(stretch float64, engines int) (some, full float64) {
	tasks := l.took / stretch
	if tasks <= 1 {
		return l.lost, l.lost
	}
	threads := min(tasks, float64(engines+1))
	delayed, productive := l.lost/stretch, (l.took-l.lost)/stretch
	some = min(delayed/threads, 1)
	full = (threads - min(productive, threads)) / threads
	return some * stretch, full * stretch
}

// classLight is in what light the classes of a slice are seen at one look.
type classLight struct {
	*look
	alone, young, cold, slow bool
	active                   activity      // of others
	squeezed                 [metered]bool // the resource is used up
	relaxed                  [metered]bool // nobody can be in another's way
}

// squeeze finds out which resources are used up.
func (l *classLight) squeeze() {
	for on := onDRAM; on < metered; on++ {
		ratio, ok := l.card.ratio(on, l.policy)
		l.squeezed[on] = ok && ratio >= l.policy.Saturated
		l.relaxed[on] = ok && ratio < relaxed
	}
}

// resourceOf is the resource on which operations of a kind can be in others' way.
func resourceOf(kind monitor.OperationKind) int {
	switch kind {
	case monitor.OperationHostToDevice:
		return onRX
	case monitor.OperationDeviceToHost:
		return onTX
	}
	return onDRAM
}

// meetClasses takes over the counters of classes without measuring.
func meetClasses(known []classTraffic, classes []monitor.Class) []classTraffic {
	return measureClasses(known, classes, nil, nil)
}

// measureClasses makes the state of a slice's classes, and adds what they took and lost by resource. It is the old one if
// nothing changed. Without light, counters are taken over only.
func measureClasses(known []classTraffic, classes []monitor.Class, light *classLight, found *[metered]loss) []classTraffic {
	classes = classes[:min(len(classes), classesMost)]
	if unchanged(known, classes) {
		return known
	}
	next := make([]classTraffic, len(classes))
	for i := range classes {
		class := &classes[i]
		next[i] = classTraffic{id: class.ID, kind: class.Kind}
		if at := sameClass(known, class, i); at >= 0 {
			next[i] = known[at]
			if light != nil {
				next[i].measure(class, light, &found[resourceOf(class.Kind)])
			}
		}
		next[i].samples, next[i].operations = class.Samples, class.Operations
		next[i].bytes, next[i].time = class.Bytes, class.Time
	}
	return next
}

// unchanged says whether there are no new samples and no other classes.
func unchanged(known []classTraffic, classes []monitor.Class) bool {
	if len(known) != len(classes) {
		return false
	}
	for i := range classes {
		if known[i].id != classes[i].ID || known[i].samples != classes[i].Samples || known[i].operations != classes[i].Operations ||
			known[i].time != classes[i].Time {
			return false
		}
	}
	return true
}

// kernelTime is the GPU time, in seconds, that the new samples of kernels and graphs stand for. Where tenants take turns,
// samples hold others' turns, and what a kernel takes undisturbed is nearer to the truth.
func kernelTime(known []classTraffic, classes []monitor.Class, turns bool) float64 {
	sum := 0.0
	for i := range classes[:min(len(classes), classesMost)] {
		class := &classes[i]
		at := sameClass(known, class, i)
		if at < 0 || resourceOf(class.Kind) != onDRAM || class.Kind == monitor.OperationDeviceCopy || class.Samples == known[at].samples {
			continue
		}
		mean := max(0, class.Time-known[at].time).Seconds() / float64(class.Samples-known[at].samples)
		if undisturbed := known[at].baseline.value / float64(time.Second); turns && undisturbed > 0 {
			mean = min(mean, undisturbed)
		}
		sum += min(mean*float64(class.Operations-known[at].operations), longestOp.Seconds())
	}
	return sum
}

// sameClass finds what is known of a class, which is mostly where it is; -1: nothing, or its counters have begun anew.
func sameClass(known []classTraffic, class *monitor.Class, at int) int {
	if at >= len(known) || known[at].id != class.ID {
		at = slices.IndexFunc(known, func(k classTraffic) bool { return k.id == class.ID })
	}
	if at >= 0 && known[at].kind == class.Kind && known[at].samples <= class.Samples && known[at].operations <= class.Operations &&
		known[at].time <= class.Time {
		return at
	}
	return -1
}

// measure takes in the new samples of a class.
func (c *classTraffic) measure(class *monitor.Class, light *classLight, found *loss) {
	count := class.Samples - c.samples
	if count == 0 {
		return
	}
	kernel := resourceOf(class.Kind) == onDRAM
	recent := class.Recent[len(class.Recent)-int(min(count, uint64(len(class.Recent)))):]
	if light.cold && class.Bytes > c.bytes && (class.Bytes-c.bytes)/count > light.policy.ColdBytes {
		return
	}
	var room [32]time.Duration
	fresh := room[:0]
	for _, d := range recent {
		if d >= grain && d <= longestOp && len(fresh) < len(room) {
			fresh = append(fresh, d)
		}
	}
	if len(fresh) == 0 {
		return
	}
	on := resourceOf(class.Kind)
	expected := c.baseline.expected(light.card.clocks, kernel)
	limit := c.limit(light)
	took, lost, longest := 0.0, 0.0, time.Duration(0)
	whole := 0 // samples that were not interrupted
	for _, d := range fresh {
		if d > limit {
			continue
		}
		whole++
		took += float64(d)
		lost += max(0, float64(d)-expected*(1+light.policy.Tolerance))
		longest = max(longest, d)
	}
	operations := float64(max(class.Operations-c.operations, count))
	c.account(found, operations, took, lost, float64(whole), expected, longest, light, on)
	if !light.slow && !light.young && light.passed > 0 {
		c.baseline.learn(fresh, light.alone, light.squeezed[on], light.card.clocksNow, light.now)
	}
}

// limit is the longest sample that is judged.
func (c *classTraffic) limit(light *classLight) time.Duration {
	if resourceOf(c.kind) != onDRAM || light.card.sharing != monitor.SharingTimeSliced || light.alone || c.kind == monitor.OperationDeviceCopy {
		return longestOp
	}
	if c.baseline.value > turnKernel*float64(light.policy.TimeSlice) {
		return 0
	}
	return time.Duration(turnSample * float64(light.policy.TimeSlice))
}

// account adds what the samples stand for: operations times their mean. Times are in nanoseconds.
func (c *classTraffic) account(found *loss, operations, took, lost, whole, expected float64, longest time.Duration, light *classLight, on int) {
	if whole == 0 || took <= 0 {
		return
	}
	all := min(operations*took/whole/float64(time.Second), overlapMost*(light.passed+longest).Seconds())
	found.longest = max(found.longest, longest.Seconds())
	if c.kind != monitor.OperationDeviceCopy && on == onDRAM {
		found.kernels += all
		found.work += all
		found.fresh += whole
		if mean := took / whole; expected > 0 && expected < mean {
			found.work -= all * (1 - expected/mean)
		}
	}
	if expected <= 0 {
		found.unknown += all
		return
	}
	part := lost / took
	if light.alone || light.relaxed[on] && !light.active.on(c.kind) {
		gain := min(whole/selfLearns, 1)
		c.baseline.self += float32(gain * (min(part, selfMost) - float64(c.baseline.self)))
	}
	self := float64(c.baseline.self)
	part = max(0, (part-self)/(1-self))
	found.took += all
	if !light.active.on(c.kind) {
		return
	}
	found.lost += part * all
	if part > 0 && (found.samples == 0 || c.baseline.samples < found.samples) {
		found.samples = c.baseline.samples
	}
}
