// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// TestShortForm is the short form of `make bench-compute`: a handful of rows of the acceptance table in virtual time.
func TestShortForm(t *testing.T) {
	for _, r := range allRows() {
		if !r.short {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			t.Parallel()
			result := runOneVirtual(r.shortened(), runKind{kindOurs, lawOurs, clockVirtual}, &bytes.Buffer{})
			if !result.Pass {
				t.Errorf("target: %s\n%s\nmissed: %v", result.Target, result.line(), result.Missed)
			}
		})
	}
}

// TestPeersFail: rows by which the peers' laws are known to fail do fail; else the model flatters everybody.
func TestPeersFail(t *testing.T) {
	for id, law := range map[string]string{"S1/188-SMs": lawBlock, "A5/graph-100": lawPID, "A2/30-70/20ms": lawBlock} {
		for _, r := range allRows() {
			if r.id == id {
				if result := runOneVirtual(r, runKind{kindPeer, law, clockVirtual}, &bytes.Buffer{}); result.Pass || result.err != nil {
					t.Errorf("%s: %s", law, result.line())
				}
			}
		}
	}
}

func TestRowsAreSound(t *testing.T) {
	seen, real := map[string]bool{}, 0
	for _, r := range allRows() {
		if seen[r.id] {
			t.Errorf("two rows are called %s", r.id)
		}
		seen[r.id] = true
		if r.criteria.String() == "" {
			t.Errorf("%s is held to nothing", r.id)
		}
		for _, variant := range []row{r, r.shortened()} {
			for _, s := range append(variant.criteria.Means, append(variant.criteria.Steps, variant.criteria.BothOn...)...) {
				if len(s.Targets) != len(r.scene.Tenants) || s.To <= s.From || s.To > variant.scene.Length {
					t.Errorf("%s: span %+v does not fit its scene", r.id, s)
				}
			}
		}
		if r.real {
			real++
		}
	}
	if real < 10 {
		t.Errorf("%d rows run in real time, want at least 10", real)
	}
}

// TestCollectiveAlone: what slowdowns are reckoned against is what the model does without a share.
func TestCollectiveAlone(t *testing.T) {
	for _, r := range allRows() {
		if r.criteria.Slowdown == nil {
			continue
		}
		r.scene.Tenants[0].Mode = scene.Uncapped
		result := runOneVirtual(r, runKind{kindOurs, lawOurs, clockVirtual}, &bytes.Buffer{})
		if got := *result.Figures.Slowdown; got < 0.999 || got > 1.001 {
			t.Errorf("%s: slowdown of %v without a share", r.id, got)
		}
	}
}

// TestResults: what is written can be read again, and a later run of some rows keeps the others.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	run := func(pattern string) {
		t.Helper()
		o := options{row: regexp.MustCompile(pattern), virtual: true, out: dir}
		if _, err := bench(context.Background(), o, &bytes.Buffer{}); err != nil {
			t.Fatal(err)
		}
	}
	run("^A4/20ms$")
	run("^A5/graph-1$")
	data, err := os.ReadFile(filepath.Join(dir, recordsFile))
	if err != nil {
		t.Fatal(err)
	}
	var records []record
	if err := json.Unmarshal(data, &records); err != nil {
		t.Fatal(err)
	}
	if len(records) != 6 || records[0].Row != "A4/20ms" || records[5].Row != "A5/graph-1" {
		t.Errorf("%d records from %s to %s, want three of each row in the table's order", len(records), records[0].Row, records[len(records)-1].Row)
	}
	page, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(page); !strings.Contains(text, "| A4/20ms |") || !strings.Contains(text, "| A5/graph-1 |") {
		t.Error("the page lacks a row")
	}
}

func TestExitCodes(t *testing.T) {
	var out, errors bytes.Buffer
	if code := mainCode([]string{"--help"}, &out, &errors); code != 0 || !strings.Contains(errors.String(), "--row") {
		t.Errorf("--help: code %d, %q", code, errors.String())
	}
	if code := mainCode([]string{"--virtual", "--real"}, &out, &errors); code != 2 {
		t.Errorf("--virtual --real: code %d, want 2", code)
	}
	if code := mainCode([]string{"--row", "("}, &out, &errors); code != 2 {
		t.Errorf("a pattern that is none: code %d, want 2", code)
	}
	failed := row{id: "X", criteria: scene.Criteria{Means: []scene.Span{whole(s, 50)}, MeanError: new(1.0)}, scene: scene.Scene{Length: s}}
	if r := failed.record(kindOurs, lawOurs, clockVirtual, scene.Outcome{Tenants: make([]scene.Track, 1)}); r.Pass {
		t.Error("a row that misses its target passes")
	}
}
