// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package metrics

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxLabelBytes bounds a label value; Kubernetes' longest name has 253 bytes.
const maxLabelBytes = 256

// render returns the file's text for a view: what the official encoder would make of it, byte for byte (which the tests
// check), at a tenth of its cost: the file has a thousand lines and is made every few seconds. A series whose labels are
// those of an earlier one is dropped and counted, so that it cannot make the file invalid.
func render(view View) []byte {
	table := renderTable()
	families := make([]string, len(table)) // in the order of the catalogue
	var text []byte
	var lines []line
	for i := range table {
		family := &table[i]
		text = text[:0]
		if family.kind == histogram {
			text = family.appendHistogram(text, view.Plugin.Allocate)
		} else {
			lines = family.lines(lines[:0], view, &view.DroppedSeries)
			for _, line := range lines {
				text = line.append(text, family.name)
			}
		}
		if len(text) > 0 {
			families[i] = string(text)
		}
	}
	var whole []byte
	for _, i := range tableOrder() {
		if families[i] != "" {
			whole = append(append(whole, table[i].header...), families[i]...)
		}
	}
	return whole
}

// family is a row with what is the same in each file.
type family struct {
	row
	header string   // HELP and TYPE
	keys   []string // `name="` of each label, sorted by name,
	from   []int    // and where its value is in a sample
}

// renderTable and tableOrder are the catalogue, and the order of its names.
var (
	renderTable = sync.OnceValue(func() []family {
		var table []family
		for _, row := range catalogue() {
			f := family{row: row, header: fmt.Sprintf("# HELP %s %s\n# TYPE %s %s\n", row.name, helpEscapes.Replace(row.help), row.name, row.kind)}
			for i := range row.labels {
				f.from = append(f.from, i)
			}
			slices.SortFunc(f.from, func(a, b int) int { return cmp.Compare(row.labels[a], row.labels[b]) })
			for _, i := range f.from {
				f.keys = append(f.keys, row.labels[i]+`="`)
			}
			table = append(table, f)
		}
		return table
	})
	tableOrder = sync.OnceValue(func() []int {
		var order []int
		for i := range renderTable() {
			order = append(order, i)
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(renderTable()[a].name, renderTable()[b].name) })
		return order
	})
)

// The format's escapes.
var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// line is one series: what stands in braces, and the values it is sorted by.
type line struct {
	labels string
	values []string
	value  float64
}

// lines are the series of a family, sorted as the official registry does. Those that are there already are counted.
func (f *family) lines(lines []line, view View, dropped *int) []line {
	samples := f.samples(view)
	seen := make(map[string]bool, len(samples))
	values := make([]string, 0, len(samples)*len(f.from))
	var room []byte
	for _, sample := range samples {
		room = room[:0]
		first := len(values)
		for i, from := range f.from {
			value := cleanLabel(sample.labels[from])
			values = append(values, value)
			if i > 0 {
				room = append(room, ',')
			}
			room = append(room, f.keys[i]...)
			if strings.ContainsAny(value, "\\\n\"") {
				value = labelEscapes.Replace(value)
			}
			room = append(append(room, value...), '"')
		}
		if seen[string(room)] {
			*dropped++
			continue
		}
		labels := string(room)
		seen[labels] = true
		lines = append(lines, line{labels, values[first:], sample.value})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return slices.Compare(a.values, b.values) })
	return lines
}

func (l line) append(text []byte, name string) []byte {
	text = append(text, name...)
	if l.labels != "" {
		text = append(append(append(text, '{'), l.labels...), '}')
	}
	return appendValue(append(text, ' '), l.value)
}

// appendValue puts a value, the end of a line.
func appendValue(text []byte, value float64) []byte {
	return append(strconv.AppendFloat(text, value, 'g', -1, 64), '\n') // NaN and infinities too are as the format has them
}

func (f *family) appendHistogram(text []byte, durations Durations) []byte {
	for _, bound := range slices.Sorted(maps.Keys(durations.Buckets)) {
		le := strconv.FormatFloat(bound, 'g', -1, 64)
		text = line{labels: `le="` + le + `"`, value: float64(durations.Buckets[bound])}.append(text, f.name+"_bucket")
	}
	text = line{labels: `le="+Inf"`, value: float64(durations.Count)}.append(text, f.name+"_bucket")
	text = line{value: durations.SumSeconds}.append(text, f.name+"_sum")
	return line{value: float64(durations.Count)}.append(text, f.name+"_count")
}

// cleanLabel makes text of a label value: a NUL ends it, bytes that are not UTF-8 become U+FFFD, and the length is bounded.
func cleanLabel(value string) string {
	value, _, _ = strings.Cut(value, "\x00")
	if len(value) > maxLabelBytes {
		value = value[:maxLabelBytes]
	}
	return strings.ToValidUTF8(value, "\uFFFD")
}

// WriteMarkdown renders docs/metrics.md.
func WriteMarkdown(out io.Writer) error {
	var text strings.Builder
	text.WriteString("# Metrics\n\n" +
		"Generated by `vgpud docs metrics`; the table is `agent/metrics/catalogue.go`.\n\n" +
		"The agent writes them to `vgpud.prom` in the directory that `--textfile-dir` names: about every five " +
		"seconds, at every tick where `--tick-interval` is longer than that, and at once when a GPU's health or an allocation " +
		"changes. It writes the file whole or not at all, and removes it when it stops. Numbers of a slice are claims of its container, bounded but " +
		"not trusted. Counters start anew with the container's pages or with the agent.\n\n" +
		"| metric | type | labels | meaning |\n|---|---|---|---|\n")
	for _, row := range catalogue() {
		labels := "–"
		if len(row.labels) > 0 {
			labels = "`" + strings.Join(row.labels, "`, `") + "`"
		}
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n", row.name, row.kind, labels, row.help)
	}
	_, err := io.WriteString(out, text.String())
	return err
}
