// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// Shares are drawn as moving means over this window.
const (
	drawWindow = 500 * time.Millisecond
	drawStep   = 100 * time.Millisecond
)

// lineColors are told apart by people who see few colours, too.
var lineColors = []color.Color{
	color.RGBA{0x00, 0x5f, 0xb0, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x85, 0x60, 0xff},
}

// plotName is the file of one record's plot.
func plotName(rowID, law, clock string) string {
	name := strings.NewReplacer("/", "-", "µ", "u", ".", "_", " ", "-").Replace("compute-" + rowID + "-" + law)
	if clock == clockReal {
		name += "-real"
	}
	return name + ".svg"
}

// drawAll draws the rows that are drawn.
func drawAll(dir string, records []record, rows []row) error {
	drawn := map[string]row{}
	for _, r := range rows {
		if r.plot {
			drawn[r.id] = r
		}
	}
	for _, r := range records {
		row, ok := drawn[r.Row]
		if !ok || r.err != nil {
			continue
		}
		if err := draw(filepath.Join(dir, plotName(r.Row, r.Law, r.Clock)), row, r); err != nil {
			return fmt.Errorf("draw %s: %w", r.Row, err)
		}
	}
	return nil
}

// draw draws each tenant's share over time, and its target.
func draw(path string, r row, result record) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s: %s (%s, %s time)", r.id, r.title, result.Law, result.Clock)
	p.Title.TextStyle.Font.Size = vg.Points(10)
	p.X.Label.Text, p.Y.Label.Text = "seconds", "share of the card, %"
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, r.scene.Length.Seconds(), 0, 105
	p.Legend.Top, p.Legend.TextStyle.Font.Size = true, vg.Points(9)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xdd}
	p.Add(grid)
	for i, t := range result.outcome.Tenants {
		if err := drawTenant(p, r.scene.Tenants[i].Name, t, targetsOf(r, i), lineColors[i%len(lineColors)]); err != nil {
			return err
		}
	}
	return p.Save(18*vg.Centimeter, 8*vg.Centimeter, path)
}

func drawTenant(p *plot.Plot, name string, t scene.Track, targets []scene.Span, c color.Color) error {
	var points plotter.XYs
	end := time.Duration(len(t.Used)-1) * t.Step
	for at := drawWindow; at <= end; at += drawStep {
		points = append(points, plotter.XY{X: (at - drawWindow/2).Seconds(), Y: 100 * t.Share(at-drawWindow, at)})
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(1.2)
	for _, span := range targets {
		target, err := plotter.NewLine(plotter.XYs{{X: span.From.Seconds(), Y: 100 * span.Targets[0]}, {X: span.To.Seconds(), Y: 100 * span.Targets[0]}})
		if err != nil {
			return err
		}
		target.Color, target.Width, target.Dashes = c, vg.Points(0.6), []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(target)
	}
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// targetsOf are the spans in which the tenant has a target, with that target alone.
func targetsOf(r row, tenant int) []scene.Span {
	var spans []scene.Span
	from := r.criteria.Means
	if r.criteria.BothOn != nil {
		from = r.criteria.BothOn
	}
	for _, span := range from {
		if target := span.Targets[tenant]; target >= 0 {
			spans = append(spans, scene.Span{From: span.From, To: span.To, Targets: []float64{target}})
		}
	}
	return spans
}

// plotList shows the plots that are there.
func plotList(dir string, rows []row) string {
	var b strings.Builder
	for _, r := range rows {
		if !r.plot {
			continue
		}
		for _, run := range runsOf(r) {
			name := plotName(r.id, run.law, run.clock)
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				fmt.Fprintf(&b, "![%s, %s, %s time](%s)\n\n", r.id, run.law, run.clock, name)
			}
		}
	}
	return b.String()
}
