// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package benchpage

import (
	"fmt"
	"image/color"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// lineColors can be told apart by people who see few colours, too.
var lineColors = []color.Color{
	color.RGBA{0x00, 0x5f, 0xb0, 0xff}, color.RGBA{0xd5, 0x5e, 0x00, 0xff}, color.RGBA{0x00, 0x85, 0x60, 0xff},
	color.RGBA{0x99, 0x4f, 0x88, 0xff},
}

// Figure is one plot of parts over time, in percent.
type Figure struct {
	Title, Axis string // Axis: what the parts are of
	Length      time.Duration
	Ticks       time.Duration // between numbers below
	Minutes     bool          // the numbers below are minutes, else seconds
	Curves      []Curve
	Targets     []Target
	Bands       []Band
}

// Curve is one line of a plot. The first one is on top.
type Curve struct {
	Name   string
	Points []Point
}

// Point is a value at a time.
type Point struct {
	At    time.Duration
	Value float64 // 1: 100 %
}

// Target is a dashed line.
type Target struct {
	From, To time.Duration
	Value    float64
}

// Band is a thick line above the plot: a state that lasts for a while.
type Band struct {
	Name  string
	Spans [][2]time.Duration
}

const (
	legendTop  = 130 // percent; the legend is above the lines
	bandHeight = 106 // of the first band
	bandStep   = 6
)

// Draw writes the plot as SVG.
func (f Figure) Draw(path string) error {
	p := plot.New()
	p.Title.Text = f.Title
	p.Title.TextStyle.Font.Size = vg.Points(10)
	unit, name := time.Second, "seconds"
	if f.Minutes {
		unit, name = time.Minute, "minutes"
	}
	x := func(at time.Duration) float64 { return float64(at) / float64(unit) }
	p.X.Label.Text, p.Y.Label.Text = name, f.Axis
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, x(f.Length), 0, legendTop
	if len(f.Bands) > 0 {
		p.Y.Max = legendTop + 15
	}
	p.Y.Tick.Marker = plot.ConstantTicks([]plot.Tick{{Value: 0, Label: "0"}, {Value: 25, Label: "25"}, {Value: 50, Label: "50"},
		{Value: 75, Label: "75"}, {Value: 100, Label: "100"}})
	var ticks []plot.Tick
	for at := time.Duration(0); at <= f.Length; at += f.Ticks {
		ticks = append(ticks, plot.Tick{Value: x(at), Label: fmt.Sprint(x(at))})
	}
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.Legend.Top, p.Legend.TextStyle.Font.Size = true, vg.Points(9)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = nil, color.Gray{0xdd}
	p.Add(grid)
	for _, target := range f.Targets {
		line, err := plotter.NewLine(plotter.XYs{{X: x(target.From), Y: 100 * target.Value}, {X: x(target.To), Y: 100 * target.Value}})
		if err != nil {
			return fmt.Errorf("draw target: %w", err)
		}
		line.Color, line.Width, line.Dashes = color.Gray{0x66}, vg.Points(0.8), []vg.Length{vg.Points(3), vg.Points(3)}
		p.Add(line)
	}
	for i, c := range slices.Backward(f.Curves) {
		points := make(plotter.XYs, len(c.Points))
		for j, at := range c.Points {
			points[j] = plotter.XY{X: x(at.At), Y: 100 * at.Value}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("draw %s: %w", c.Name, err)
		}
		line.Color, line.Width = lineColors[i%len(lineColors)], vg.Points(1.2)
		p.Add(line)
		p.Legend.Add(c.Name, line)
	}
	for i, band := range f.Bands {
		for j, span := range band.Spans {
			height := float64(bandHeight + i*bandStep)
			line, err := plotter.NewLine(plotter.XYs{{X: x(span[0]), Y: height}, {X: x(span[1]), Y: height}})
			if err != nil {
				return fmt.Errorf("draw %s: %w", band.Name, err)
			}
			line.Color, line.Width = lineColors[(len(f.Curves)+i)%len(lineColors)], vg.Points(3)
			p.Add(line)
			if j == 0 {
				p.Legend.Add(band.Name, line)
			}
		}
	}
	return p.Save(18*vg.Centimeter, 8*vg.Centimeter, path)
}
