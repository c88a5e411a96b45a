// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Most slices do nothing most of the time, and then looking at them costs next to nothing: what is remembered of a card at
// rest is passed on as it is.

package contention

import (
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// rests says whether nothing that is remembered of a slice changes while it does nothing.
func (s *sliceTraffic) rests() bool {
	none := [monitor.Directions]float64{}
	return s.known && !s.worked && s.activity == 0 && s.busy == 0 && s.effort == 0 && s.rates == none && s.before == none &&
		s.share == none && s.several == [metered]float64{} && s.vague == [metered]time.Duration{} && !s.wasAlone
}

// did says whether a slice has done anything since its traffic was last read, or is another one.
func (s *sliceTraffic) did(stream *monitor.Stream) bool {
	if s.key != stream.Key || !stream.Known || stream.Started > 0 && stream.Started != s.oldest || max(0, stream.Charged) != s.charged ||
		max(0, stream.Waited) != s.waited || max(0, stream.Stalls.Time) != s.stalled || s.charging != (stream.Charged > 0 || stream.Share > 0) {
		return true
	}
	for i := range s.copies {
		if stream.Copies[i].Bytes != s.copies[i] {
			return true
		}
	}
	return !unchanged(s.classes, stream.Classes)
}

// atRest says whether all slices of a card rest, and go on resting.
func (c *cardTraffic) atRest(streams []monitor.Stream) bool {
	if len(c.slices) != len(streams) {
		return false
	}
	for i := range c.slices {
		if !c.slices[i].rests() || c.slices[i].did(&streams[i]) {
			return false
		}
	}
	return true
}

// rest lets a look at a card at rest pass. Its slices are those of the state before, and are not changed.
func (c *cardTraffic) rest(now, passed time.Duration) {
	c.rested = now
	c.rows = nil
	if c.dram.known == now {
		c.base = fade(c.base, c.dram.last, passed, meanOver)
	}
}

// silent says whether a period changes nothing that is remembered of a slice, and says nothing of it.
func (s *sliceTraffic) silent() bool {
	if !s.rests() || s.period != [metered]lossOf{} {
		return false
	}
	for on := range s.pressure {
		if !s.pressure[on].some.zero() || !s.pressure[on].full.zero() || s.pressure[on].some.total > 0 {
			return false
		}
	}
	return true
}

// anyLoud says whether a period changes anything that is remembered of slices.
func anyLoud(all []sliceTraffic) bool {
	return slices.ContainsFunc(all, func(s sliceTraffic) bool { return !s.silent() })
}
