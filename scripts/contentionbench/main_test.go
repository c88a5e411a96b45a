// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/scripts/benchnode"
	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
	"github.com/vgpud/vgpud/scripts/contentionbench/virtual"
)

// knownToFail are rules that fail on rows of the short form; else the rows flatter everybody.
var knownToFail = map[string][]string{"bursts": {rule20, rule30, ruleOutlier}, "oscillation": {rule20, ruleDwell}, "self": {ruleDevice},
	"dvfs": {rule20}, "downtrain": {rule20, rule30}}

// TestShortForm is the short form of `make bench-contention`: some rows, cut short, in virtual time with one seed. Ours meets
// its targets; other rules fail where they are known to.
func TestShortForm(t *testing.T) {
	for _, r := range allRows() {
		if !r.short {
			continue
		}
		t.Run(r.id, func(t *testing.T) {
			t.Parallel()
			records, _ := runRow(r.shortened(), 1, io.Discard)
			for _, made := range records {
				if made.Kind == kindOurs && !made.Pass {
					t.Errorf("target: %s\n%s", made.Target, made.line())
				}
				if slices.Contains(knownToFail[r.id], made.Rule) && made.Pass {
					t.Errorf("%s passes", made.line())
				}
			}
		})
	}
	for id := range knownToFail {
		if !slices.ContainsFunc(allRows(), func(r row) bool { return r.id == id && r.short }) {
			t.Errorf("no row %s in the short form", id)
		}
	}
}

func TestRowsAreSound(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range slices.Concat(allRows(), realRows()) {
		if seen[r.id] {
			t.Errorf("two rows are called %s", r.id)
		}
		seen[r.id] = true
		free := benchnode.SlicesPerCard
		for _, t := range r.scene.Filled().Tenants {
			free -= t.Slices
		}
		if free <= 0 {
			t.Errorf("%s: its tenants hold all of the card: a verdict would withdraw nothing, and nobody would see it", r.id)
		}
		if r.expect == nil {
			continue
		}
		if !slices.ContainsFunc(r.scene.Tenants, func(t scene.Tenant) bool { return t.Name == r.expect.antagonist }) || r.expect.to > r.scene.Length {
			t.Errorf("%s: expects %+v, which its scene does not have", r.id, *r.expect)
		}
	}
	for _, r := range allRealRows() {
		if tenants := len(r.scene.Tenants); len(r.programs) != tenants {
			t.Errorf("%s: %d tenants, %d programs", r.id, tenants, len(r.programs))
		}
	}
}

// In virtual time too a verdict is what the kubelet is told of it: of a card whose tenants hold all of it, nothing.
func TestVerdictsAreThoseThatTheKubeletSees(t *testing.T) {
	severe := func(slices int) int {
		t.Helper()
		r := rowOf(t, "severe").shortened()
		for i := range r.scene.Tenants {
			r.scene.Tenants[i].Slices = slices
		}
		o := watch(r, map[string]rule{ruleFast: newShipped(health.FastPolicy(), r.scene)})
		return len(o.episodes[ruleFast])
	}
	if some, all := severe(33), severe(benchnode.SlicesPerCard/3+1); some != 1 || all != 0 {
		t.Errorf("%d verdicts with a slice to withdraw, %d without any, want 1 and 0", some, all)
	}
}

func rowOf(t *testing.T, id string) row {
	t.Helper()
	rows := allRows()
	i := slices.IndexFunc(rows, func(r row) bool { return r.id == id })
	if i < 0 {
		t.Fatalf("there is no row %s", id)
	}
	return rows[i]
}

// outcomeOf is an hour with these episodes.
func outcomeOf(r row, episodes ...episode) outcome {
	return outcome{row: r, length: time.Hour, episodes: map[string][]episode{ruleDefault: episodes}}
}

func TestVerdictsAreJudged(t *testing.T) {
	quiet := row{id: "q", scene: scene.Scene{Length: time.Hour, Tenants: []scene.Tenant{{Name: "victim"}, {Name: "neighbour"}, {Name: "third"}}}}
	noisy := quiet
	noisy.expect = &expectation{span{10 * time.Minute, 20 * time.Minute}, "neighbour"}
	key := virtual.Key(scene.Tenant{Name: "neighbour"})
	for name, c := range map[string]struct {
		o      outcome
		missed int
	}{
		"nothing":            {outcomeOf(quiet), 0},
		"a verdict":          {outcomeOf(quiet, episode{time.Minute, 2 * time.Minute, key}), 2},
		"found":              {outcomeOf(noisy, episode{11 * time.Minute, 23 * time.Minute, key}), 0},
		"nobody named":       {outcomeOf(noisy, episode{11 * time.Minute, 23 * time.Minute, ""}), 1},
		"over too soon":      {outcomeOf(noisy, episode{11 * time.Minute, 13 * time.Minute, key}), 1},
		"wrong one":          {outcomeOf(noisy, episode{11 * time.Minute, 23 * time.Minute, virtual.Key(scene.Tenant{Name: "third"})}), 2},
		"not found":          {outcomeOf(noisy), 1},
		"too late":           {outcomeOf(noisy, episode{13 * time.Minute, 23 * time.Minute, key}), 1},
		"not over":           {outcomeOf(noisy, episode{11 * time.Minute, 0, key}), 2},
		"flaps":              {outcomeOf(noisy, episode{11 * time.Minute, 13 * time.Minute, key}, episode{14 * time.Minute, 23 * time.Minute, key}), 2},
		"before it began":    {outcomeOf(noisy, episode{5 * time.Minute, 23 * time.Minute, key}), 2},
		"again after it was": {outcomeOf(noisy, episode{11 * time.Minute, 23 * time.Minute, key}, episode{30 * time.Minute, 31 * time.Minute, key}), 2},
	} {
		if missed := c.o.row.missed(ruleDefault, c.o.judgeVerdicts(ruleDefault)); len(missed) != c.missed {
			t.Errorf("%s: missed %v, want %d", name, missed, c.missed)
		}
	}
}

func TestAttributionIsJudged(t *testing.T) {
	var o outcome
	for i := range 100 {
		p := point{at: learning + time.Duration(i)*time.Second, attributed: map[string][]portion{"dram": {{0.6, 0.5, true}, {0, 0.4, false}, {0, 0.01, false}}}}
		o.points = append(o.points, p)
	}
	var f Figures
	o.judgeAttribution(&f)
	if f.Attribution == nil || math.Abs(*f.Attribution-10) > 1e-6 || math.Abs(*f.Unknown-50) > 1e-6 {
		t.Errorf("figures %+v", f.rounded())
	}
}

// Where tenants can be told apart they have to be, and where nobody can tell nothing must be told.
func TestUnattributedIsBounded(t *testing.T) {
	plain := row{scene: scene.Scene{Length: time.Hour}}
	vague, hidden := plain, plain
	vague.vague, hidden.untold = true, span{learning, learning + 57*time.Minute/2}
	for name, c := range map[string]struct {
		row     row
		percent float64
		passes  bool
	}{
		"told": {plain, 1, true}, "hardly told": {plain, 90, false}, "vague": {vague, 100, true}, "hidden": {hidden, 52, true},
		"told though it is hidden": {hidden, 0, false}, "never told": {hidden, 100, false},
	} {
		if missed := c.row.missed(ruleDefault, Figures{Unknown: &c.percent}); (len(missed) == 0) != c.passes {
			t.Errorf("%s: missed %v, passes %t", name, missed, c.passes)
		}
	}
}

// What the agent finds has to reach the kubelet, soon.
func TestAgentAndKubeletAreCompared(t *testing.T) {
	found := []episode{{from: time.Minute, to: 2 * time.Minute}}
	for name, c := range map[string]struct {
		told   []episode
		missed int
	}{
		"at once": {found, 0}, "soon": {[]episode{{from: 63 * time.Second, to: 2 * time.Minute}}, 0}, "never": {nil, 1},
		"late": {[]episode{{from: 70 * time.Second, to: 2 * time.Minute}}, 1}, "for ever": {[]episode{{from: time.Minute}}, 1},
	} {
		o := outcome{episodes: map[string][]episode{ruleHeld: found, ruleShort: c.told}}
		if missed := o.untold(); len(missed) != c.missed {
			t.Errorf("%s: missed %v, want %d", name, missed, c.missed)
		}
	}
}

func TestRealAndVirtualAreCompared(t *testing.T) {
	there := Figures{Detect: new(30.0), Recover: new(100.0), Shown: new(70.0)}
	for name, c := range map[string]struct {
		here   Figures
		missed int
	}{
		"same":          {there, 0},
		"close":         {Figures{Detect: new(41.0), Recover: new(80.0), Shown: new(66.0)}, 0},
		"later":         {Figures{Detect: new(50.0), Recover: new(80.0), Shown: new(66.0)}, 1},
		"never":         {Figures{Detect: new(-1.0), Shown: new(70.0)}, 2},
		"less pressure": {Figures{Detect: new(30.0), Recover: new(100.0), Shown: new(50.0)}, 1},
		"names nobody":  {Figures{Detect: new(30.0), Recover: new(100.0), Shown: new(70.0), Unnamed: 1}, 1},
		"false verdict": {Figures{Detect: new(30.0), Recover: new(100.0), Shown: new(70.0), False: 1}, 1},
	} {
		if missed := apart(c.here, there); len(missed) != c.missed {
			t.Errorf("%s: missed %v, want %d", name, missed, c.missed)
		}
	}
}

// TestResults: what is written can be read again, and a later run of some rows keeps the others.
func TestResults(t *testing.T) {
	dir := t.TempDir()
	run := func(pattern string) {
		t.Helper()
		if _, err := bench(context.Background(), options{row: regexp.MustCompile(pattern), virtual: true, short: true, seeds: 1, out: dir}, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	run("^pcie-3$")
	run("^downtrain$")
	data, err := os.ReadFile(filepath.Join(dir, recordsFile))
	if err != nil {
		t.Fatal(err)
	}
	var records []record
	if err := json.Unmarshal(data, &records); err != nil {
		t.Fatal(err)
	}
	if len(records) != 14 || records[0].Row != "downtrain" || records[13].Row != "pcie-3" {
		t.Errorf("%d records from %s to %s, want seven of each row in the table's order", len(records), records[0].Row, records[len(records)-1].Row)
	}
	page, err := os.ReadFile(filepath.Join(dir, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| downtrain |", "| pcie-3 |", "(contention-downtrain.svg)"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	var out, errors bytes.Buffer
	for _, c := range []struct {
		args []string
		code int
	}{{[]string{"--help"}, 0}, {[]string{"--list"}, 0}, {[]string{"--virtual", "--real"}, 2}, {[]string{"--row", "("}, 2}, {[]string{"--seeds", "0"}, 2}, {[]string{"more"}, 2}} {
		if code := mainCode(c.args, &out, &errors); code != c.code {
			t.Errorf("%v: code %d, want %d", c.args, code, c.code)
		}
	}
	if !strings.Contains(out.String(), "sustained") || !strings.Contains(errors.String(), "--row") {
		t.Errorf("--list and --help say %q, %q", out.String(), errors.String())
	}
}
