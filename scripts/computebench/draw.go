// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The plots: shares over time. A row of one tenant has one plot with a line for each law, one of several tenants a plot
// for each law.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/scripts/benchpage"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// Shares are drawn as moving means over this window.
const (
	drawWindow = 500 * time.Millisecond
	drawStep   = 200 * time.Millisecond
)

// figure is one plot and its file.
type figure struct {
	file string
	benchpage.Figure
}

// figuresOf are the plots of a row that its records have outcomes for.
func figuresOf(r row, records []record) []figure {
	var figures []figure
	for _, run := range runsOf(r) {
		i := slices.IndexFunc(records, func(rec record) bool {
			return rec.Row == r.id && rec.Kind == run.kind && rec.Law == run.law && rec.Clock == run.clock && len(rec.outcome.Tenants) > 0
		})
		if i < 0 {
			continue
		}
		shown := r
		if run.clock == clockReal {
			shown = r.shortened()
		}
		f := figure{plotName(r, run), benchpage.Figure{Title: fmt.Sprintf("%s: %s (%s time)", r.id, r.title, run.clock),
			Axis: "share of the card, %", Length: shown.scene.Length, Ticks: 10 * time.Second}}
		if len(r.scene.Tenants) > 1 {
			f.Title = fmt.Sprintf("%s: %s (%s, %s time)", r.id, r.title, run.law, run.clock)
		}
		for i := range r.scene.Tenants {
			f.Targets = append(f.Targets, targetsOf(shown, i)...)
		}
		for number, t := range records[i].outcome.Tenants {
			name := run.law
			if len(r.scene.Tenants) > 1 {
				name = r.scene.Tenants[number].Name
			}
			f.Curves = append(f.Curves, benchpage.Curve{Name: name, Points: points(t, f.Length)})
		}
		if last := len(figures) - 1; last >= 0 && figures[last].file == f.file {
			figures[last].Curves = append(figures[last].Curves, f.Curves...)
			continue
		}
		figures = append(figures, f)
	}
	return figures
}

// plotName is the file of the plot that shows a run.
func plotName(r row, run runKind) string {
	name := "compute-" + r.id
	if len(r.scene.Tenants) > 1 {
		name += "-" + run.law
	}
	if run.clock == clockReal {
		name += "-real"
	}
	return benchpage.FileName(name) + ".svg"
}

// targetsOf are the spans in which the tenant has a target.
func targetsOf(r row, tenant int) []benchpage.Target {
	from := r.criteria.Means
	if r.criteria.BothOn != nil {
		from = r.criteria.BothOn
	}
	var targets []benchpage.Target
	for _, s := range from {
		if target := s.Targets[tenant]; target >= 0 {
			targets = append(targets, benchpage.Target{From: s.From, To: s.To, Value: target})
		}
	}
	return targets
}

// drawAll draws the rows that are drawn.
func drawAll(dir string, records []record, rows []row) error {
	for _, r := range rows {
		if !r.plot {
			continue
		}
		for _, f := range figuresOf(r, records) {
			if err := f.Draw(filepath.Join(dir, f.file)); err != nil {
				return fmt.Errorf("draw %s: %w", r.id, err)
			}
		}
	}
	return nil
}

// points are a track's moving means.
func points(t scene.Track, length time.Duration) []benchpage.Point {
	var points []benchpage.Point
	for at := drawWindow; at <= length; at += drawStep {
		points = append(points, benchpage.Point{At: at - drawWindow/2, Value: t.Share(at-drawWindow, at)})
	}
	return points
}

// plotList shows the plots that are there.
func plotList(dir string, rows []row) string {
	var b strings.Builder
	shown := map[string]bool{}
	for _, r := range rows {
		if !r.plot {
			continue
		}
		for _, run := range runsOf(r) {
			name := plotName(r, run)
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil || shown[name] {
				continue
			}
			shown[name] = true
			fmt.Fprintf(&b, "![%s, %s time](%s)\n\n", r.id, run.clock, name)
		}
	}
	return strings.TrimSpace(b.String()) + "\n"
}
