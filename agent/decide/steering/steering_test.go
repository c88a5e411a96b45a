// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Runs every case of testdata/*.txt; see testdata/README.md for the words.

package steering

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/monitor"
)

func TestSteerCases(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no cases (%v)", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			runSteerCase(t, string(text))
		})
	}
}

// steerCase is a case that is being played.
type steerCase struct {
	now     time.Duration
	state   State
	charged map[string]time.Duration
	waited  map[string]time.Duration // in all
	wanted  map[string]time.Duration // when last
	waits   map[string]time.Duration // when last
	rates   map[string]uint32        // in force
	sampled time.Duration            // when there was a sample last
}

func runSteerCase(t *testing.T, text string) {
	t.Helper()
	c := &steerCase{now: time.Hour, charged: map[string]time.Duration{}, waited: map[string]time.Duration{},
		wanted: map[string]time.Duration{}, waits: map[string]time.Duration{}, rates: map[string]uint32{}}
	for number, phase := range strings.Split(text, "\nphase")[1:] {
		name, _, _ := strings.Cut(phase, "\n")
		var want []string
		span := 20 * time.Millisecond
		for line := range strings.SplitSeq(phase, "\n") {
			if words, found := strings.CutPrefix(line, "want "); found {
				want = append(want, words)
			}
			if words, found := strings.CutPrefix(line, "for "); found {
				span = time.Duration(number64(t, words)) * time.Millisecond
			}
			if words, found := strings.CutPrefix(line, "clock "); found {
				c.now += time.Duration(number64(t, words)) * time.Millisecond
			}
		}
		var got []string
		for end := c.now + span; c.now < end; c.now += 20 * time.Millisecond {
			got = c.round(t, phase)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("phase %d%s (-want +got):\n%s", number+1, name, diff)
		}
	}
}

// round plays one round of a phase and says what was decided.
func (c *steerCase) round(t *testing.T, phase string) []string {
	t.Helper()
	seen := &monitor.Compute{Now: c.now}
	samples := c.now-c.sampled >= 200*time.Millisecond
	for line := range strings.SplitSeq(phase, "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) > 0 && words[0] == "tenant":
			seen.Tenants = append(seen.Tenants, c.tenant(t, words[1:]))
		case len(words) > 0 && words[0] == "sample" && samples:
			c.sampled = c.now
			seen.Samples = append(seen.Samples, monitor.Utilization{Key: strings.TrimPrefix(words[1], "foreign"), GPUUUID: "GPU-a",
				Busy: float64(number64(t, words[2])) / 100, At: c.now})
		}
	}
	before := ""
	if c.now%(500*time.Millisecond) == 0 {
		before = fmt.Sprintf("%+v", c.state)
	}
	steering, next := Steer(seen, DefaultPolicy(), c.state)
	if before != "" && fmt.Sprintf("%+v", c.state) != before {
		t.Errorf("Steer changed the state it was given")
	}
	c.state = next
	var got []string
	for i, rate := range steering.Rates {
		c.rates[rate.Key] = rate.PPM
		got = append(got, renderSteering(rate, steering.Verdicts[i]))
	}
	return got
}

// tenant reads a line and lets the tenant go on for one round.
func (c *steerCase) tenant(t *testing.T, words []string) monitor.Tenant {
	t.Helper()
	key := words[0]
	tenant := monitor.Tenant{Key: key, GPUUUID: "GPU-a", CeilingPPM: ppm, Known: true, ScalePPM: ppm, RatePPM: c.rates[key]}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "hard":
			tenant.Mode = monitor.ComputeHard
		case "elastic":
			tenant.Mode = monitor.ComputeElastic
		case "share":
			tenant.SharePPM = uint32(number64(t, value)) * ppm / 100
		case "ceiling":
			tenant.CeilingPPM = uint32(number64(t, value)) * ppm / 100
		case "wants":
			c.wanted[key] = c.now
		case "waits":
			c.wanted[key], c.waits[key], tenant.Debt = c.now, c.now, time.Millisecond
			c.waited[key] += 20 * time.Millisecond
		case "charges": // percent of the GPU
			c.wanted[key] = c.now
			c.charged[key] += time.Duration(number64(t, value)) * 20 * time.Millisecond / 100
		case "lump": // ms at once
			c.wanted[key] = c.now
			c.charged[key] += time.Duration(number64(t, value)) * time.Millisecond
		case "reset":
			c.charged[key] = 0
		case "unreadable":
			tenant.Known = false
		default:
			t.Fatalf("unknown word %q", word)
		}
	}
	if tenant.Known {
		tenant.Charged, tenant.Throttled, tenant.Wanted, tenant.Waited = c.charged[key], c.waited[key], c.wanted[key], c.waits[key]
	}
	return tenant
}

// renderSteering writes what was decided about one tenant in the words of the test files.
func renderSteering(rate Rate, verdict Verdict) string {
	line := fmt.Sprintf("%s rate=%.1f scale=%.2f", rate.Key, float64(rate.PPM)*100/ppm, float64(rate.ScalePPM)/ppm)
	if verdict.UsedKnown {
		line += fmt.Sprintf(" used=%.0f", 100*verdict.Used)
	}
	for _, flag := range []struct {
		name string
		set  bool
	}{{"alone", rate.Alone}, {"over-share", verdict.OverShare}, {"held", verdict.Held}} {
		if flag.set {
			line += " " + flag.name
		}
	}
	return line
}

func number64(t *testing.T, text string) int64 {
	t.Helper()
	value, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return value
}
