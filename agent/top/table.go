// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// table.go fits columns to a width. A column that does not fit is left out, the least needed first; what is wider than its
// column is cut, with an ellipsis.

package top

import (
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// tone is how a cell is meant.
type tone int

const (
	plain tone = iota
	faint
	good
	warning
	bad
)

// cell is a text with its meaning.
type cell struct {
	text string
	tone tone
}

// column is one column of rows of type T.
type column[T any] struct {
	title  string
	width  int  // on a terminal
	need   int  // those with the least go first where not all fit
	left   bool // text; figures are aligned to the right
	grows  int  // up to which width it takes what the others leave, from the left
	render func(T) cell
}

const gap = 1 // between columns

// fit chooses the columns for a width, with the width of each.
func fit[T any](columns []column[T], width int) []column[T] {
	chosen := append([]column[T]{}, columns...)
	for len(chosen) > 1 && total(chosen) > width {
		least := 0
		for i, column := range chosen {
			if column.need < chosen[least].need {
				least = i
			}
		}
		chosen = append(chosen[:least], chosen[least+1:]...)
	}
	for i := range chosen {
		left := width - total(chosen)
		chosen[i].width = max(chosen[i].width, min(chosen[i].width+left, chosen[i].grows))
	}
	if last := &chosen[len(chosen)-1]; total(chosen) > width {
		last.width = max(1, last.width-(total(chosen)-width))
	}
	return chosen
}

func total[T any](columns []column[T]) int {
	sum := gap * (len(columns) - 1)
	for _, column := range columns {
		sum += column.width
	}
	return sum
}

// natural gives each column the width of its widest cell, for output that nobody cuts.
func natural[T any](columns []column[T], rows []T) []column[T] {
	wide := append([]column[T]{}, columns...)
	for i := range wide {
		wide[i].width = lipgloss.Width(wide[i].title)
		for _, row := range rows {
			wide[i].width = max(wide[i].width, lipgloss.Width(wide[i].render(row).text))
		}
	}
	return wide
}

// titles is the line above the rows; the title that is sorted by is marked.
func titles[T any](columns []column[T], sorted string, reverse bool) string {
	var parts []string
	for i, column := range columns {
		title := column.title
		if title == sorted && sorted != "" {
			mark := "▼"
			if reverse {
				mark = "▲"
			}
			title = mark + title
		}
		parts = append(parts, align(title, column.width, column.left, i == len(columns)-1))
	}
	return strings.Join(parts, strings.Repeat(" ", gap))
}

// line is one row. style may be nil for plain text.
func line[T any](columns []column[T], row T, style func(tone, string) string) string {
	var parts []string
	for i, column := range columns {
		cell := column.render(row)
		text := align(cell.text, column.width, column.left, i == len(columns)-1)
		if style != nil {
			text = style(cell.tone, text)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, strings.Repeat(" ", gap))
}

// align brings text to a width. The last column has no blanks after it.
func align(text string, width int, left, last bool) string {
	text = ansi.Truncate(text, width, "…")
	blanks := strings.Repeat(" ", max(0, width-lipgloss.Width(text)))
	switch {
	case !left:
		return blanks + text
	case last:
		return text
	}
	return text + blanks
}
