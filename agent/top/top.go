// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/vgpud/vgpud/agent/control"
)

// ErrInterrupted is returned by Live when a signal asked for its end.
var ErrInterrupted = tea.ErrInterrupted

// framesPerSecond bounds how often the terminal is looked after: enough for keys, and little work where nothing changes.
const framesPerSecond = 20

// Legend says what the columns mean; the help of `vgpud top` and its help screen have it.
const Legend = `SHARE is the GPU time that a slice used, GRANT what it was granted, RATE what is in force now (more: lent to it), WAIT the time in which its launches waited for the share. That is what shares are for, and no fault.
DRAM, PCIe> (host to card) and PCIe< are parts of what the card can do, over about 30 s; RX/s and TX/s are its link now, in bytes. Behind a slice's part is how sure that is, 0 to 1; ? is traffic that cannot be said to be its own, – is not known.
PRESSURE is the time lost to others in the last 10 s, on the resource where most is lost (pcie_rx: PCIe>, pcie_tx: PCIe<); "why" has all of it as in /proc/pressure.
VERDICT: victim, antagonist, held (waits for its share), over-share, over-limit, tampered, frozen, cut.`

// Options are how a view is shown live.
type Options struct {
	Interval time.Duration // between two views
	In       *os.File      // the terminal, both
	Out      *os.File
	Environ  []string // of the terminal: TERM, NO_COLOR
}

// Live shows views until the user quits, ctx ends or a signal comes.
func Live(ctx context.Context, viewer Viewer, options Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a fetch that is under way
	program := tea.NewProgram(newModel(ctx, viewer, options.Interval, time.Now), tea.WithContext(ctx), tea.WithInput(options.In),
		tea.WithOutput(options.Out), tea.WithEnvironment(options.Environ), tea.WithFPS(framesPerSecond))
	_, err := program.Run()
	switch {
	case errors.Is(err, tea.ErrInterrupted):
		return ErrInterrupted
	case errors.Is(err, tea.ErrProgramKilled) && ctx.Err() != nil:
		return nil
	}
	return err
}

// Once asks for one view and writes it: as tables, or as JSON with asJSON.
func Once(ctx context.Context, viewer Viewer, out io.Writer, asJSON bool) error {
	ctx, cancel := context.WithTimeout(ctx, fetchPatience)
	defer cancel()
	view, err := viewer.View(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		text, err := json.MarshalIndent(view, "", "  ")
		if err != nil {
			return fmt.Errorf("render view: %w", err)
		}
		_, err = out.Write(append(cleanJSON(text), '\n'))
		return err
	}
	cleanView(view)
	_, err = io.WriteString(out, strings.Join(plainLines(view), "\n")+"\n")
	return err
}

// plainLines is the view as plain text of any width.
func plainLines(view *control.View) []string {
	lines := []string{fmt.Sprintf("node %s, %s, agent %s (pid %d), contention %s, probes %s", view.Node, view.Time.Format(time.RFC3339),
		view.Agent.Version, view.Agent.PID, or(view.Contention.Mode, unknown), or(view.Probes.Mode, unknown)), ""}
	gpus, slices := gpuRows(view), sliceRows(view, orders()[0], false, "")
	lines = append(lines, plainTable(gpuColumns(), gpus, "the agent has found no GPU")...)
	lines = append(lines, "")
	lines = append(lines, plainTable(sliceColumns(), slices, "no slice is allocated")...)
	var notes []string
	for _, row := range gpus {
		if !row.Health.Healthy || row.Contended {
			notes = append(notes, fmt.Sprintf("GPU %d: %s", row.Index, healthText(view.Time, row.Health)))
		}
		if row.Contended && row.Evidence != nil {
			notes = append(notes, fmt.Sprintf("GPU %d: %s", row.Index, evidenceText(view, row.Evidence)))
		}
	}
	for _, row := range slices {
		for _, verdict := range row.Verdicts {
			if row.gpu != nil && row.gpu.Contended && row.gpu.Evidence != nil && verdict.Why == row.gpu.Evidence.Text {
				continue // the card's line says it, with both names
			}
			notes = append(notes, fmt.Sprintf("%s on GPU %s: %s: %s", row.name(), row.gpuName(), verdict.Kind, verdict.Why))
		}
	}
	if view.Probes.Reason != "" {
		notes = append(notes, "probes: "+view.Probes.Reason)
	}
	for _, text := range view.Probes.Unobservable {
		notes = append(notes, "probes: cannot see "+text)
	}
	notes = append(notes, sourceTexts(view.Sources)...)
	for _, finding := range view.Findings {
		notes = append(notes, findingText(finding))
	}
	for _, frozen := range view.Frozen {
		notes = append(notes, frozenText(frozen))
	}
	if len(notes) > 0 {
		lines = append(append(lines, ""), notes...)
	}
	return lines
}

func plainTable[T any](columns []column[T], rows []T, empty string) []string {
	if len(rows) == 0 {
		return []string{empty}
	}
	columns = natural(columns, rows)
	lines := []string{strings.TrimRight(titles(columns, "", false), " ")}
	for _, row := range rows {
		lines = append(lines, strings.TrimRight(line(columns, row, nil), " "))
	}
	return lines
}

// sourceTexts has a line for each source that is down by itself: one that is not asked because of another is not told apart.
func sourceTexts(sources []control.Source) (texts []string) {
	for _, source := range sources {
		if !source.Up && !source.Absent && !source.NotAsked {
			texts = append(texts, fmt.Sprintf("source %s is down: %s", source.Name, source.Error))
		}
	}
	return texts
}

// findingText is what a witness found, in one line.
func findingText(f control.Finding) string {
	where := f.Container
	if f.Pod != "" {
		where = f.Namespace + "/" + f.Pod + "/" + f.Container
	}
	text := fmt.Sprintf("witness: %s in %s", f.Kind, or(where, "no container"))
	if len(f.PIDs) > 0 {
		text += fmt.Sprintf(", pid %s", strings.Trim(fmt.Sprint(f.PIDs), "[]"))
	}
	if f.Command != "" {
		text += fmt.Sprintf(" (%s)", f.Command)
	}
	if f.Detail != "" {
		text += ": " + f.Detail
	}
	if f.Action == "kill" { // who is frozen has a line of its own
		text += "; killed"
	}
	return text
}

// frozenText is what is frozen, and how it is thawed.
func frozenText(f control.Frozen) string {
	return fmt.Sprintf("frozen: %s/%s/%s, %s; `vgpud thaw %s`", f.Namespace, f.Pod, f.Name, or(f.Why, "no reason is given"), f.Container)
}
