// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of what vgpud exec --report says.

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The report is on standard error, after the command's own output, and changes nothing else.
func TestExecReport(t *testing.T) {
	command, base := vgpudExec(t, "--cores=30", "--report", "--", "sh", "-c", "echo own; echo fault >&2; exit 3")
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if code := exitCode(t, command.Run()); code != 3 || stdout.String() != "own\n" {
		t.Errorf("exit code %d, output %q", code, stdout.String())
	}
	want := "fault\nvgpud: GPU time: granted 30 % of the GPU (hard), used none: nothing was launched\n" +
		"vgpud: memory: granted 1 GiB; requests: 0, of them refused: 0\nvgpud: copies: none\n"
	if diff := cmp.Diff(want, stderr.String()); diff != "" {
		t.Error(diff)
	}
	checkEmpty(t, base)

	// A command that takes its own pages away is told so; its exit code stays.
	command, _ = vgpudExec(t, "--report", "--", "sh", "-c", `rm "`+base+`"/*/alloc/*/usage; exit 4`)
	command.Env = append(command.Env, "XDG_RUNTIME_DIR="+strings.TrimSuffix(base, "/vgpud"))
	stderr.Reset()
	command.Stderr = &stderr
	if code := exitCode(t, command.Run()); code != 4 || !strings.Contains(stderr.String(), "vgpud: no report: ") {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
