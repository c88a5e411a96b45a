// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a run leaves: the records and the page about them.

package main

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/vgpud/vgpud/scripts/benchpage"
)

//go:embed agent.md.tmpl
var pageTemplate string

// pageData is what the template of the page is filled with.
type pageData struct {
	Table, Profiles   string
	Cards, Containers int
	Kernel, Go        string
}

func write(dir string, records []record) error {
	if err := benchpage.Write(filepath.Join(dir, "agent.json"), records); err != nil {
		return err
	}
	first := records[0]
	return benchpage.Page(filepath.Join(dir, "agent.md"), pageTemplate, pageData{Table: table(records), Profiles: profiles(records), Cards: first.Cards,
		Containers: first.Containers, Kernel: first.Kernel, Go: first.Go})
}

func table(records []record) string {
	var text strings.Builder
	text.WriteString("| containers | of one core | user | system | switches/s | RSS | peak | load | |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range records {
		fmt.Fprintf(&text, "| %s: %s | **%.2f %%** | %.2f %% | %.2f %% | %.0f | %.1f MB | %.1f MB | %s | %s |\n", r.Phase, r.Title, r.CPUPercent, r.User, r.System,
			r.Switches, float64(r.RSSBytes)/1e6, float64(r.PeakBytes)/1e6, benchpage.Number(r.Load, "%.1f"), verdict(r))
	}
	return text.String()
}

func profiles(records []record) string {
	var text strings.Builder
	for _, r := range records {
		fmt.Fprintf(&text, "### %s\n\n%d samples.\n", r.Phase, r.Samples)
		for _, part := range []struct {
			title string
			spots []spot
		}{{"By itself", r.Flat}, {"Of ours, with all that is called from there", r.Cum}} {
			fmt.Fprintf(&text, "\n%s:\n\n```\n   flat    cum\n", part.title)
			for _, s := range part.spots {
				fmt.Fprintf(&text, "%5.1f %% %5.1f %%  %s\n", s.Flat, s.Cum, strings.ReplaceAll(s.Function, "github.com/vgpud/vgpud/", ""))
			}
			text.WriteString("```\n")
		}
		text.WriteString("\n")
	}
	return strings.TrimRight(text.String(), "\n") + "\n"
}
