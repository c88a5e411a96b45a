// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a run leaves: the records, the page about them, the plots.

package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vgpud/vgpud/scripts/benchpage"
)

// Names in the directory of the results.
const (
	recordsFile = "contention.json"
	pageFile    = "contention.md"
)

// write puts the records of this run among those of earlier ones, and writes the page anew.
func write(dir string, fresh []record, shown []outcome, rows []row) error {
	path := filepath.Join(dir, recordsFile)
	old, err := benchpage.Read[record](path)
	if err != nil {
		return err
	}
	var order []string
	all := slices.Concat(rows, realRows())
	for _, r := range all {
		order = append(order, r.id)
	}
	records := merge(old, fresh, order)
	if err := benchpage.Write(path, records); err != nil {
		return err
	}
	if err := drawAll(dir, shown); err != nil {
		return err
	}
	return writePage(dir, records, all)
}

//go:embed contention.md.tmpl
var pageTemplate string

// pageData is what the template of the page is filled with.
type pageData struct {
	Ours, Attribution, Peers, Real string // tables
	Plots                          string
	Passed, Failed, RealRows       int
	Hours                          int
}

func writePage(dir string, records []record, rows []row) error {
	data := pageData{Ours: oursTable(records), Attribution: attributionTable(records), Peers: peersTable(records), Real: realTable(records), Plots: plotList(dir, rows)}
	hours := 0.0
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
		} else if r.Rule == ruleDefault {
			hours += r.Minutes * float64(r.Seeds) / 60
		}
	}
	data.Hours = int(hours)
	return benchpage.Page(filepath.Join(dir, pageFile), pageTemplate, data)
}

func verdict(r record) string {
	if r.Pass {
		return "pass"
	}
	return "**no**: " + strings.Join(r.Missed, ", ")
}

// oursTable has ours in virtual time, both presets of a row in a line.
func oursTable(records []record) string {
	var b strings.Builder
	b.WriteString("| row | what | target | preset | changes/h | false verdicts | found s | over s | pressure % | truly lost % | pass |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range records {
		if r.Kind != kindOurs || r.Clock != clockVirtual {
			continue
		}
		f := r.Figures
		title, id := r.Title, r.Row
		if r.Rule != ruleDefault {
			title, id = "", ""
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.4g | %d | %s | %s | %s | %s | %s |\n", id, title, r.Target, strings.TrimPrefix(r.Rule, "vgpud "), f.Flips, f.False,
			benchpage.Number(f.Detect, "%.0f"), benchpage.Number(f.Recover, "%.0f"), benchpage.Number(f.Shown, "%.1f"), benchpage.Number(f.Lost, "%.1f"), verdict(r))
	}
	return b.String()
}

func attributionTable(records []record) string {
	var b strings.Builder
	b.WriteString("| row | what | error, p95 | error, mean | unattributed |\n|---|---|---|---|---|\n")
	for _, r := range records {
		if f := r.Figures; r.Rule == ruleDefault && r.Clock == clockVirtual && f.Unknown != nil {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", r.Row, r.Title, benchpage.Number(f.Attribution, "%.1f %%"), benchpage.Number(f.Mean, "%.1f %%"), benchpage.Number(f.Unknown, "%.0f %%"))
		}
	}
	return b.String()
}

// peersTable has ours and the other rules beside each other: changes per hour, false verdicts, time to find.
func peersTable(records []record) string {
	byRule := map[string]map[string]record{}
	var order []string
	for _, r := range records {
		if r.Clock != clockVirtual {
			continue
		}
		if byRule[r.Row] == nil {
			byRule[r.Row] = map[string]record{}
			order = append(order, r.Row)
		}
		byRule[r.Row][r.Rule] = r
	}
	columns := slices.Concat(oursNames, peerNames)
	var b strings.Builder
	fmt.Fprintf(&b, "| row | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, id := range order {
		var cells []string
		for _, rule := range columns {
			r, ok := byRule[id][rule]
			if !ok {
				cells = append(cells, "")
				continue
			}
			mark := "✓"
			if !r.Pass {
				mark = "✗"
			}
			cell := fmt.Sprintf("%s %.4g, %d", mark, r.Figures.Flips, r.Figures.False)
			if r.Figures.Detect != nil {
				cell += ", " + benchpage.Number(r.Figures.Detect, "%.0f s")
			}
			cells = append(cells, cell)
		}
		fmt.Fprintf(&b, "| %s | %s |\n", id, strings.Join(cells, " | "))
	}
	return b.String()
}

// realTable has the rows in real time beside their twins in virtual time.
func realTable(records []record) string {
	var b strings.Builder
	b.WriteString("| row | what | verdict after s, real | virtual | over after s, real | virtual | pressure %, real | virtual | false | load | pass |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range records {
		if r.Clock != clockReal {
			continue
		}
		none := func(value *float64) string {
			if value == nil {
				return "none"
			}
			return benchpage.Number(value, "%.0f")
		}
		f, v := r.Figures, Figures{}
		if r.Twin != nil {
			v = *r.Twin
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %d | %s | %s |\n", r.Row, r.Title, none(f.Detect), none(v.Detect), none(f.Recover), none(v.Recover),
			benchpage.Number(f.Shown, "%.1f"), benchpage.Number(v.Shown, "%.1f"), f.False, benchpage.Number(r.Load, "%.0f"), verdict(r))
	}
	return b.String()
}
