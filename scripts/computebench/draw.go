// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The plots: shares over time. A row of one tenant has one plot with a line for each law, one of several tenants a plot
// for each law.

package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
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
	drawStep   = 200 * time.Millisecond
)

// lineColors can be told apart by people who see few colours, too.
var lineColors = []color.Color{
	color.RGBA{0x00, 0x5f, 0xb0, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x85, 0x60, 0xff},
}

// curve is one line of a plot.
type curve struct {
	name  string
	track scene.Track
}

// figure is one plot.
type figure struct {
	file, title string
	length      time.Duration
	curves      []curve
	targets     []scene.Span // with one target each
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
		f := figure{file: plotName(r, run), title: fmt.Sprintf("%s: %s (%s time)", r.id, r.title, run.clock), length: shown.scene.Length}
		if len(r.scene.Tenants) > 1 {
			f.title = fmt.Sprintf("%s: %s (%s, %s time)", r.id, r.title, run.law, run.clock)
		}
		for i := range r.scene.Tenants {
			f.targets = append(f.targets, targetsOf(shown, i)...)
		}
		for number, t := range records[i].outcome.Tenants {
			name := run.law
			if len(r.scene.Tenants) > 1 {
				name = r.scene.Tenants[number].Name
			}
			f.curves = append(f.curves, curve{name, t})
		}
		if last := len(figures) - 1; last >= 0 && figures[last].file == f.file {
			figures[last].curves = append(figures[last].curves, f.curves...)
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
	return strings.NewReplacer("/", "-", "µ", "u", ".", "_", " ", "-").Replace(name) + ".svg"
}

// targetsOf are the spans in which the tenant has a target, with that target alone.
func targetsOf(r row, tenant int) []scene.Span {
	from := r.criteria.Means
	if r.criteria.BothOn != nil {
		from = r.criteria.BothOn
	}
	var spans []scene.Span
	for _, s := range from {
		if target := s.Targets[tenant]; target >= 0 {
			spans = append(spans, scene.Span{From: s.From, To: s.To, Targets: []float64{target}})
		}
	}
	return spans
}

// drawAll draws the rows that are drawn.
func drawAll(dir string, records []record, rows []row) error {
	for _, r := range rows {
		if !r.plot {
			continue
		}
		for _, f := range figuresOf(r, records) {
			if err := f.draw(filepath.Join(dir, f.file)); err != nil {
				return fmt.Errorf("draw %s: %w", r.id, err)
			}
		}
	}
	return nil
}

func (f figure) draw(path string) error {
	p := plot.New()
	p.Title.Text = f.title
	p.Title.TextStyle.Font.Size = vg.Points(10)
	p.X.Label.Text, p.Y.Label.Text = "seconds", "share of the card, %"
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, f.length.Seconds(), 0, 130 // the legend is above the lines
	p.Y.Tick.Marker = plot.ConstantTicks([]plot.Tick{{Value: 0, Label: "0"}, {Value: 25, Label: "25"}, {Value: 50, Label: "50"},
		{Value: 75, Label: "75"}, {Value: 100, Label: "100"}})
	var seconds []plot.Tick
	for at := time.Duration(0); at <= f.length; at += 10 * time.Second {
		seconds = append(seconds, plot.Tick{Value: at.Seconds(), Label: fmt.Sprint(at.Seconds())})
	}
	p.X.Tick.Marker = plot.ConstantTicks(seconds)
	p.Legend.Top, p.Legend.TextStyle.Font.Size = true, vg.Points(9)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xdd}
	p.Add(grid)
	for _, target := range f.targets {
		line, err := plotter.NewLine(plotter.XYs{{X: target.From.Seconds(), Y: 100 * target.Targets[0]}, {X: target.To.Seconds(), Y: 100 * target.Targets[0]}})
		if err != nil {
			return err
		}
		line.Color, line.Width, line.Dashes = color.Gray{0x66}, vg.Points(0.8), []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line)
	}
	for i, c := range slices.Backward(f.curves) { // the first one is on top
		line, err := plotter.NewLine(c.points(f.length))
		if err != nil {
			return err
		}
		line.Color, line.Width = lineColors[i%len(lineColors)], vg.Points(1.2)
		p.Add(line)
		p.Legend.Add(c.name, line)
	}
	return p.Save(18*vg.Centimeter, 8*vg.Centimeter, path)
}

func (c curve) points(length time.Duration) plotter.XYs {
	var points plotter.XYs
	for at := drawWindow; at <= length; at += drawStep {
		points = append(points, plotter.XY{X: (at - drawWindow/2).Seconds(), Y: 100 * c.track.Share(at-drawWindow, at)})
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
