// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// detail.go is everything that is known of one card or slice, as lines of a label and a text.

package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/vgpud/vgpud/agent/control"
)

const labelWidth = 13

// detail collects lines.
type detail struct {
	width int
	lines []string
}

// add puts text after a label, on as many lines as it needs. An empty text is left out.
func (d *detail) add(label, text string) {
	if text == "" {
		return
	}
	for line := range strings.SplitSeq(ansi.Wrap(text, max(10, d.width-labelWidth), ""), "\n") {
		d.lines = append(d.lines, fmt.Sprintf("%-*s%s", labelWidth, label, line))
		label = ""
	}
}

// gpuDetail is what is known of a card.
func gpuDetail(view *control.View, gpu *control.GPU, width int) []string {
	d := &detail{width: width}
	d.add(fmt.Sprintf("GPU %d", gpu.Index), gpu.Model+", "+gpu.UUID)
	d.add("health", healthText(view.Time, gpu.Health))
	if e := gpu.Evidence; e != nil {
		d.add("evidence", fmt.Sprintf("%s, %s ago: %s", map[bool]string{true: "contended", false: "no longer contended"}[e.Contended],
			ago(view.Time, e.Time), evidenceText(view, e)))
	}
	d.add("contention", contentionText(view, gpu))
	d.add("note", gpu.Note)
	d.add("memory", fmt.Sprintf("used %s of %s; granted %s of %s", binary(gpu.MemoryUsedBytes), binary(gpu.MemoryTotalBytes),
		binary(gpu.MemoryHeldBytes), binary(gpu.MemoryUsableBytes)))
	d.add("slices", fmt.Sprintf("%d free, %d allocated, %d withdrawn", gpu.Slices.Free, gpu.Slices.Allocated, gpu.Slices.Withdrawn))
	d.add("load", loadText(gpu))
	d.add("link", gpu.Link)
	d.add("throttled", strings.Join(gpu.Throttle, ", "))
	d.addPressures(gpu.Pressures)
	for _, rest := range gpu.Unattributed {
		d.add("unattributed", trafficText(rest))
	}
	return d.lines
}

// healthText says how a card is, since when and why.
func healthText(now time.Time, health control.Health) string {
	text := health.Reason
	if health.Since != nil {
		text += " for " + ago(now, *health.Since)
	}
	if health.Hard {
		text += "; allocated slices too"
	}
	if health.Detail != "" {
		text += ": " + health.Detail
	}
	return text
}

// evidenceText is the agent's own text, which names the tenants; without one the figures, and the names as people have them.
func evidenceText(view *control.View, e *control.Evidence) string {
	if e.Text != "" {
		return e.Text
	}
	text := fmt.Sprintf("%s avg10 %s avg60 %s, card at %s, baseline of %d samples", e.Resource, percent(e.Avg10), percent(e.Avg60),
		percent(e.DeviceRatio), e.Samples)
	if e.Victim != "" {
		text += "; victim " + nameOf(view, e.Victim)
	}
	if e.Antagonist != "" {
		text += fmt.Sprintf("; antagonist %s (confidence %.2f)", nameOf(view, e.Antagonist), e.Confidence)
	}
	return text
}

func nameOf(view *control.View, allocation string) string {
	for i := range view.Slices {
		if view.Slices[i].Allocation == allocation {
			return sliceRow{Slice: &view.Slices[i]}.name()
		}
	}
	return "allocation " + allocation
}

func contentionText(view *control.View, gpu *control.GPU) string {
	if view.Contention.Mode == "off" {
		return "not looked for"
	}
	sharing := "shared in an unknown way"
	if gpu.Sharing != "" {
		sharing = gpu.Sharing
	}
	if len(gpu.Possible) == 0 {
		return sharing + "; cannot be told on any resource"
	}
	return sharing + "; can be told on " + strings.Join(gpu.Possible, ", ")
}

// loadText has each figure with the time that it is a mean over.
func loadText(gpu *control.GPU) string {
	var parts []string
	add := func(name string, figure *control.Figure, spell func(*control.Figure) string) {
		if figure == nil {
			return
		}
		text := strings.TrimSpace(name + " " + spell(figure))
		if figure.PeriodSeconds > 0 {
			text += fmt.Sprintf(" (%s)", time.Duration(figure.PeriodSeconds*float64(time.Second)).Round(time.Millisecond))
		}
		parts = append(parts, text)
	}
	rate := func(f *control.Figure) string { return figureRate(f) + "B/s" }
	add("busy", gpu.BusyRatio, figurePercent)
	add("DRAM", gpu.DRAMRatio, figurePercent)
	add("PCIe to card", gpu.PCIeRXRatio, figurePercent)
	add("", gpu.PCIeRXBytesPerSec, rate)
	add("PCIe to host", gpu.PCIeTXRatio, figurePercent)
	add("", gpu.PCIeTXBytesPerSec, rate)
	add("NVLink in", gpu.NVLinkRXBytesPerSec, rate)
	add("NVLink out", gpu.NVLinkTXBytesPerSec, rate)
	if len(parts) == 0 {
		return "not known"
	}
	return strings.Join(parts, ", ")
}

// addPressures puts pressures as the kernel's pressure files do: percents of the time, and microseconds in all.
func (d *detail) addPressures(pressures []control.Pressure) {
	for _, pressure := range pressures {
		for _, kind := range []struct {
			name string
			of   control.Averages
		}{{"some", pressure.Some}, {"full", pressure.Full}} {
			d.add(pressure.Resource, fmt.Sprintf("%s avg10=%.2f avg60=%.2f avg300=%.2f total=%.0f", kind.name, 100*kind.of.Avg10,
				100*kind.of.Avg60, 100*kind.of.Avg300, 1e6*kind.of.TotalSeconds))
		}
	}
}

func trafficText(t control.Traffic) string {
	if !t.Known {
		return t.Resource + " unattributed: " + or(t.Why, "no reason is given")
	}
	text := fmt.Sprintf("%s %s, confidence %.2f", t.Resource, percent(t.Ratio), t.Confidence)
	if t.BytesPerSec > 0 {
		text += ", " + scaled(t.BytesPerSec) + "B/s"
	}
	if t.Why != "" {
		text += "; " + t.Why
	}
	return text
}

// sliceDetail is what is known of a slice.
func sliceDetail(r sliceRow, width int) []string {
	d := &detail{width: width}
	d.add("slice", r.name())
	d.add("allocation", fmt.Sprintf("%s, %s old, GPU %s, %s", r.Allocation, span(time.Duration(r.AllocationAgeSeconds*float64(time.Second))),
		r.gpuName(), strings.Join(r.SliceIDs, " ")))
	d.add("pod", r.PodUID)
	if len(r.Verdicts) == 0 {
		d.add("verdict", "ok")
	}
	for _, verdict := range r.Verdicts {
		d.add("verdict", verdict.Kind+": "+or(verdict.Why, "no reason is given"))
	}
	if r.Pages != "readable" {
		d.add("pages", r.Pages)
	}
	d.add("memory", memoryText(r))
	d.add("GPU time", timeText(r))
	d.add("copies", fmt.Sprintf("to card %s, to host %s, within %s, to other cards %s (bytes/s)", maybeRate(r.HostToDeviceRate),
		maybeRate(r.DeviceToHostRate), maybeRate(r.DeviceToDeviceRate), maybeRate(r.PeerToPeerRate)))
	for _, t := range r.Traffic {
		d.add("traffic", trafficText(t))
	}
	d.add("self-limited", strings.Join(r.SelfLimited, ", "))
	d.addPressures(r.Pressures)
	return d.lines
}

func memoryText(r sliceRow) string {
	text := fmt.Sprintf("limit %s, refused %d times", binary(r.MemoryLimitBytes), r.MemoryRefusals)
	if r.MemoryUsedBytes == nil {
		return "not known; " + text
	}
	return "used " + binary(*r.MemoryUsedBytes) + "; " + text
}

func timeText(r sliceRow) string {
	var text string
	if r.ComputeMode == "none" {
		text = "not limited; used " + maybePercent(r.ShareUsed)
	} else {
		text = fmt.Sprintf("%s; granted %s, at most %s, in force %s, used %s, launches waited %s of the time", r.ComputeMode,
			percent(r.ShareGranted), percent(r.ShareCeiling), maybePercent(r.ShareRate), maybePercent(r.ShareUsed), maybePercent(r.ThrottledRatio))
	}
	if r.CutRatio != nil {
		text += "; cut to " + percent(*r.CutRatio) + " of it"
	}
	text += fmt.Sprintf("; %s launches/s, waited for the card %s of the time", maybeRate(r.LaunchesPerSecond), maybePercent(r.SyncStalledRatio))
	return text
}
