// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The looks at a card of the last two minutes, for the regression of its DRAM's counter on what its slices did.

package attribution

import "time"

const (
	lookBack   = 2 * time.Minute // of looks that are used
	windowRows = 640             // most of them
	lagStep    = 200 * time.Millisecond
	lagMost    = time.Second     // that the counter shows late what was launched
	gapHalf    = 5 * time.Second // of a look before the window, which its oldest looks are measured from
)

// Look is one look. It is not changed once it is made.
type Look struct {
	At     time.Duration
	Read   time.Duration // end of the counter's period
	Period time.Duration
	Value  float64 // of the counter
	Known  bool
	Keys   []string  // shared by rows with the same slices
	Used   []float64 // GPU time ever, in seconds, by slice
	Done   []float64 // the same, less what kernels lost meanwhile
	Blank  []bool    // by slice: what it did since the look before is not known; nil: none
	Copied float64   // bytes ever read and written by copies within the card
}

// Window is the looks of a window, in order. It is not changed once it is made.
type Window struct{ rows []*Look }

// NewestKeys are those of the newest look; nil: there is none. w may be nil.
func (w *Window) NewestKeys() []string {
	if w == nil || len(w.rows) == 0 {
		return nil
	}
	return w.rows[len(w.rows)-1].Keys
}

// With is the window with one more look, without those that are too old for it. w may be nil.
func (w *Window) With(row *Look) *Window {
	var rows []*Look
	if w != nil {
		rows = w.rows
	}
	for len(rows) > 0 && (row.At-rows[0].At > lookBack+lagMost+gapHalf || len(rows) >= windowRows) {
		rows = rows[1:]
	}
	next := make([]*Look, 0, len(rows)+1)
	return &Window{rows: append(append(next, rows...), row)}
}

// rowReader tells what slices did at a moment, from rows on both sides of it.
type rowReader struct {
	rows    []*Look
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
func (u *rowReader) place(row *Look) {
	if len(u.keys) > 0 && len(row.Keys) > 0 && &u.keys[0] == &row.Keys[0] {
		return
	}
	u.keys = row.Keys
	for i, key := range u.columns {
		u.at[i] = find(row.Keys, key)
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
	for u.index > 0 && u.rows[u.index-1].At >= at {
		u.index--
	}
	for u.index < len(u.rows) && u.rows[u.index].At < at {
		u.index++
	}
	switch {
	case u.index == len(u.rows):
		return false
	case u.rows[u.index].At == at:
		return u.between(u.rows[u.index], u.rows[u.index], 1, into)
	case u.index == 0:
		return false
	}
	before, after := u.rows[u.index-1], u.rows[u.index]
	return u.between(before, after, float64(at-before.At)/float64(after.At-before.At), into)
}

// between interpolates. A slice that is new had done nothing before; one that is gone has done nothing since.
func (u *rowReader) between(before, after *Look, part float64, into *standing) (ok bool) {
	u.place(after)
	for i, at := range u.at {
		into.used[i], into.done[i] = -1, -1
		if at < 0 {
			continue
		}
		if after.Blank != nil && after.Blank[at] {
			return false
		}
		into.used[i], into.done[i] = after.Used[at], after.Done[at]
	}
	u.place(before)
	for i, at := range u.at {
		used, done := 0.0, 0.0
		if at >= 0 {
			used, done = before.Used[at], before.Done[at]
		}
		if into.used[i] < 0 {
			into.used[i], into.done[i] = used, done
			continue
		}
		into.used[i] = used + part*(into.used[i]-used)
		into.done[i] = done + part*(into.done[i]-done)
	}
	into.copied = before.Copied + part*(after.Copied-before.Copied)
	return true
}
