// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The looks at a card of the last two minutes, for the regression of its DRAM's counter on what its slices did.

package contention

import (
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

const (
	lookBack   = 2 * time.Minute // of looks that are used
	windowRows = 640             // most of them
	lagStep    = 200 * time.Millisecond
	lagMost    = time.Second // that the counter shows late what was launched
)

// trafficRow is one look. It is not changed once it is made.
type trafficRow struct {
	at     time.Duration
	read   time.Duration // end of the counter's period
	period time.Duration
	value  float64 // of the counter
	known  bool
	keys   []string  // shared by rows with the same slices
	used   []float64 // GPU time ever, in seconds, by slice
	done   []float64 // the same, less what kernels lost meanwhile
	blank  []bool    // by slice: what it did since the look before is not known; nil: none
	copied float64   // bytes ever read and written by copies within the card
}

// trafficRows is the looks of a window, in order. It is not changed once it is made.
type trafficRows struct{ rows []*trafficRow }

// keepRow remembers a look at a card whose DRAM's counter is known.
func (c *cardTraffic) keepRow(l *look, device *monitor.Device) {
	if l.passed == 0 {
		c.rows = nil // the clock was set, or nobody looked for long
	}
	switch {
	case c.dram.known == 0 || len(c.slices) == 0 || c.sharing == monitor.SharingMIG || c.sharing == monitor.SharingExclusive:
		c.rows = nil
		return
	case c.rows == nil:
		c.rows = &trafficRows{}
	}
	both := make([]float64, 2*len(c.slices))
	row := &trafficRow{at: l.now, used: both[:len(c.slices)], done: both[len(c.slices):], copied: c.copied}
	if device != nil && c.dram.known == l.now {
		row.known, row.value = true, c.dram.last
		row.read, row.period = device.At, device.DRAM.Period
		if row.read <= 0 || row.read > l.now || l.now-row.read > gapMost {
			row.read = l.now
		}
		if row.period <= 0 || row.period > gapMost {
			row.period = l.passed
		}
	}
	rows := c.rows.rows
	same := len(rows) > 0 && len(rows[len(rows)-1].keys) == len(c.slices)
	for i := range c.slices {
		s := &c.slices[i]
		row.used[i], row.done[i] = s.used, s.done
		same = same && rows[len(rows)-1].keys[i] == s.key
		if !s.known || !s.charging && s.worked {
			if row.blank == nil {
				row.blank = make([]bool, len(c.slices))
			}
			row.blank[i] = true
		}
	}
	if same {
		row.keys = rows[len(rows)-1].keys
	} else {
		row.keys = make([]string, len(c.slices))
		for i := range c.slices {
			row.keys[i] = c.slices[i].key
		}
	}
	for len(rows) > 0 && (l.now-rows[0].at > lookBack+lagMost+gapMost/2 || len(rows) >= windowRows) {
		rows = rows[1:]
	}
	next := make([]*trafficRow, 0, len(rows)+1)
	c.rows = &trafficRows{rows: append(append(next, rows...), row)}
}

// rowReader tells what slices did at a moment, from rows on both sides of it.
type rowReader struct {
	rows    []*trafficRow
	columns []string // keys
	index   int      // of the first row at or after the last moment that was asked for
	at      []int    // where the columns are in the keys below
	keys    []string
}

// standing is what the columns had used and done at a time, ever.
type standing struct {
	used, done []float64
	copied     float64
}

// place finds where the columns are among a row's keys; both are sorted.
func (u *rowReader) place(row *trafficRow) {
	if len(u.keys) > 0 && len(row.keys) > 0 && &u.keys[0] == &row.keys[0] {
		return
	}
	u.keys = row.keys
	for i, key := range u.columns {
		u.at[i] = find(row.keys, key)
	}
}

func find(keys []string, key string) int {
	low, high := 0, len(keys)
	for low < high {
		middle := (low + high) / 2
		if keys[middle] < key {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low < len(keys) && keys[low] == key {
		return low
	}
	return -1
}

// upTo writes what each column had used and done at a time, and what was copied; times are asked for in rising order, within
// a step back of the last one. ok is false where that is not known.
func (u *rowReader) upTo(at time.Duration, into *standing) (ok bool) {
	for u.index > 0 && u.rows[u.index-1].at >= at {
		u.index--
	}
	for u.index < len(u.rows) && u.rows[u.index].at < at {
		u.index++
	}
	switch {
	case u.index == len(u.rows):
		return false
	case u.rows[u.index].at == at:
		return u.between(u.rows[u.index], u.rows[u.index], 1, into)
	case u.index == 0:
		return false
	}
	before, after := u.rows[u.index-1], u.rows[u.index]
	return u.between(before, after, float64(at-before.at)/float64(after.at-before.at), into)
}

// between interpolates. A slice that is new had done nothing before; one that is gone has done nothing since.
func (u *rowReader) between(before, after *trafficRow, part float64, into *standing) (ok bool) {
	u.place(after)
	for i, at := range u.at {
		into.used[i], into.done[i] = -1, -1
		if at < 0 {
			continue
		}
		if after.blank != nil && after.blank[at] {
			return false
		}
		into.used[i], into.done[i] = after.used[at], after.done[at]
	}
	u.place(before)
	for i, at := range u.at {
		used, done := 0.0, 0.0
		if at >= 0 {
			used, done = before.used[at], before.done[at]
		}
		if into.used[i] < 0 {
			into.used[i], into.done[i] = used, done
			continue
		}
		into.used[i] = used + part*(into.used[i]-used)
		into.done[i] = done + part*(into.done[i]-done)
	}
	into.copied = before.copied + part*(after.copied-before.copied)
	return true
}
