// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// reported is what vgpud exec --report says of GPU time.
var reported = regexp.MustCompile(`granted (\S+) % of the GPU \((\w+)\), used (\S+) s of (\S+) s, (\S+) %; launches: (\d+)`)

// The report at the end says what was granted, what was used and why the program waited; as the card counts it.
func TestReportTellsTheTruth(t *testing.T) {
	t.Parallel()
	c := newCard(t)
	command := c.limitedCommand(30, program(t, "flood"), "kernel=busy_5ms", "count=150")
	command.Args = slices.Insert(command.Args, 2, "--report")
	p := start(t, command)
	p.done(patience)
	text := p.stderr.String()
	found := reported.FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no report of GPU time:\n%s", text)
	}
	if found[1] != "30" || found[2] != "hard" || found[6] != "150" {
		t.Errorf("want 30 percent hard and 150 launches:\n%s", text)
	}
	used, err := strconv.ParseFloat(found[3], 64)
	if err != nil {
		t.Fatal(err)
	}
	if busy := c.mark().busy.Seconds(); used < 0.97*busy || used > 1.03*busy {
		t.Errorf("the card was busy for %.3f s:\n%s", busy, text)
	}
	if share, err := strconv.ParseFloat(found[5], 64); err != nil || share < 15 || share > 33 {
		t.Errorf("a share of 30 percent was used to %s percent:\n%s", found[5], text)
	}
	waited := regexp.MustCompile(`kept waiting for GPU time: (\S+) s`).FindStringSubmatch(text)
	if waited == nil {
		t.Fatalf("no word of waiting:\n%s", text)
	}
	wall, err := strconv.ParseFloat(found[4], 64)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := strconv.ParseFloat(waited[1], 64); err != nil || s < wall/2 || s > wall {
		t.Errorf("a program that floods waits most of the time:\n%s", text)
	}
}
