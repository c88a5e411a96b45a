// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The regression of the DRAM's counter, set up from the looks of a window.

package attribution

import (
	"math"
	"time"
)

// problem is the regression for one lag.
type problem struct {
	*normal         // by what was done
	times   *normal // by GPU time
	lag     time.Duration
	columns []string
	copies  bool    // the last column but one is of copies
	idle    float64 // the counter's sum in rows in which nobody was active
	idles   int     // such rows

	from, until time.Duration // of the rows
	active      []int
	sum         []float64 // of activity
	overlap     float64
	mean        float64 // of the counter
}

// leaves is how much per row the best coefficients leave.
func (n *normal) leaves() float64 {
	if n.weight == 0 {
		return math.Inf(1)
	}
	return n.residual(n.solve()) / n.weight
}

// setUp makes the regression of the counter on what slices did so much earlier. Columns: the slices, copies, and one that is
// always 1.
func (w *Window) setUp(columns []string, lag time.Duration) *problem {
	count := len(columns)
	size := count + 2
	made := &problem{normal: newNormal(size), times: newNormal(size), columns: columns, active: make([]int, count),
		sum: make([]float64, count), lag: lag}
	begins := rowReader{rows: w.rows, columns: columns, at: make([]int, count)}
	ends := rowReader{rows: w.rows, columns: columns, at: make([]int, count)}
	room := make([]float64, 2*size+2*count)
	to := standing{done: room[:size], used: room[size : 2*size]}
	from := standing{done: room[2*size : 2*size+count], used: room[2*size+count:]}
	newest := w.rows[len(w.rows)-1].At
	for _, look := range w.rows {
		if !look.Known || look.Read < newest-lookBack || !begins.upTo(look.Read-look.Period-lag, &from) ||
			!ends.upTo(look.Read-lag, &to) {
			continue
		}
		made.take(look, &from, &to)
	}
	made.mirror()
	made.times.mirror()
	if made.weight > 0 {
		made.overlap /= made.weight
		made.mean /= made.weight
	}
	return made
}

// take takes in a look; to becomes the row.
func (p *problem) take(look *Look, from, to *standing) {
	span := look.Period.Seconds()
	active, busy := 0, 0.0
	for i := range p.columns {
		to.used[i] = max(0, (to.used[i]-from.used[i])/span)
		to.done[i] = max(0, (to.done[i]-from.done[i])/span)
		busy += to.used[i]
		if to.used[i] > activeRow {
			p.active[i]++
		}
		if to.used[i] > IdleRow {
			active++
		}
	}
	copied := max(0, to.copied-from.copied) / span / copyScale
	p.copies = p.copies || copied > 0
	for _, row := range [][]float64{to.used, to.done} {
		row[p.size-2], row[p.size-1] = copied, 1
	}
	weight := 1.0
	switch active {
	case 0:
		p.idle += look.Value
		p.idles++
	case 1:
		weight = oneRow
	}
	p.add(to.done, look.Value, weight)
	p.times.add(to.used, look.Value, weight)
	for i := range p.columns {
		p.sum[i] += weight * to.used[i]
	}
	if p.from == 0 {
		p.from = look.Read
	}
	p.until = look.Read
	p.overlap += weight * max(0, busy-1)
	p.mean += weight * look.Value
}

// copyScale makes the column of copies about as large as the others.
const copyScale = 1e12
