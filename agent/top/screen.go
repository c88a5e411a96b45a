// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// screen.go lays the model out: a line that says what is shown, notices, the two tables, the pane with the why, and the keys.
// It never has more lines than the terminal, nor a line that is wider.

package top

import (
	"fmt"
	"strings"
	"time"

	"charm.land/bubbles/v2/help"
	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

const (
	staleAfter  = 10 * time.Second // an agent whose view is older looks at nothing
	shortScreen = 20               // with fewer lines the pane has the whole screen
	leastPane   = 8
)

// styles are how things look. Colours are the terminal's own sixteen; what they mean is always said in words too.
type styles struct {
	tones                         map[tone]lipgloss.Style
	head, title, selected, notice lipgloss.Style
}

func newStyles() styles {
	base := lipgloss.NewStyle()
	return styles{
		tones: map[tone]lipgloss.Style{
			plain: base, faint: base.Faint(true), good: base.Foreground(lipgloss.Green),
			warning: base.Foreground(lipgloss.Yellow), bad: base.Foreground(lipgloss.Red).Bold(true),
		},
		head: base.Bold(true), title: base.Bold(true), selected: base.Reverse(true), notice: base.Foreground(lipgloss.Yellow).Bold(true),
	}
}

// View implements tea.Model.
func (m *model) View() tea.View {
	view := tea.NewView(strings.Join(m.screen(), "\n"))
	view.AltScreen = true
	view.WindowTitle = "vgpud top"
	return view
}

// screen is the whole picture, as lines.
func (m *model) screen() []string {
	lines := append([]string{m.styles.head.Render(m.cut(m.headline()))}, m.notices()...)
	footer := m.footer()
	room := max(0, m.height-len(lines)-len(footer))
	lines = append(lines, m.body(room)...)
	for len(lines) < m.height-len(footer) {
		lines = append(lines, "")
	}
	lines = append(lines, footer...)
	return lines[:min(len(lines), max(1, m.height))]
}

func (m *model) cut(text string) string { return ansi.Truncate(text, m.width, "…") }

// headline says what is shown.
func (m *model) headline() string {
	if m.view == nil {
		return "vgpud top"
	}
	v := m.view
	parts := []string{"vgpud top", v.Node, v.Time.Local().Format("15:04:05"), counted(len(v.GPUs), "GPU"), counted(len(v.Slices), "slice"),
		"contention " + or(v.Contention.Mode, unknown), "probes " + or(v.Probes.Mode, unknown), "agent " + v.Agent.Version}
	return strings.Join(parts, " · ")
}

// notices are the lines that ask for attention.
func (m *model) notices() []string {
	var texts []string
	if m.fault != nil && m.view != nil {
		texts = append(texts, fmt.Sprintf("no agent for %s, what follows is of %s: %v", ago(m.now(), m.goneSince), m.view.Time.Local().Format("15:04:05"), m.fault))
	}
	if v := m.view; v != nil {
		if m.fault == nil && !m.paused && m.now().Sub(v.Time) > staleAfter {
			texts = append(texts, fmt.Sprintf("the agent answers, but has looked at nothing for %s", ago(m.now(), v.Time)))
		}
		texts = append(texts, sourceTexts(v.Sources)...)
		for _, finding := range v.Findings {
			texts = append(texts, findingText(finding))
		}
		for _, frozen := range v.Frozen {
			texts = append(texts, frozenText(frozen))
		}
	}
	if most := max(1, m.height/5); len(texts) > most {
		texts = append(texts[:most-1], fmt.Sprintf("and %d more notices: `vgpud top --once` shows all", len(texts)-most+1))
	}
	if m.paused {
		texts = append(texts, "paused; space goes on")
	}
	var lines []string
	for _, text := range texts {
		lines = append(lines, m.styles.notice.Render(m.cut(text)))
	}
	switch {
	case m.filtering:
		lines = append(lines, ansi.TruncateLeft("filter: "+m.filter.text+"▏", max(0, lipgloss.Width("filter: "+m.filter.text+"▏")-m.width), ""))
	case m.filter.text != "":
		lines = append(lines, m.cut(fmt.Sprintf("filter: %s (esc clears)", m.filter.text)))
	}
	return lines
}

// body is what is between notices and keys.
func (m *model) body(room int) []string {
	switch {
	case m.helping:
		return m.helpLines(room)
	case m.view == nil && m.fault != nil:
		return clip(strings.Split(ansi.Wrap(m.fault.Error(), m.width, ""), "\n"), room)
	case m.view == nil:
		return []string{m.cut("asking the agent …")}
	case m.detail && m.height < shortScreen:
		return m.paneLines(room)
	case m.detail:
		height := min(max(leastPane, room*2/5, room-3-len(m.gpus)-len(m.slices)), room-5)
		return append(m.tables(room-height), m.paneLines(height)...)
	}
	return m.tables(room)
}

func clip(lines []string, room int) []string { return lines[:min(len(lines), max(0, room))] }

// tables are both tables; the cards have at most two fifths of the lines, and where there is room for one alone it is that
// in which the keys move.
func (m *model) tables(room int) []string {
	forGPUs := min(len(m.gpus), max(1, (room-3)*2/5))
	forSlices := room - 3 - forGPUs
	if forSlices >= len(m.slices) {
		forGPUs = min(len(m.gpus), room-3-len(m.slices))
	}
	if room < 6 {
		forGPUs, forSlices = 0, room-1
		if m.focus == tableGPUs {
			forGPUs, forSlices = room-1, 0
		}
	}
	var lines []string
	if forGPUs > 0 {
		lines = append(lines, m.gpuLines(forGPUs)...)
	}
	if forGPUs > 0 && forSlices > 0 {
		lines = append(lines, "")
	}
	if forSlices > 0 {
		lines = append(lines, m.sliceLines(forSlices)...)
	}
	return clip(lines, room)
}

func (m *model) gpuLines(count int) []string {
	if len(m.gpus) == 0 {
		return []string{"the agent has found no GPU"}
	}
	if m.focus == tableGPUs {
		m.page = count
	}
	columns := fit(gpuColumns(), m.width)
	lines := []string{m.styles.title.Render(m.cut(titles(columns, "", false)))}
	m.gpuTop = scrolled(m.gpuTop, m.selectedGPU(), count, len(m.gpus))
	for _, row := range m.gpus[m.gpuTop:min(len(m.gpus), m.gpuTop+count)] {
		lines = append(lines, m.row(m.focus == tableGPUs && row.id() == m.gpu, func(style func(tone, string) string) string { return line(columns, row, style) }))
	}
	return lines
}

func (m *model) sliceLines(count int) []string {
	switch {
	case len(m.view.Slices) == 0:
		return []string{m.cut("no slice is allocated")}
	case len(m.slices) == 0:
		return []string{m.cut(fmt.Sprintf("none of %d slices matches the filter", len(m.view.Slices)))}
	}
	if m.focus == tableSlices {
		m.page = count
	}
	columns := fit(sliceColumns(), m.width)
	lines := []string{m.styles.title.Render(m.cut(titles(columns, orders()[m.order].name, m.reverse)))}
	m.topRow = scrolled(m.topRow, m.selectedSlice(), count, len(m.slices))
	for _, row := range m.slices[m.topRow:min(len(m.slices), m.topRow+count)] {
		lines = append(lines, m.row(m.focus == tableSlices && row.id() == m.slice, func(style func(tone, string) string) string { return line(columns, row, style) }))
	}
	return lines
}

// scrolled is the first row to show so that the selected one is seen, without a gap at the end.
func scrolled(top, selected, count, length int) int {
	if selected >= 0 {
		top = max(min(top, selected), selected-count+1)
	}
	return max(0, min(top, length-count))
}

// row renders a line: the selected one in reverse, and grey where it is old.
func (m *model) row(selected bool, render func(style func(tone, string) string) string) string {
	switch {
	case selected:
		text := m.cut(render(nil))
		return m.styles.selected.Render(text + strings.Repeat(" ", max(0, m.width-lipgloss.Width(text))))
	case m.fault != nil:
		return m.styles.tones[faint].Render(m.cut(render(nil)))
	}
	return m.cut(render(func(t tone, text string) string {
		if t == plain {
			return text
		}
		return m.styles.tones[t].Render(text)
	}))
}

// paneLines is the why of the selected row.
func (m *model) paneLines(room int) []string {
	var content []string
	if i := m.selectedGPU(); m.focus == tableGPUs && i >= 0 {
		content = gpuDetail(m.view, m.gpus[i].GPU, m.width)
	} else if i := m.selectedSlice(); m.focus == tableSlices && i >= 0 {
		content = sliceDetail(m.slices[i], m.width)
	} else {
		content = []string{"nothing is selected"}
	}
	return m.scrolling("why", content, room)
}

func (m *model) helpLines(room int) []string {
	var lines []string
	full := help.New()
	full.Styles = help.Styles{}
	groups := m.keys.FullHelp()
	if m.width < 64 { // one below the other
		for _, group := range groups {
			for _, binding := range group {
				lines = append(lines, fmt.Sprintf("%-8s %s", binding.Help().Key, binding.Help().Desc))
			}
		}
	} else {
		lines = strings.Split(full.FullHelpView(groups), "\n")
	}
	lines = append(lines, "")
	for paragraph := range strings.SplitSeq(Legend, "\n") {
		lines = append(lines, strings.Split(ansi.Wrap(paragraph, m.width, ""), "\n")...)
	}
	return m.scrolling("help", lines, room)
}

// scrolling is content under a rule, of which [ and ] show what does not fit.
func (m *model) scrolling(title string, content []string, room int) []string {
	m.pane.SetWidth(m.width)
	m.pane.SetHeight(max(0, room-1))
	m.pane.SetContentLines(content)
	rule := "── " + title + " "
	if hidden := len(content) - m.pane.Height(); hidden > 0 {
		rule += fmt.Sprintf("(%d to %d of %d lines, [ and ] scroll) ", m.pane.YOffset()+1, min(len(content), m.pane.YOffset()+m.pane.Height()), len(content))
	}
	rule = m.cut(rule + strings.Repeat("─", max(0, m.width-lipgloss.Width(rule))))
	lines := []string{m.styles.tones[faint].Render(rule)}
	for line := range strings.SplitSeq(m.pane.View(), "\n") {
		lines = append(lines, m.cut(line))
	}
	return clip(lines, room)
}

func (m *model) footer() []string {
	if m.height < 4 {
		return nil
	}
	m.help.SetWidth(m.width)
	text := m.help.ShortHelpView(m.keys.ShortHelp())
	if m.filtering {
		text = "enter keeps the filter • esc clears it • words of names, gpu0, verdicts"
	}
	return []string{m.styles.tones[faint].Render(m.cut(text))}
}
