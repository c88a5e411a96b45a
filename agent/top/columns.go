// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package top

import (
	"fmt"
	"strings"

	"github.com/vgpud/vgpud/agent/control"
)

// From these parts on a figure is coloured.
const (
	warnLoad, badLoad         = 0.8, 0.95 // of what a card can do
	warnPressure, badPressure = 0.1, 0.25 // of the time
)

// gpuColumns are the columns of the upper table.
func gpuColumns() []column[gpuRow] {
	load := func(figure *control.Figure) cell {
		c := cell{text: figurePercent(figure)}
		if figure != nil {
			c.tone = graded(figure.Value, warnLoad, badLoad)
		}
		return c
	}
	return []column[gpuRow]{
		{"GPU", 3, 100, false, 0, func(r gpuRow) cell { return cell{text: fmt.Sprint(r.Index)} }},
		{"MODEL", 12, 20, true, 32, func(r gpuRow) cell { return cell{text: r.Model} }},
		{"USED", 6, 90, false, 0, func(r gpuRow) cell { return cell{text: binary(r.MemoryUsedBytes)} }},
		{"HELD", 6, 55, false, 0, func(r gpuRow) cell { return cell{text: binary(r.MemoryHeldBytes)} }},
		{"USABLE", 6, 60, false, 0, func(r gpuRow) cell { return cell{text: binary(r.MemoryUsableBytes)} }},
		{"BUSY", 5, 80, false, 0, func(r gpuRow) cell { return cell{text: figurePercent(r.BusyRatio)} }},
		{"DRAM", 5, 75, false, 0, func(r gpuRow) cell { return load(r.DRAMRatio) }},
		{"PCIe>", 5, 70, false, 0, func(r gpuRow) cell { return load(r.PCIeRXRatio) }},
		{"PCIe<", 5, 69, false, 0, func(r gpuRow) cell { return load(r.PCIeTXRatio) }},
		{"RX/s", 5, 15, false, 0, func(r gpuRow) cell { return cell{text: figureRate(r.PCIeRXBytesPerSec)} }},
		{"TX/s", 5, 14, false, 0, func(r gpuRow) cell { return cell{text: figureRate(r.PCIeTXBytesPerSec)} }},
		{"SHARING", 11, 30, true, 0, func(r gpuRow) cell { return cell{text: or(r.Sharing, unknown)} }},
		{"FREE", 4, 50, false, 0, func(r gpuRow) cell { return cell{text: fmt.Sprint(r.Slices.Free)} }},
		{"ALLOC", 5, 49, false, 0, func(r gpuRow) cell { return cell{text: fmt.Sprint(r.Slices.Allocated)} }},
		{"WITHDR", 6, 48, false, 0, func(r gpuRow) cell {
			c := cell{text: fmt.Sprint(r.Slices.Withdrawn)}
			if r.Slices.Withdrawn > 0 {
				c.tone = warning
			}
			return c
		}},
		{"PRESSURE", 12, 40, false, 0, func(r gpuRow) cell { return pressureCell(r.Pressures) }},
		{"HEALTH", 16, 95, true, 40, func(r gpuRow) cell { return healthCell(r.GPU) }},
	}
}

// sliceColumns are the columns of the lower table. The titles are those of orders.
func sliceColumns() []column[sliceRow] {
	return []column[sliceRow]{
		{"GPU", 4, 85, false, 0, func(r sliceRow) cell { return cell{text: r.gpuName()} }},
		{"SLICE", 20, 100, true, 60, func(r sliceRow) cell { return cell{text: r.name()} }},
		{"MEMORY", 7, 90, false, 0, memoryCell},
		{"LIMIT", 6, 65, false, 0, func(r sliceRow) cell { return cell{text: binary(r.MemoryLimitBytes)} }},
		{"SHARE", 5, 80, false, 0, usedCell},
		{"RATE", 5, 25, false, 0, rateCell},
		{"GRANT", 5, 75, false, 0, func(r sliceRow) cell {
			if r.ComputeMode == "none" {
				return cell{unknown, faint}
			}
			return cell{text: percent(r.ShareGranted)}
		}},
		{"WAIT", 5, 60, false, 0, func(r sliceRow) cell { return cell{text: maybePercent(r.ThrottledRatio)} }},
		{"LAUNCH/s", 9, 35, false, 0, func(r sliceRow) cell { return cell{text: maybeRate(r.LaunchesPerSecond)} }},
		{"DRAM", 10, 58, false, 0, func(r sliceRow) cell { return partCell(r, "dram") }},
		{"PCIe>", 10, 56, false, 0, func(r sliceRow) cell { return partCell(r, "pcie_rx") }},
		{"PCIe<", 10, 54, false, 0, func(r sliceRow) cell { return partCell(r, "pcie_tx") }},
		{"H>D/s", 6, 22, false, 0, func(r sliceRow) cell { return cell{text: maybeRate(r.HostToDeviceRate)} }},
		{"D>H/s", 6, 21, false, 0, func(r sliceRow) cell { return cell{text: maybeRate(r.DeviceToHostRate)} }},
		{"D>D/s", 6, 10, false, 0, func(r sliceRow) cell { return cell{text: maybeRate(r.DeviceToDeviceRate)} }},
		{"PRESSURE", 12, 62, false, 0, func(r sliceRow) cell { return pressureCell(r.Pressures) }},
		{"VERDICT", 14, 95, true, 60, verdictCell},
	}
}

func graded(value, warn, worst float64) tone {
	switch {
	case value >= worst:
		return bad
	case value >= warn:
		return warning
	}
	return plain
}

func or(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}

func healthCell(gpu *control.GPU) cell {
	switch {
	case gpu.Health.Healthy && gpu.Contended:
		return cell{"ok, contended", warning}
	case gpu.Health.Healthy:
		return cell{"ok", good}
	case gpu.Health.Hard:
		return cell{gpu.Health.Reason, bad}
	}
	return cell{gpu.Health.Reason, warning}
}

// pressureCell is the resource on which most time is lost.
func pressureCell(pressures []control.Pressure) cell {
	if len(pressures) == 0 {
		return cell{unknown, faint}
	}
	resource, lost := worst(pressures)
	if resource == "" {
		return cell{text: "0"}
	}
	return cell{resource + " " + percent(lost), graded(lost, warnPressure, badPressure)}
}

func partCell(r sliceRow, resource string) cell {
	text := part(r.Traffic, resource)
	if text == unattributed || text == unknown {
		return cell{text, faint}
	}
	return cell{text: text}
}

func memoryCell(r sliceRow) cell {
	if r.MemoryUsedBytes == nil {
		return cell{unknown, warning}
	}
	c := cell{text: binary(*r.MemoryUsedBytes)}
	switch used := *r.MemoryUsedBytes; {
	case used > r.MemoryLimitBytes:
		c.tone = bad
	case used >= r.MemoryLimitBytes-r.MemoryLimitBytes/10:
		c.tone = warning
	}
	return c
}

func usedCell(r sliceRow) cell {
	c := cell{text: maybePercent(r.ShareUsed)}
	if hasVerdict(r, control.VerdictOverShare) {
		c.tone = bad
	}
	return c
}

// rateCell is the share in force: more than the grant where time is lent.
func rateCell(r sliceRow) cell {
	c := cell{text: maybePercent(r.ShareRate)}
	if r.CutRatio != nil {
		c.tone = warning
	}
	return c
}

func hasVerdict(r sliceRow, kind string) bool {
	for _, verdict := range r.Verdicts {
		if verdict.Kind == kind {
			return true
		}
	}
	return false
}

func verdictCell(r sliceRow) cell {
	kinds := r.kinds()
	switch {
	case kinds == "":
		return cell{"ok", good}
	case kinds == control.VerdictHeld:
		return cell{kinds, plain} // what shares are for
	case strings.Contains(kinds, "over-") || strings.Contains(kinds, control.VerdictTampered) || strings.Contains(kinds, control.VerdictFrozen):
		return cell{kinds, bad}
	}
	return cell{kinds, warning}
}
