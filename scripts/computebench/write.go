// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a run leaves: the records, the page about them, the plots.

package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/vgpud/vgpud/scripts/benchpage"
)

// Names in the directory of the results.
const (
	recordsFile = "compute.json"
	pageFile    = "compute.md"
)

// write puts the records of this run among those of earlier ones, and writes the page anew.
func write(dir string, fresh []record, rows []row) error {
	path := filepath.Join(dir, recordsFile)
	old, err := benchpage.Read[record](path)
	if err != nil {
		return err
	}
	records := merge(old, fresh, rows)
	if err := benchpage.Write(path, records); err != nil {
		return err
	}
	if err := drawAll(dir, fresh, rows); err != nil {
		return err
	}
	return writePage(dir, records, rows)
}

//go:embed compute.md.tmpl
var pageTemplate string

// pageData is what the template of the page is filled with.
type pageData struct {
	Ours, Real, Peers string // tables
	Plots             string
	Passed, Failed    int
	RealRows          int
}

func writePage(dir string, records []record, rows []row) error {
	data := pageData{Ours: oursTable(records), Real: realTable(records), Peers: peersTable(records, rows), Plots: plotList(dir, rows)}
	for _, r := range records {
		switch {
		case r.Kind == kindPeer:
		case r.Pass:
			data.Passed++
		default:
			data.Failed++
		}
		if r.Clock == clockReal {
			data.RealRows++
		}
	}
	return benchpage.Page(filepath.Join(dir, pageFile), pageTemplate, data)
}

func verdict(r record) string {
	switch {
	case r.Pass && r.Tries > 1:
		return "pass, alone"
	case r.Pass:
		return "pass"
	}
	return "**no**: " + strings.Join(r.Missed, ", ")
}

func list(values []float64) string {
	var parts []string
	for _, v := range values {
		if v < 0 {
			parts = append(parts, "–")
			continue
		}
		parts = append(parts, fmt.Sprintf("%.4g", v))
	}
	return strings.Join(parts, " / ")
}

// others are the figures that only some rows have.
func others(r record) string {
	var parts []string
	f := r.Figures
	for _, n := range []struct {
		name   string
		value  *float64
		format string
	}{{"Jain", f.Jain, "%.5f"}, {"Jain of processes", f.Within, "%.5f"}, {"lender back", f.Reach, "%.0f ms"}, {"split off by", f.Split, "%.2f"}, {"throttled", f.Throttled, "%.2f s"},
		{"longest wait", f.Longest, "%.2f s"}, {"slowdown", f.Slowdown, "%.2f"}} {
		if n.value != nil {
			parts = append(parts, n.name+" "+benchpage.Number(n.value, n.format))
		}
	}
	return strings.Join(parts, ", ")
}

func oursTable(records []record) string {
	var b strings.Builder
	b.WriteString("| row | what | target | share % | of % | mean error | p95 | settles s | overshoot | busy % | more | pass |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range records {
		if r.Kind != kindOurs || r.Clock != clockVirtual {
			continue
		}
		f := r.Figures
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Row, r.Title, r.Target, list(f.Shares), list(f.Targets),
			benchpage.Number(f.MeanError, "%.2f"), benchpage.Number(f.P95, "%.2f"), benchpage.Number(f.Settle, "%.1f"), benchpage.Number(f.Overshoot, "%.1f"),
			benchpage.Number(f.Busy, "%.1f"), others(r), verdict(r))
	}
	return b.String()
}

// realTable has the rows in real time beside the same in virtual time.
func realTable(records []record) string {
	virtual := map[string]record{}
	for _, r := range records {
		if r.Kind == kindOurs && r.Clock == clockVirtual {
			virtual[r.Row] = r
		}
	}
	var b strings.Builder
	b.WriteString("| row | of % | share %, real | share %, virtual | apart | mean error, real | p95 | settles s | more | load | pass |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range records {
		if r.Clock != clockReal {
			continue
		}
		f := r.Figures
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", r.Row, list(f.Targets), list(f.Shares), list(virtual[r.Row].Figures.Shares),
			benchpage.Number(f.AgainstVirtual, "%.2f"), benchpage.Number(f.MeanError, "%.2f"), benchpage.Number(f.P95, "%.2f"), benchpage.Number(f.Settle, "%.1f"), others(r), benchpage.Number(r.Load, "%.0f"), verdict(r))
	}
	return b.String()
}

// peersTable has ours and the peers beside each other: mean error, p95, settling.
func peersTable(records []record, rows []row) string {
	byLaw := map[string]map[string]record{}
	for _, r := range records {
		if r.Clock == clockVirtual {
			if byLaw[r.Row] == nil {
				byLaw[r.Row] = map[string]record{}
			}
			byLaw[r.Row][r.Law] = r
		}
	}
	cell := func(r record, ok bool) string {
		if !ok {
			return ""
		}
		mark := "✓"
		if !r.Pass {
			mark = "✗"
		}
		return fmt.Sprintf("%s %s, %s, %s", mark, benchpage.Number(r.Figures.MeanError, "%.2f"), benchpage.Number(r.Figures.P95, "%.1f"), benchpage.Number(r.Figures.Settle, "%.1f s"))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| row | %s | %s | %s |\n|---|---|---|---|\n", lawOurs, lawBlock, lawPID)
	for _, row := range rows {
		if !row.peers || byLaw[row.id] == nil {
			continue
		}
		var cells []string
		for _, law := range []string{lawOurs, lawBlock, lawPID} {
			r, ok := byLaw[row.id][law]
			cells = append(cells, cell(r, ok))
		}
		fmt.Fprintf(&b, "| %s | %s |\n", row.id, strings.Join(cells, " | "))
	}
	return b.String()
}
