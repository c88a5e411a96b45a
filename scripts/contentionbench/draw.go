// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The plots: what the victim truly loses, its pressure, and above them when each rule held the card to be contended.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vgpud/vgpud/scripts/benchpage"
)

// shownRules are the bands of a plot.
var shownRules = []string{ruleDefault, ruleFast, ruleShort, rule20}

// plotName is the file of a row's plot.
func plotName(r row) string {
	return benchpage.FileName("contention-"+r.id) + ".svg"
}

// figure is the plot of a run.
func (o outcome) figure(clock string) benchpage.Figure {
	f := benchpage.Figure{Title: fmt.Sprintf("%s: %s (%s time)", o.row.id, o.row.title, clock), Axis: "lost by the victim, %", Length: o.length,
		Ticks: 10 * time.Minute, Minutes: true}
	if o.length < 20*time.Minute {
		f.Ticks = time.Minute
	}
	truly := benchpage.Curve{Name: "truly lost"}
	avg10, avg60 := benchpage.Curve{Name: "avg10"}, benchpage.Curve{Name: "avg60"}
	for _, p := range o.points {
		truly.Points = append(truly.Points, benchpage.Point{At: p.at, Value: p.true})
		avg10.Points = append(avg10.Points, benchpage.Point{At: p.at, Value: p.avg10})
		avg60.Points = append(avg60.Points, benchpage.Point{At: p.at, Value: p.avg60})
	}
	f.Curves = []benchpage.Curve{avg60, avg10, truly}
	if o.real {
		twin := benchpage.Curve{Name: "avg10, virtual time"}
		for _, p := range o.twin {
			twin.Points = append(twin.Points, benchpage.Point{At: p.at, Value: p.avg10})
		}
		f.Curves = []benchpage.Curve{avg60, avg10, twin}
	}
	f.Targets = []benchpage.Target{{From: 0, To: o.length, Value: 0.25}, {From: 0, To: o.length, Value: 0.12}}
	for _, name := range shownRules {
		band := benchpage.Band{Name: name}
		for _, e := range o.episodes[name] {
			to := e.to
			if to == 0 {
				to = o.length
			}
			band.Spans = append(band.Spans, [2]time.Duration{e.from, to})
		}
		f.Bands = append(f.Bands, band)
	}
	return f
}

// drawAll draws what was run of the rows that are drawn.
func drawAll(dir string, shown []outcome) error {
	for _, o := range shown {
		clock := clockVirtual
		if o.real {
			clock = clockReal
		}
		if !o.row.plot || len(o.points) == 0 {
			continue
		}
		if err := o.figure(clock).Draw(filepath.Join(dir, plotName(o.row))); err != nil {
			return fmt.Errorf("draw %s: %w", o.row.id, err)
		}
	}
	return nil
}

// plotList shows the plots that are there.
func plotList(dir string, rows []row) string {
	var b strings.Builder
	for _, r := range rows {
		name := plotName(r)
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil && r.plot {
			fmt.Fprintf(&b, "![%s](%s)\n\n", r.id, name)
		}
	}
	return strings.TrimSpace(b.String()) + "\n"
}
