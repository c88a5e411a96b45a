// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the commands that ask the agent: what they print, how they end, and what they say when nobody answers.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/control"
)

// answering is an agent's control socket with a view of one card.
func answering(t *testing.T, thaw func(context.Context, control.ThawRequest) (control.ThawReply, error)) (path string) {
	t.Helper()
	path = filepath.Join(shortTemp(t), "s")
	view := &control.View{Version: control.Version, Time: time.Now(), Node: "n1", GPUs: []control.GPU{{UUID: gpuA, Model: "NVIDIA A100", Health: control.Health{Healthy: true, Reason: "ok"}}}}
	server := control.New(control.Config{Path: path, View: func() *control.View { return view }, Thaw: thaw, Log: slog.New(slog.DiscardHandler)})
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-done, server.Close()); err != nil {
			t.Error(err)
		}
	})
	return path
}

func TestTopOnce(t *testing.T) {
	path := answering(t, nil)
	code, stdout, stderr := commandLine("top", "--once", "--socket", path)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "node n1") || !strings.Contains(stdout, "NVIDIA A100") || !strings.Contains(stdout, "no slice is allocated") {
		t.Errorf("exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
	}
	t.Setenv(socketVariable, path) // as the agent itself may have it
	code, stdout, stderr = commandLine("top", "--once", "--json")
	var view control.View
	if err := json.Unmarshal([]byte(stdout), &view); code != 0 || stderr != "" || err != nil || view.Node != "n1" || view.Version != control.Version {
		t.Errorf("exit code %d, stderr %q, %v, stdout\n%s", code, stderr, err, stdout)
	}
}

func TestTopWithoutATerminal(t *testing.T) {
	path := answering(t, nil)
	code, stdout, stderr := commandLine("top", "--socket", path)
	if code != 1 || stdout != "" || stderr != "vgpud: the output is no terminal: --once prints one view to any output\n" {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestAskingNobody(t *testing.T) {
	stale := filepath.Join(shortTemp(t), "stale")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(shortTemp(t), "none"), stale, stale + "/below"} {
		for _, arguments := range [][]string{{"top", "--once"}, {"top", "--once", "--json"}, {"thaw", "--all"}} {
			code, stdout, stderr := commandLine(append(arguments, "--socket", path)...)
			if want := fmt.Sprintf("vgpud: no agent answers on %s: it is started with `vgpud run`", path); code != exitNoAgent || stdout != "" || !strings.HasPrefix(stderr, want) {
				t.Errorf("%v: exit code %d, stdout %q, stderr %q; want %d, %q", arguments, code, stdout, stderr, exitNoAgent, want)
			}
		}
	}
}

func TestThawCommand(t *testing.T) {
	var asked control.ThawRequest
	path := answering(t, func(_ context.Context, request control.ThawRequest) (control.ThawReply, error) {
		asked = request
		if request.Container == "none" {
			return control.ThawReply{}, fmt.Errorf("no such container: %w", control.ErrNotFrozen)
		}
		return control.ThawReply{Containers: []string{"3f2a9c", "b\x1b[2J"}}, nil
	})
	for _, test := range []struct {
		arguments string
		code      int
		asked     control.ThawRequest
		stderr    string
	}{
		{"thaw 3f2a", 0, control.ThawRequest{Container: "3f2a"}, ""},
		{"thaw --allocation key", 0, control.ThawRequest{Allocation: "key"}, ""},
		{"thaw --all", 0, control.ThawRequest{All: true}, ""},
		{"thaw none", exitNotFrozen, control.ThawRequest{Container: "none"}, "vgpud: no such container: not frozen\n"},
		{"thaw", 1, control.ThawRequest{}, "vgpud: name one container, one allocation, or all; see vgpud thaw --help\n"},
		{"thaw a --all", 1, control.ThawRequest{}, "vgpud: name one container, one allocation, or all; see vgpud thaw --help\n"},
		{"thaw a b", 1, control.ThawRequest{}, "vgpud: name one container, or --all; see vgpud thaw --help\n"},
	} {
		asked = control.ThawRequest{}
		code, stdout, stderr := commandLine(append(strings.Fields(test.arguments), "--socket", path)...)
		if code != test.code || asked != test.asked || stderr != test.stderr || strings.Contains(stdout, "\x1b") || (code == 0) != strings.HasPrefix(stdout, "thawed \"3f2a9c\"\n") {
			t.Errorf("vgpud %s: exit code %d, asked %+v, stdout %q, stderr %q", test.arguments, code, asked, stdout, stderr)
		}
	}
}

// TestAskingHelps: the help teaches what the figures mean, the keys, a script's way, and the exit codes.
func TestAskingHelps(t *testing.T) {
	for command, words := range map[string][]string{
		"top":  {"SHARE is the GPU time", "PRESSURE", "? lists them", "jq", "Exit codes", "--once", "--interval", "--socket"},
		"thaw": {"--witness=freeze", "Exit codes", "--all", "--allocation"},
	} {
		_, stdout, _ := commandLine(command, "--help")
		for _, word := range words {
			if !strings.Contains(stdout, word) {
				t.Errorf("vgpud %s --help does not say %q:\n%s", command, word, stdout)
			}
		}
	}
	if code, _, stderr := commandLine("top", "--interval", "1ms"); code != 1 || !strings.Contains(stderr, "want a duration from 200ms to 1m") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
