// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// model.go is the state of the live view, and how it changes: by keys, by the size of the terminal, and by views that a
// command of bubbletea's fetches on a goroutine of its own. Nothing here waits.

package top

import (
	"context"
	"slices"
	"time"

	"charm.land/bubbles/v2/help"
	"charm.land/bubbles/v2/key"
	"charm.land/bubbles/v2/viewport"
	tea "charm.land/bubbletea/v2"

	"github.com/vgpud/vgpud/agent/control"
)

// fetchPatience is how long an agent may take to answer before it counts as gone.
const fetchPatience = 3 * time.Second

// Viewer is asked for views; control.Client is one.
type Viewer interface {
	View(ctx context.Context) (*control.View, error)
}

// Messages of the live view.
type (
	tickMsg time.Time
	// fetchedMsg is the answer of the agent, or why there is none.
	fetchedMsg struct {
		view  *control.View
		fault error
	}
)

// table is which of the two the keys move in.
type table int

const (
	tableSlices table = iota
	tableGPUs
)

// model implements tea.Model.
type model struct {
	ctx      context.Context // of the program: fetches end with it
	viewer   Viewer
	now      func() time.Time
	interval time.Duration
	keys     keyMap
	styles   styles

	width, height int
	view          *control.View // the last one; nil: none yet
	fault         error         // why there is none newer
	goneSince     time.Time     // when the fault was first met
	fetching      bool
	paused        bool

	gpus           []gpuRow
	slices         []sliceRow
	order          int
	reverse        bool
	filter         filter
	filtering      bool
	focus          table
	gpu, slice     string // ids of the rows that are selected; "" before there is any
	gpuTop, topRow int    // first rows that are shown
	page           int    // rows that the focused table shows

	detail  bool
	pane    viewport.Model
	help    help.Model
	helping bool
}

func newModel(ctx context.Context, viewer Viewer, interval time.Duration, now func() time.Time) *model {
	m := &model{ctx: ctx, viewer: viewer, now: now, interval: interval, keys: keys(), styles: newStyles(), width: 80, height: 24}
	m.pane = viewport.New()
	m.help = help.New()
	m.help.Styles = help.Styles{}
	return m
}

// Init implements tea.Model.
func (m *model) Init() tea.Cmd { return tea.Batch(m.fetch(), m.tick()) }

func (m *model) tick() tea.Cmd {
	return tea.Tick(m.interval, func(t time.Time) tea.Msg { return tickMsg(t) })
}

// fetch asks the agent, unless it is being asked.
func (m *model) fetch() tea.Cmd {
	if m.fetching {
		return nil
	}
	m.fetching = true
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(m.ctx, fetchPatience)
		defer cancel()
		view, err := m.viewer.View(ctx)
		if err == nil {
			cleanView(view)
		}
		return fetchedMsg{view, err}
	}
}

// Update implements tea.Model.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var command tea.Cmd
	switch msg := msg.(type) {
	case tickMsg:
		command = m.tick()
		if !m.paused {
			command = tea.Batch(command, m.fetch())
		}
	case fetchedMsg:
		m.take(msg)
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		command = m.press(msg)
	case tea.PasteMsg:
		if m.filtering {
			m.filter.insert(msg.Content)
			m.sortOut()
		}
	}
	return m, command
}

// take stores an answer. A view that comes while the picture is held is left for later.
func (m *model) take(msg fetchedMsg) {
	m.fetching = false
	if msg.fault != nil {
		if m.fault == nil {
			m.goneSince = m.now()
		}
		m.fault = msg.fault
		return
	}
	m.fault = nil
	if m.paused && m.view != nil {
		return
	}
	m.view = msg.view
	m.sortOut()
}

// sortOut makes the rows anew, and keeps the selection on the rows that it was on.
func (m *model) sortOut() {
	if m.view == nil {
		return
	}
	before := m.selectedSlice()
	m.gpus = gpuRows(m.view)
	m.slices = sliceRows(m.view, orders()[m.order], m.reverse, m.filter.text)
	if m.selectedGPU() < 0 {
		m.gpu = ""
		if len(m.gpus) > 0 {
			m.gpu = m.gpus[0].id()
		}
	}
	if m.selectedSlice() < 0 {
		m.slice = ""
		if len(m.slices) > 0 {
			m.slice = m.slices[min(max(0, before), len(m.slices)-1)].id()
		}
	}
}

// selectedGPU is the index of the selected card among the rows; -1: none.
func (m *model) selectedGPU() int {
	return slices.IndexFunc(m.gpus, func(r gpuRow) bool { return r.id() == m.gpu })
}

func (m *model) selectedSlice() int {
	return slices.IndexFunc(m.slices, func(r sliceRow) bool { return r.id() == m.slice })
}

// press reacts to a key.
func (m *model) press(msg tea.KeyPressMsg) tea.Cmd {
	if m.filtering {
		return m.pressInFilter(msg)
	}
	k := m.keys
	switch {
	case key.Matches(msg, k.quit):
		return tea.Quit
	case key.Matches(msg, k.suspend):
		return tea.Suspend
	case key.Matches(msg, k.help):
		m.helping = !m.helping
		m.pane.GotoTop()
	case key.Matches(msg, k.clear):
		m.escape()
	case key.Matches(msg, k.fetch):
		return tea.Batch(m.fetch(), tea.ClearScreen)
	case key.Matches(msg, k.pause):
		m.paused = !m.paused
		if !m.paused {
			return m.fetch()
		}
	case key.Matches(msg, k.other):
		m.focus = tableGPUs - m.focus
	case key.Matches(msg, k.detail):
		m.detail = !m.detail
		m.pane.GotoTop()
	case key.Matches(msg, k.paneUp):
		m.pane.ScrollUp(1)
	case key.Matches(msg, k.paneDown):
		m.pane.ScrollDown(1)
	case key.Matches(msg, k.sort):
		m.order = (m.order + 1) % len(orders())
		m.sortOut()
	case key.Matches(msg, k.reverse):
		m.reverse = !m.reverse
		m.sortOut()
	case key.Matches(msg, k.filter):
		m.filtering = true
	default:
		m.pressToMove(msg)
	}
	return nil
}

// escape goes back by one: from the help, from the detail, from the filter.
func (m *model) escape() {
	switch {
	case m.helping:
		m.helping = false
		m.pane.GotoTop()
	case m.detail:
		m.detail = false
	default:
		m.filter.text = ""
		m.sortOut()
	}
}

// pressInFilter edits the filter; what it leaves is seen at once.
func (m *model) pressInFilter(msg tea.KeyPressMsg) tea.Cmd {
	switch msg.String() {
	case "ctrl+c":
		return tea.Quit
	case "esc":
		m.filter.text = ""
		fallthrough
	case "enter":
		m.filtering = false
	default:
		m.filter.press(msg)
	}
	m.sortOut()
	return nil
}

// pressToMove moves the selection.
func (m *model) pressToMove(msg tea.KeyPressMsg) {
	const all = 1 << 20
	k := m.keys
	switch {
	case key.Matches(msg, k.up):
		m.move(-1)
	case key.Matches(msg, k.down):
		m.move(1)
	case key.Matches(msg, k.pageUp):
		m.move(-max(1, m.page))
	case key.Matches(msg, k.pageDown):
		m.move(max(1, m.page))
	case key.Matches(msg, k.first):
		m.move(-all)
	case key.Matches(msg, k.last):
		m.move(all)
	}
}

func (m *model) move(by int) {
	bound := func(i, length int) int { return min(max(0, i), length-1) }
	if m.focus == tableGPUs {
		if len(m.gpus) > 0 {
			m.gpu = m.gpus[bound(m.selectedGPU()+by, len(m.gpus))].id()
		}
	} else if len(m.slices) > 0 {
		m.slice = m.slices[bound(m.selectedSlice()+by, len(m.slices))].id()
	}
	m.pane.GotoTop()
}
