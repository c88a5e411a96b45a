// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// format.go is how figures are spelled. What is not known is a dash, what no slice can be said to have caused a question
// mark; a zero is a zero.

package top

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/vgpud/vgpud/agent/control"
)

const (
	unknown      = "–"
	unattributed = "?"
)

// percent is a part of 1, such as 42%; below ten with one digit after the point.
func percent(part float64) string {
	p := part * 100
	switch {
	case math.IsNaN(p):
		return unknown
	case p > 0 && p < 0.05:
		return "0.1%" // a little is not nothing
	case math.Abs(p) < 9.95:
		return strconv.FormatFloat(p, 'f', 1, 64) + "%"
	}
	return strconv.FormatFloat(p, 'f', 0, 64) + "%"
}

func maybePercent(part *float64) string {
	if part == nil {
		return unknown
	}
	return percent(*part)
}

func figurePercent(figure *control.Figure) string {
	if figure == nil {
		return unknown
	}
	return percent(figure.Value)
}

// figureRate is bytes per second.
func figureRate(figure *control.Figure) string {
	if figure == nil {
		return unknown
	}
	return scaled(figure.Value)
}

func maybeRate(rate *float64) string {
	if rate == nil {
		return unknown
	}
	return scaled(*rate)
}

// scaled is a rate or a count with three digits and a decimal unit, such as 1.25G.
func scaled(value float64) string {
	return withUnit(value, 1000, []string{"", "k", "M", "G", "T", "P"})
}

// binary is an amount of memory with three digits, such as 3.91Gi.
func binary(bytes uint64) string {
	return withUnit(float64(bytes), 1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"})
}

func withUnit(value, step float64, units []string) string {
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		return unknown
	}
	unit := 0
	for value >= 999.5 && unit < len(units)-1 {
		value /= step
		unit++
	}
	digits := 0
	switch {
	case unit == 0 && value == math.Trunc(value):
	case value < 9.995:
		digits = 2
	case value < 99.95:
		digits = 1
	}
	return strconv.FormatFloat(value, 'f', digits, 64) + units[unit]
}

// part is a slice's part of a card's traffic with how sure that is.
func part(traffic []control.Traffic, resource string) string {
	for _, t := range traffic {
		if t.Resource != resource {
			continue
		}
		if !t.Known {
			return unattributed
		}
		return fmt.Sprintf("%s (%.1f)", percent(t.Ratio), t.Confidence)
	}
	return unknown
}

// ago is how long before now something was, such as 3m20s.
func ago(now, then time.Time) string {
	return span(now.Sub(then))
}

func span(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// counted is a number of things, such as 1 slice.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
