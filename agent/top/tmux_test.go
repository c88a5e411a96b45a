// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The live view on a real terminal: tmux has one, takes keys, changes its size and says what stands on it. The agent's
// socket is a real one too, and goes and comes back.

package top

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/internal/require"
)

// liveVariable names the socket for the test binary as the program on the terminal; see liveProgram.
const liveVariable = "VGPUD_TEST_TOP_SOCKET"

// patience bounds what takes an instant on an idle machine.
const patience = 30 * time.Second

// liveProgram shows what is told on the socket, says how it ended, and waits to be looked at.
func liveProgram(path string) {
	client := control.NewClient(path)
	err := Live(context.Background(), client, Options{Interval: 200 * time.Millisecond, In: os.Stdin, Out: os.Stdout, Environ: os.Environ()})
	client.Close()
	fmt.Printf("ended: %v\n", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// terminal is a tmux server of the test's own, with one window.
type terminal struct {
	t      *testing.T
	tmux   string
	socket string
}

func startTerminal(t *testing.T, width, height int, environment ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, tmux: require.Tool(t, "tmux"), socket: filepath.Join(shortDir(t), "tmux")}
	arguments := []string{"-f", "/dev/null", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height)}
	for _, variable := range environment {
		arguments = append(arguments, "-e", variable)
	}
	term.run(append(arguments, "exec "+os.Args[0])...)
	t.Cleanup(func() { term.run("kill-server") })
	return term
}

func (term *terminal) run(arguments ...string) string {
	term.t.Helper()
	cmd := exec.Command(term.tmux, append([]string{"-S", term.socket}, arguments...)...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		term.t.Fatalf("tmux %v: %v\n%s", arguments, err, out)
	}
	return string(out)
}

func (term *terminal) press(keys ...string) {
	term.t.Helper()
	term.run(append([]string{"send-keys"}, keys...)...)
}

// shows waits until the terminal shows each of what is wanted and nothing of what is not (those that begin with "!").
func (term *terminal) shows(wanted ...string) {
	term.t.Helper()
	var screen string
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		screen = term.run("capture-pane", "-p")
		missing := false
		for _, text := range wanted {
			if text, not := strings.CutPrefix(text, "!"); strings.Contains(screen, text) == not {
				missing = true
			}
		}
		if !missing {
			return
		}
		if time.Now().After(deadline) {
			term.t.Fatalf("want %q on the terminal, which shows\n%s", wanted, screen)
		}
	}
}

// shortDir is a directory whose name fits in the address of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vgpud")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// startAgent serves views until stop is called.
func startAgent(t *testing.T, path string, view func() *control.View) (stop func()) {
	t.Helper()
	server := control.New(control.Config{Path: path, View: view, Log: slog.New(slog.DiscardHandler)})
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("agent: %v", err)
		}
		if err := server.Close(); err != nil {
			t.Errorf("agent: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// current is node with the time of the tick.
func current() *control.View {
	view := node()
	view.Time = time.Now()
	return view
}

func TestOnATerminal(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	stop := startAgent(t, path, current)
	term := startTerminal(t, 120, 30, liveVariable+"="+path, "LC_ALL=C.UTF-8")
	term.shows("gpu-node-1", "gpu-lost", "ml/train-7/main", "antagonist", "? help")

	term.press("Down", "Enter")
	term.shows("── why", "verdict      victim: dram: 41 % lost", "some avg10=41.00")
	term.press("Tab")
	term.shows("health       contended for ", "evidence     contended")
	term.press("Enter", "Tab", "/", "web", "Enter")
	term.shows("filter: web", "!ml/train-7", "web/infer")
	term.press("Escape")
	term.shows("ml/train-7", "!filter:")
	term.press("?")
	term.shows("suspend", "time lost to others")
	term.press("?", "s", "s")
	term.shows("▼MEMORY")

	term.run("resize-window", "-x", "50", "-y", "15")
	term.shows("ml/train-7", "!WAIT", "!▼MEMORY  LIMIT")
	term.run("resize-window", "-x", "140", "-y", "40")
	term.shows("ml/train-7", "WAIT", "PCIe<")

	stop()
	term.shows("no agent for", "it is started with", "ml/train-7")
	startAgent(t, path, current)
	term.shows("!no agent for", "ml/train-7")

	term.press("Space")
	term.shows("paused")
	term.press("q")
	term.shows("ended: <nil>", "!gpu-lost") // the screen from before is back
}

// TestOnATerminalWithoutColours has hostile names on a terminal that asked for no colours: not one escape sequence of theirs
// works, and none of ours has a colour.
func TestOnATerminalWithoutColours(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	startAgent(t, path, func() *control.View {
		view := current()
		view.Slices[0].Pod = "\x1b[2J\x1b[31mRED\x1b]0;TITLE\x07\x1b[6n"
		view.Findings[0].Command = "\u009b31mC1\u202e"
		return view
	})
	term := startTerminal(t, 120, 30, liveVariable+"="+path, "LC_ALL=C.UTF-8", "NO_COLOR=1")
	term.shows("gpu-node-1", "RED", "C1", "ml/stream-0", "contended")
	screen := term.run("capture-pane", "-p", "-e")
	if strings.Contains(screen, "\x1b[31m") || strings.Contains(screen, "\x1b[33m") || strings.Contains(screen, "\x1b[32m") {
		t.Errorf("there are colours:\n%q", screen)
	}
	if title := term.run("display-message", "-p", "#{pane_title}"); strings.Contains(title, "TITLE") {
		t.Errorf("a pod has set the terminal's title: %q", title)
	}
	term.press("q")
	term.shows("ended: <nil>")
}

func TestSignalsEndIt(t *testing.T) {
	for signal, want := range map[string]string{"TERM": "ended: ", "INT": "ended: " + ErrInterrupted.Error()} {
		path := filepath.Join(shortDir(t), "s")
		startAgent(t, path, current)
		term := startTerminal(t, 80, 24, liveVariable+"="+path, "LC_ALL=C.UTF-8")
		term.shows("gpu-node-1", "ml/train-7")
		pid := strings.TrimSpace(term.run("display-message", "-p", "#{pane_pid}"))
		if out, err := exec.Command("kill", "-"+signal, pid).CombinedOutput(); err != nil {
			t.Fatalf("kill: %v\n%s", err, out)
		}
		term.shows(want, "!gpu-lost")
	}
}
