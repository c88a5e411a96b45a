// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// rows.go has the rows of the two tables, which of them are shown, and in which order.

package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vgpud/vgpud/agent/control"
)

// gpuRow is one line of the upper table.
type gpuRow struct {
	*control.GPU
}

func (r gpuRow) id() string { return r.UUID }

// sliceRow is one line of the lower table.
type sliceRow struct {
	*control.Slice
	gpu *control.GPU // nil: the view has no such card
}

func (r sliceRow) id() string { return r.Allocation + " " + r.GPUUUID }

// name is what people call it: the container, or its allocation until the container is known.
func (r sliceRow) name() string {
	if r.Pod == "" && r.Namespace == "" {
		if r.PodUID != "" {
			return "pod " + r.PodUID
		}
		return "allocation " + r.Allocation
	}
	return r.Namespace + "/" + r.Pod + "/" + r.Container
}

func (r sliceRow) gpuName() string {
	if r.gpu == nil {
		return r.GPUUUID
	}
	return fmt.Sprint(r.gpu.Index)
}

// worst is the resource on which most time is lost now, other than time itself, and how much of it.
func worst(pressures []control.Pressure) (resource string, lost float64) {
	for _, pressure := range pressures {
		if pressure.Resource == "time" {
			continue
		}
		if p := max(pressure.Full.Avg10, pressure.Some.Avg10); p > lost {
			resource, lost = pressure.Resource, p
		}
	}
	return resource, lost
}

func ratioOf(traffic []control.Traffic, resource string) float64 {
	for _, t := range traffic {
		if t.Resource == resource && t.Known {
			return t.Ratio
		}
	}
	return -1
}

func valueOf(p *float64) float64 {
	if p == nil {
		return -1
	}
	return *p
}

// gpuRows are the cards, by index.
func gpuRows(view *control.View) []gpuRow {
	var rows []gpuRow
	for i := range view.GPUs {
		rows = append(rows, gpuRow{&view.GPUs[i]})
	}
	slices.SortStableFunc(rows, func(a, b gpuRow) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), strings.Compare(a.UUID, b.UUID))
	})
	return rows
}

// order is a way to sort slices. The greatest comes first where more is worse.
type order struct {
	name    string // as in the title of the column
	compare func(a, b sliceRow) int
}

// more orders by a figure, the greatest first.
func more(figure func(sliceRow) float64) func(a, b sliceRow) int {
	return func(a, b sliceRow) int { return cmp.Compare(figure(b), figure(a)) }
}

// orders are all ways to sort, the first one at start.
func orders() []order {
	return []order{
		{"GPU", func(a, b sliceRow) int { return 0 }},
		{"SLICE", func(a, b sliceRow) int { return strings.Compare(a.name(), b.name()) }},
		{"MEMORY", more(func(r sliceRow) float64 {
			if r.MemoryUsedBytes == nil {
				return -1
			}
			return float64(*r.MemoryUsedBytes)
		})},
		{"SHARE", more(func(r sliceRow) float64 { return valueOf(r.ShareUsed) })},
		{"WAIT", more(func(r sliceRow) float64 { return valueOf(r.ThrottledRatio) })},
		{"LAUNCH/s", more(func(r sliceRow) float64 { return valueOf(r.LaunchesPerSecond) })},
		{"DRAM", more(func(r sliceRow) float64 { return ratioOf(r.Traffic, "dram") })},
		{"PCIe>", more(func(r sliceRow) float64 { return ratioOf(r.Traffic, "pcie_rx") })},
		{"PCIe<", more(func(r sliceRow) float64 { return ratioOf(r.Traffic, "pcie_tx") })},
		{"PRESSURE", more(func(r sliceRow) float64 { _, lost := worst(r.Pressures); return lost })},
		{"VERDICT", func(a, b sliceRow) int { return cmp.Compare(len(b.Verdicts), len(a.Verdicts)) }},
	}
}

// sliceRows are the slices that match the filter, in order.
func sliceRows(view *control.View, by order, reverse bool, filter string) []sliceRow {
	cards := map[string]*control.GPU{}
	for i := range view.GPUs {
		cards[view.GPUs[i].UUID] = &view.GPUs[i]
	}
	words := strings.Fields(strings.ToLower(filter))
	var rows []sliceRow
	for i := range view.Slices {
		row := sliceRow{&view.Slices[i], cards[view.Slices[i].GPUUUID]}
		if row.matches(words) {
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b sliceRow) int {
		first := by.compare(a, b)
		if reverse {
			first = -first
		}
		return cmp.Or(first, cmp.Compare(a.index(), b.index()), strings.Compare(a.name(), b.name()), strings.Compare(a.id(), b.id()))
	})
	if reverse && by.name == orders()[0].name {
		slices.Reverse(rows)
	}
	return rows
}

func (r sliceRow) index() int {
	if r.gpu == nil {
		return 1 << 30
	}
	return r.gpu.Index
}

// matches says whether every word is somewhere in what names or judges the slice; gpu0 is the card of index 0.
func (r sliceRow) matches(words []string) bool {
	if len(words) == 0 {
		return true
	}
	text := strings.ToLower(strings.Join([]string{r.name(), r.Allocation, r.GPUUUID, "gpu" + r.gpuName() + " ", r.kinds()}, "\n"))
	for _, word := range words {
		if strings.HasPrefix(word, "gpu") && len(word) > len("gpu") && word[len("gpu")] != '-' {
			word += " " // gpu1 is not gpu10
		}
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// kinds names what is wrong with the slice.
func (r sliceRow) kinds() string {
	var kinds []string
	for _, verdict := range r.Verdicts {
		kinds = append(kinds, verdict.Kind)
	}
	return strings.Join(kinds, ", ")
}
