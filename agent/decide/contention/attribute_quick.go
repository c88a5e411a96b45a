// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// When a card is looked at more often than once a second: that costs, so only while something depends on it.

package contention

import (
	"time"

	"github.com/vgpud/vgpud/agent/decide/attribution"
	"github.com/vgpud/vgpud/agent/monitor"
)

// quickWish is what is remembered of looking often.
type quickWish struct {
	since time.Duration // when it began; 0: it is not on
	until time.Duration // it is not begun anew before
}

// Times of looking often.
const (
	quickFor   = 2 * time.Minute
	quickRest  = 3 * time.Minute
	quickShort = time.Minute
	sureFrom   = 0.5 // confidence that is enough
)

// plan decides whether the card is to be looked at more often: while it matters who has its DRAM's traffic, and that is not
// known yet.
func (c *cardTraffic) plan(now time.Duration, traffic *cardShares, policy *Policy) {
	active := 0
	for i := range c.slices {
		if c.slices[i].busy > attribution.IdleRow {
			active++
		}
	}
	wanted := active >= 2 && c.dram.knownAt(c.looked) && traffic.ratio[onDRAM] >= policy.Quick &&
		(c.sharing == monitor.SharingMPS || c.sharing == monitor.SharingTimeSliced)
	sure := traffic.dram.sure()
	switch {
	case !wanted || sure && c.wish.since > 0 && now-c.wish.since >= quickShort:
		if c.wish.since > 0 {
			c.wish = quickWish{until: now + quickShort}
		}
	case c.wish.since > 0 && now-c.wish.since >= quickFor:
		c.wish = quickWish{until: now + quickRest}
	case c.wish.since == 0 && now >= c.wish.until && !sure:
		c.wish = quickWish{since: now}
	}
	c.quick = c.wish.since > 0
}
