// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of what is drawn: pictures in testdata at several sizes, and what keys, an agent that goes, and hostile names do.

package top

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/control"
)

var update = flag.Bool("update", false, "write testdata again")

// picture compares text with a file in testdata.
func picture(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSuffix(string(want), "\n"), text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// bare is the screen without its styles, of which each line must fit.
func (s *shown) bare() string {
	s.t.Helper()
	lines := s.screen()
	if len(lines) > s.height {
		s.t.Errorf("%d lines on a screen of %d", len(lines), s.height)
	}
	for i, line := range lines {
		if width := lipgloss.Width(line); width > s.width {
			s.t.Errorf("line %d has %d columns on a screen of %d: %q", i, width, s.width, line)
		}
		lines[i] = strings.TrimRight(ansi.Strip(line), " ")
	}
	return strings.Join(lines, "\n")
}

func TestPictures(t *testing.T) {
	for name, c := range map[string]struct {
		width, height int
		view          func() *control.View
		keys          []string
	}{
		"wide":         {200, 40, node, nil},
		"medium":       {120, 30, node, nil},
		"terminal":     {80, 24, node, nil},
		"narrow":       {44, 20, node, nil},
		"tiny":         {20, 5, node, nil},
		"crowd":        {120, 30, crowd, []string{"end"}},
		"crowd-low":    {100, 12, crowd, []string{"pgdown"}},
		"by-memory":    {120, 30, node, []string{"ss"}},
		"reversed":     {120, 30, node, []string{"ssr"}},
		"filtered":     {120, 30, node, []string{"/victim gpu0", "enter"}},
		"no-match":     {80, 24, node, []string{"/nobody"}},
		"why-slice":    {120, 46, node, []string{"enter"}},
		"why-gpu":      {120, 46, node, []string{"tab", "enter"}},
		"why-lost-gpu": {80, 24, node, []string{"tab", "end", "enter"}},
		"why-low":      {80, 16, node, []string{"enter", "]]]"}},
		"help":         {100, 40, node, []string{"?"}},
		"help-narrow":  {44, 40, node, []string{"?"}},
		"help-low":     {40, 12, node, []string{"?", "]]]]]]]]]]"}},
		"no-slices":    {80, 24, func() *control.View { v := node(); v.Slices = nil; return v }, nil},
		"nothing":      {80, 24, func() *control.View { return &control.View{Version: 1, Time: noon} }, []string{"tab", "enter"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := show(t, c.width, c.height, c.view)
			s.press(c.keys...)
			picture(t, name, s.bare())
		})
	}
}

// TestEverySize draws at all sizes, in all modes; bare checks that it fits.
func TestEverySize(t *testing.T) {
	s := show(t, 80, 24, node)
	for _, keys := range [][]string{nil, {"enter"}, {"tab"}, {"?"}, {"esc", "esc", "/xyzzyxyzzyxyzzy"}} {
		s.press(keys...)
		for width := 1; width < 150; width += 3 {
			for height := 1; height < 50; height += 2 {
				s.send(tea.WindowSizeMsg{Width: width, Height: height})
				s.bare()
			}
		}
	}
}

// TestColours holds the styles; without colours the same words stand there.
func TestColours(t *testing.T) {
	s := show(t, 100, 24, node)
	text := strings.Join(s.screen(), "\n")
	if !strings.Contains(text, "\x1b[") {
		t.Error("nothing is styled")
	}
	picture(t, "colours", strings.ReplaceAll(text, "\x1b", "^["))
}

func TestAgentGoesAndComesBack(t *testing.T) {
	s := show(t, 100, 24, node)
	s.agent.fault = fmt.Errorf("%w on /run/x: it is started with `vgpud run`", control.ErrNoAgent)
	s.at = noon.Add(2 * time.Second)
	s.look()
	s.at = noon.Add(70 * time.Second)
	s.look()
	picture(t, "gone", s.bare())
	s.press("end") // the selected line is in reverse
	grey := s.styles.tones[faint].Render("x")
	grey = grey[:strings.IndexByte(grey, 'x')]
	for _, line := range s.screen() {
		if strings.Contains(line, "ml/stream-0") && !strings.HasPrefix(line, grey) {
			t.Errorf("old figures look like new ones: %q", line)
		}
	}
	s.agent.fault = nil
	s.look()
	if text := s.bare(); strings.Contains(text, "no agent") || !strings.Contains(text, "has looked at nothing for 1m10s") {
		t.Errorf("after it came back with an old view:\n%s", text)
	}
	s.at = noon.Add(time.Second)
	if text := s.bare(); strings.Contains(text, "looked at nothing") {
		t.Errorf("with a view of now:\n%s", text)
	}
}

func TestNoAgentAtStart(t *testing.T) {
	s := show(t, 60, 10, node)
	s.view, s.gpus, s.slices = nil, nil, nil
	s.agent.fault = errors.New("no agent answers on /run/vgpud/vgpud.sock: it is started with `vgpud run`")
	s.look()
	s.press("down", "end", "tab", "enter", "s") // nothing to move in
	picture(t, "never", s.bare())
}

func TestPauseHoldsThePicture(t *testing.T) {
	s := show(t, 120, 30, node)
	before := s.bare()
	s.press("space")
	later := node()
	later.Slices = later.Slices[:1]
	s.agent.make = func() *control.View { return later }
	s.at = noon.Add(time.Hour)
	asked := s.agent.asked
	s.send(tickMsg(s.at))
	if s.fetching || s.agent.asked != asked {
		t.Error("a paused view asks the agent")
	}
	s.look() // an answer that was under way
	if text := s.bare(); !strings.Contains(text, "paused; space goes on") || !strings.Contains(text, "stream-0") {
		t.Errorf("before the pause:\n%s\nin it:\n%s", before, text)
	}
	s.press("space")
	s.fetching = false
	s.look()
	if text := s.bare(); strings.Contains(text, "paused") || strings.Contains(text, "stream-0 ") {
		t.Errorf("after the pause:\n%s", text)
	}
}

func TestOneFetchAtATime(t *testing.T) {
	s := show(t, 80, 24, node)
	if s.fetch() == nil || s.fetch() != nil {
		t.Error("a slow agent is asked again before it has answered")
	}
}

func TestSelectionStaysOnItsRow(t *testing.T) {
	s := show(t, 120, 40, node)
	s.press("down") // k2, ml/train-7 in the order of names
	selected := s.slice
	for range orders() {
		s.press("s")
		if s.slice != selected {
			t.Fatalf("sorted by %s: %q is selected, want %q", orders()[s.order].name, s.slice, selected)
		}
	}
	without := node()
	for i, slice := range without.Slices {
		if slice.Allocation+" "+slice.GPUUUID == selected {
			without.Slices = append(without.Slices[:i:i], without.Slices[i+1:]...)
			break
		}
	}
	s.agent.make = func() *control.View { return without }
	s.look()
	if s.selectedSlice() != 1 {
		t.Errorf("after its slice has gone row %d is selected, want its neighbour 1", s.selectedSlice())
	}
	s.press("end", "home", "up", "pgdown", "down", "down")
	if i := s.selectedSlice(); i != len(s.slices)-1 {
		t.Errorf("row %d of %d is selected", i, len(s.slices))
	}
}

func TestOrders(t *testing.T) {
	names := func(rows []sliceRow) string {
		var keys []string
		for _, row := range rows {
			keys = append(keys, row.Allocation)
		}
		return strings.Join(keys, " ")
	}
	titles := map[string]bool{}
	for _, column := range sliceColumns() {
		titles[column.title] = true
	}
	want := map[string]string{"GPU": "k2 k1 k3 k4", "SLICE": "k2 k1 k3 k4", "MEMORY": "k2 k1 k4 k3", "SHARE": "k1 k2 k4 k3", "WAIT": "k2 k1 k4 k3",
		"LAUNCH/s": "k1 k2 k4 k3", "DRAM": "k2 k1 k3 k4", "PCIe>": "k2 k1 k3 k4", "PCIe<": "k2 k1 k3 k4", "PRESSURE": "k1 k2 k3 k4", "VERDICT": "k2 k1 k3 k4"}
	for _, order := range orders() {
		if !titles[order.name] {
			t.Errorf("no column is called %s", order.name)
		}
		if got := names(sliceRows(node(), order, false, "")); got != want[order.name] {
			t.Errorf("by %s: %s, want %s", order.name, got, want[order.name])
		}
	}
	for filter, want := range map[string]string{"": "k2 k1 k3 k4", "ml/": "k2 k1", "ML train": "k1", "gpu0": "k2 k1 k3", "GPU1": "k4", "k3": "k3", "over-limit": "k2",
		"GPU-1bbb": "k4", "nobody": "", "gpu10": ""} {
		if got := names(sliceRows(node(), orders()[0], false, filter)); got != want {
			t.Errorf("filter %q leaves %q, want %q", filter, got, want)
		}
	}
}

func TestFilterIsTyped(t *testing.T) {
	s := show(t, 120, 30, node)
	s.press("/ab c", "backspace")
	s.send(tea.PasteMsg{Content: "ö\x1b]0;x\a\n\u202e"})
	if s.filter.text != "ab ö]0;x" {
		t.Errorf("typed %q", s.filter.text)
	}
	s.send(tea.KeyPressMsg{Code: 'w', Mod: tea.ModCtrl})
	if s.filter.text != "ab " {
		t.Errorf("without the last word %q", s.filter.text)
	}
	s.press("q?s") // keys are text here
	if !s.filtering || s.filter.text != "ab q?s" {
		t.Errorf("typed %q", s.filter.text)
	}
	s.press("esc")
	if s.filtering || s.filter.text != "" || len(s.slices) != 4 {
		t.Errorf("after esc %q leaves %d slices", s.filter.text, len(s.slices))
	}
	s.press("/", strings.Repeat("x", 500), "backspace")
	if len(s.filter.text) >= longestFilter {
		t.Errorf("%d characters", len(s.filter.text))
	}
	s.press("enter", "esc")
	if len(s.slices) != 4 {
		t.Error("esc does not clear the filter")
	}
}

func TestQuit(t *testing.T) {
	for _, msg := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		s := show(t, 80, 24, node)
		command := s.send(msg)
		if command == nil {
			t.Fatalf("%s does nothing", msg)
		}
		if _, is := command().(tea.QuitMsg); !is {
			t.Errorf("%s does not quit", msg)
		}
	}
	s := show(t, 80, 24, node)
	s.press("/")
	if command := s.send(tea.KeyPressMsg{Code: 'c', Mod: tea.ModCtrl}); command == nil {
		t.Error("ctrl+c does not quit while the filter is typed")
	}
}

// hostile are texts that a container can have in the name of a program, and what must not get through.
var hostile = []string{
	"\x1b[2J\x1b[31mred", "\x1b]0;title\x07", "\u009b31m", "\u009d0;t\u009c", "a\rb\nc\td\x00", "\x7f\x7f", "\u202egnp.exe", "\u2066x\u2069", "a\u200bb\ufeff",
	"\u2028two\u2029", "\xff\xfe\x80", strings.Repeat("\u0301", 300), strings.Repeat("x", 5000), "日本語コンテナ名", "👩‍👩‍👧‍👦👍🏽", "\U000e0041tag", "\x1bP$q\x1b\\", "\x1b[6n\x05",
}

func TestHostileNames(t *testing.T) {
	for _, text := range hostile {
		view := node()
		poison(reflect.ValueOf(view).Elem(), text)
		view.Slices[0].GPUUUID, view.GPUs[0].UUID = "GPU-0aaa", "GPU-0aaa"
		var out bytes.Buffer
		if err := Once(t.Context(), &agent{make: func() *control.View { return view }}, &out, false); err != nil {
			t.Fatal(err)
		}
		harmless(t, text, out.String())

		poisoned := func() *control.View {
			view := node()
			poison(reflect.ValueOf(view).Elem(), text)
			return view
		}
		for _, keys := range [][]string{nil, {"enter"}, {"tab", "enter"}} {
			s := show(t, 100, 40, poisoned)
			s.press(keys...)
			harmless(t, text, s.bare())
			s.send(fetchedMsg{fault: errors.New("gone")})
			harmless(t, text, s.bare())
		}
	}
}

// poison puts text at the end of every text of the view.
func poison(value reflect.Value, text string) {
	switch value.Kind() {
	case reflect.String:
		value.SetString(value.String() + text)
	case reflect.Struct:
		for _, field := range value.Fields() {
			if value.Type() != reflect.TypeFor[time.Time]() {
				poison(field, text)
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			poison(value.Index(i), text)
		}
	case reflect.Pointer:
		if !value.IsNil() {
			poison(value.Elem(), text)
		}
	default:
	}
}

func harmless(t *testing.T, from, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%.40q: not text", from)
	}
	for _, char := range text {
		if char != '\n' && !unicode.IsPrint(char) {
			t.Errorf("%.40q: %U gets through", from, char)
			return
		}
	}
}

// TestHostileNamesAsJSON: the JSON says the same, in characters that a terminal shows.
func TestHostileNamesAsJSON(t *testing.T) {
	for _, text := range hostile {
		view := &control.View{Version: 1, Node: text}
		var out bytes.Buffer
		if err := Once(t.Context(), &agent{make: func() *control.View { return view }}, &out, true); err != nil {
			t.Fatal(err)
		}
		harmless(t, text, out.String())
		var back control.View
		if err := json.Unmarshal(out.Bytes(), &back); err != nil {
			t.Errorf("%q: %v in %s", text, err, out.String())
			continue
		}
		if want := strings.ToValidUTF8(text, "\ufffd"); utf8.ValidString(text) && back.Node != want {
			t.Errorf("%q became %q", want, back.Node)
		}
	}
}

func TestOnce(t *testing.T) {
	var out bytes.Buffer
	if err := Once(t.Context(), &agent{make: node}, &out, false); err != nil {
		t.Fatal(err)
	}
	picture(t, "once", strings.TrimSuffix(out.String(), "\n"))
	out.Reset()
	if err := Once(t.Context(), &agent{make: func() *control.View { return &control.View{Version: 1, Time: noon} }}, &out, false); err != nil {
		t.Fatal(err)
	}
	picture(t, "once-nothing", strings.TrimSuffix(out.String(), "\n"))
	fault := errors.New("gone")
	if err := Once(t.Context(), &agent{fault: fault}, &out, true); !errors.Is(err, fault) {
		t.Errorf("once without an agent: %v", err)
	}
	if err := Once(t.Context(), &agent{make: node}, failingWriter{}, true); err == nil {
		t.Error("a full disk is no fault")
	}
}

type failingWriter struct{}

// Write implements io.Writer.
func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestEvidenceIsSaidOnce: the agent's text has both names, and is the why of both verdicts too.
func TestEvidenceIsSaidOnce(t *testing.T) {
	view := node()
	const text = "ml/train-7/main lost 41 % to dram; antagonist ml/stream-0/copy"
	view.GPUs[0].Evidence.Text, view.Slices[0].Verdicts[0].Why, view.Slices[1].Verdicts[0].Why = text, text, text
	all := strings.Join(plainLines(view), "\n")
	if strings.Count(all, text) != 1 || strings.Contains(all, text+"; victim") {
		t.Error(all)
	}
	if detail := strings.Join(sliceDetail(sliceRow{&view.Slices[0], &view.GPUs[0]}, 200), "\n"); !strings.Contains(detail, "victim: "+text) {
		t.Error(detail)
	}
}

// TestKilledIsSaid: killing leaves nothing to look at but the finding.
func TestKilledIsSaid(t *testing.T) {
	finding := control.Finding{Kind: "no-slot", Action: "kill", Detail: "d"}
	if text := findingText(finding); !strings.HasSuffix(text, ": d; killed") {
		t.Error(text)
	}
}

func TestFigures(t *testing.T) {
	for got, want := range map[string]string{
		percent(0): "0.0%", percent(0.0001): "0.1%", percent(0.0949): "9.5%", percent(0.0996): "10%", percent(1): "100%", percent(1.5): "150%",
		scaled(0): "0", scaled(1): "1", scaled(0.25): "0.25", scaled(999.4): "999", scaled(999.9): "1.00k", scaled(1.25e9): "1.25G", scaled(-1): unknown,
		binary(0): "0", binary(1023): "1.00Ki", binary(8 << 30): "8.00Gi", binary(80 << 30): "80.0Gi", binary(1<<64 - 1): "16384Pi",
		span(-time.Second): "0s", span(59 * time.Second): "59s", span(200 * time.Second): "3m20s", span(25 * time.Hour): "25h00m", span(50 * time.Hour): "2d02h",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
