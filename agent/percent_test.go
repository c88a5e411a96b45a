// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Shares of a GPU's time, from the table that the shim's parser is held to as well.

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestPercentTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "libvgpu", "test", "testdata", "cores.txt"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		quoted, want, found := strings.Cut(line, "\t")
		input, err := strconv.Unquote(quoted)
		if !found || err != nil {
			t.Fatalf("bad row %q", line)
		}
		rows++
		got := "error"
		percent, set, err := parsePercent(input)
		switch {
		case err == nil && set:
			got = strconv.Itoa(percent)
		case err == nil:
			got = "unset"
		}
		if got != want {
			t.Errorf("%s: got %s, want %s (%v)", quoted, got, want, err)
		}
		if err != nil && (percent != 0 || set || !strings.Contains(err.Error(), strconv.Quote(input)) || !strings.Contains(err.Error(), percentRule)) {
			t.Errorf("%s: an error comes with the value %d, or lacks the text or the rule: %v", quoted, percent, err)
		}
	}
	if rows < 40 {
		t.Errorf("only %d rows", rows)
	}
}

func TestFormatPercent(t *testing.T) {
	for ppm, want := range map[uint32]string{1_000_000: "100", 300_000: "30", 333_333: "33.3333", 10_000: "1", 12_500: "1.25", 0: "0"} {
		if got := formatPercent(ppm); got != want {
			t.Errorf("%d: got %q, want %q", ppm, got, want)
		}
	}
}
