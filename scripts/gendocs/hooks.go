// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// docs/hooks.md: what libvgpu does about each driver call, from the hook table.

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const hookTable = "libvgpu/hooks.def"

// hookLine is one line of the table: kind is HOOK, CALL or SKIP, note the need or the reason.
type hookLine struct{ kind, name, note string }

// hookSection is what follows one comment of the table.
type hookSection struct {
	title string
	lines []hookLine
}

var (
	sectionComment = regexp.MustCompile(`^/\* (.*?)\.? \*/$`)
	hookEntry      = regexp.MustCompile(`^(HOOK|CALL|SKIP)\((\w+)(?:, (?:"(.*)"|(\w+)))?\)$`)
)

// parseHooks reads the table. A line that looks like an entry and cannot be read is an error.
func parseHooks(text string) ([]hookSection, error) {
	var sections []hookSection
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := sectionComment.FindStringSubmatch(line); m != nil && !strings.Contains(line, "clang-format") {
			sections = append(sections, hookSection{title: m[1]})
			continue
		}
		if !strings.HasPrefix(line, "HOOK(") && !strings.HasPrefix(line, "CALL(") && !strings.HasPrefix(line, "SKIP(") {
			continue
		}
		m := hookEntry.FindStringSubmatch(line)
		if m == nil || len(sections) == 0 {
			return nil, fmt.Errorf("%s: cannot read %q", hookTable, line)
		}
		last := &sections[len(sections)-1]
		last.lines = append(last.lines, hookLine{kind: m[1], name: m[2], note: m[3] + m[4]})
	}
	return sections, nil
}

func writeHooks(root string, w io.Writer) error {
	text, err := os.ReadFile(filepath.Join(root, hookTable))
	if err != nil {
		return fmt.Errorf("read table: %w", err)
	}
	sections, err := parseHooks(string(text))
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, s := range sections {
		for _, l := range s.lines {
			count[l.kind]++
		}
	}
	fmt.Fprintf(w, "# Hooks\n\n%s\n\n", generatedNote(hookTable))
	fmt.Fprintf(w, "libvgpu stands in front of %d functions of the driver libraries, and leaves %d others alone that allocate,\n"+
		"free, launch, copy, map or query, each for a reason. A driver that lacks an optional function still lacks it.\n",
		count["HOOK"], count["SKIP"])
	for _, s := range sections {
		if len(s.lines) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n## %s\n\n", s.title)
		if s.lines[0].kind == "HOOK" {
			writeHooked(w, s.lines)
		} else {
			writeByNote(w, s.lines)
		}
	}
	return nil
}

func writeHooked(w io.Writer, lines []hookLine) {
	fmt.Fprintf(w, "| function | in every driver |\n|---|---|\n")
	for _, l := range lines {
		present := "no"
		if l.note == "REQUIRED" {
			present = "yes"
		}
		fmt.Fprintf(w, "| `%s` | %s |\n", l.name, present)
	}
}

// writeByNote lists functions under the reason that they share, in order of first mention.
func writeByNote(w io.Writer, lines []hookLine) {
	names := map[string][]string{}
	var notes []string
	for _, l := range lines {
		if names[l.note] == nil {
			notes = append(notes, l.note)
		}
		names[l.note] = append(names[l.note], "`"+l.name+"`")
	}
	for _, note := range notes {
		if note == "" {
			fmt.Fprintf(w, "%s\n", strings.Join(names[note], ", "))
			continue
		}
		fmt.Fprintf(w, "* **%s**: %s\n", note, strings.Join(names[note], ", "))
	}
}
