// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import "time"

// All that is charged comes from the container, which can write there what it likes; what was used and what was granted do
// not. A tenant that was charged more than its line let it buy, and used more than it was granted, is not believed for a
// minute: then its use alone sets its scale, so that it has what it is granted and pays back what it had more.
const (
	waryFor  = time.Minute
	trimDown = 0.9 // least factor of one step while it is not believed: down slowly, up as fast as any correction

	// Nobody is charged more, over so long, than it was granted and one launch, but for this part of the time.
	boastOver   = time.Second
	boastMargin = 0.005

	// Use that is certain to be above what is due: by this factor, and by this part of the time (of a second at least).
	exceedsFactor = 1.01
	exceedsMargin = 0.01
)

// distrust is what is remembered of a tenant's charges that cannot be so.
type distrust struct {
	wary    time.Duration // until when they are not believed
	lowered time.Duration // when they lowered the scale last,
	peak    float64       // and from where at most, within waryFor
}

// lower notes that charges lowered the scale from what it was.
func (d distrust) lower(from float64, now time.Duration) distrust {
	if now-d.lowered > waryFor {
		d.peak = 0
	}
	d.peak, d.lowered = max(d.peak, from), now
	return d
}

// doubt begins or prolongs the time in which the tenant's charges are not believed. What they took off its scale before is
// put back.
func (s scale) doubt(now time.Duration) scale {
	if now >= s.wary && now-s.lowered < waryFor {
		for kind := range s.known {
			s.known[kind] = max(s.known[kind], s.peak)
		}
	}
	s.wary = now + waryFor
	return s
}

// trim sets the scale of a tenant that is not believed so that it uses what it is granted, by what the driver says alone.
func (s scale) trim(kind company, found evidence) scale {
	if found.whole < boastOver || found.used <= 0 {
		return s
	}
	s.known[kind] = bounded(s.inForce(kind) * min(max(found.used/found.due, trimDown), deadBeat))
	s.known[kind.other()] = max(s.inForce(kind.other()), s.known[kind])
	s.anchor[kind] = s.marks[len(s.marks)-1].told
	return s
}

// boasts says that more was charged than the tenant can have bought.
func (e evidence) boasts(current float64) bool {
	return e.whole >= boastOver && e.bill-current*e.launch > boastMargin*e.whole.Seconds()
}

// exceeds says for certain that more was used than is due: of a window that is long enough, with the largest launch that can
// have been in it.
func (e evidence) exceeds(current float64) bool {
	return e.used-current*e.launch > exceedsFactor*e.due+exceedsMargin*max(1, e.whole.Seconds())
}
