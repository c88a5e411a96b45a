// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the command line as a whole: what is wrong with it is said in one line that leads on.

package main

import (
	"bytes"
	"strings"
	"testing"
)

// commandLine runs vgpud in this process, and returns its exit code and what it printed.
func commandLine(arguments ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRootCommand()
	root.SetOut(&out)
	root.SetErr(&errs)
	code = execute(root, arguments)
	return code, out.String(), errs.String()
}

func TestUsageErrors(t *testing.T) {
	for _, test := range []struct {
		arguments string
		code      int
		stderr    string
	}{
		{"rnu", 1, "vgpud: unknown command \"rnu\": did you mean run?; see vgpud --help\n"},
		{"frobnicate", 1, "vgpud: unknown command \"frobnicate\"; see vgpud --help\n"},
		{"--frobnicate", 1, "vgpud: unknown flag: --frobnicate; see vgpud --help\n"},
		{"run --frobnicate", 1, "vgpud: unknown flag: --frobnicate; see vgpud run --help\n"},
		{"run now", 1, "vgpud: unexpected argument \"now\"; see vgpud run --help\n"},
		{"docs now", 1, "vgpud: unexpected argument \"now\"; see vgpud docs --help\n"},
		{"demo now", 1, "vgpud: unexpected argument \"now\"; see vgpud demo --help\n"},
		{"exec --frobnicate", 125, "vgpud: unknown flag: --frobnicate; see vgpud exec --help\n"},
		{"exec", 125, "vgpud: no command: vgpud exec --memory 4Gi -- COMMAND\n"},
		{"exec true", 125, "vgpud: --memory or --cores is needed: how much device memory the command may hold, e.g. 4Gi, " +
			"or how much of the GPU's time it may use, in percent\n"},
	} {
		code, stdout, stderr := commandLine(strings.Fields(test.arguments)...)
		if code != test.code || stderr != test.stderr || stdout != "" {
			t.Errorf("vgpud %s: exit code %d, stdout %q, stderr %q; want %d, %q", test.arguments, code, stdout, stderr, test.code, test.stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	for _, arguments := range []string{"version", "--version"} {
		code, stdout, stderr := commandLine(arguments)
		if want := versionText() + "\n"; code != 0 || stdout != want || stderr != "" {
			t.Errorf("vgpud %s: exit code %d, stdout %q, stderr %q; want %q", arguments, code, stdout, stderr, want)
		}
	}
}

// No subcommand is a question for help.
func TestNoArguments(t *testing.T) {
	code, stdout, stderr := commandLine()
	for _, part := range []string{"exec", "run", "demo", "Usage:"} {
		if code != 0 || stderr != "" || !strings.Contains(stdout, part) {
			t.Fatalf("exit code %d, stdout %q, stderr %q; want help with %q", code, stdout, stderr, part)
		}
	}
}
