// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/scripts/benchpage"
)

// record is what one rule came to on one row.
type record struct {
	Kind    string   `json:"kind"` // ours, or peer
	Rule    string   `json:"rule"`
	Clock   string   `json:"clock"` // virtual, or real
	Row     string   `json:"row"`
	Title   string   `json:"title"`
	Minutes float64  `json:"minutes"` // of the scene
	Seeds   int      `json:"seeds"`
	Figures Figures  `json:"figures"`
	Target  string   `json:"target"`
	Pass    bool     `json:"pass"`
	Missed  []string `json:"missed,omitempty"`
	// Of rows in real time.
	Twin *Figures `json:"virtual,omitempty"`      // the same scene in virtual time
	Load *float64 `json:"load_average,omitempty"` // of the machine: threads that run or want to
}

// Values of record's fields.
const (
	kindOurs, kindPeer      = "ours", "peer"
	clockVirtual, clockReal = "virtual", "real"
)

// rulesOf are the rules that run on a row, made anew.
func rulesOf(r row) map[string]rule {
	rules := peers()
	rules[ruleDefault] = newShipped(health.DefaultPolicy(), r.scene)
	rules[ruleFast] = newShipped(health.FastPolicy(), r.scene)
	return rules
}

// runRow runs a row with all rules and several seeds. The outcome is that of the first one, for the plot.
func runRow(r row, seeds int, trace io.Writer) (records []record, first outcome) {
	figures := map[string]Figures{}
	for seed := range seeds {
		again := r
		again.scene.Seed += uint64(seed) * 1000
		rules := rulesOf(again)
		o := watch(again, rules)
		for name := range rules {
			f := o.judgeVerdicts(name)
			if _, ours := rules[name].(*shipped); ours {
				o.judgeAttribution(&f)
				o.judgePressure(&f)
			}
			if seed > 0 {
				f = worst(figures[name], f)
			}
			figures[name] = f
		}
		if ours, ok := rules[ruleDefault].(*shipped); ok {
			for _, line := range ours.told {
				fmt.Fprintf(trace, "%s, seed %d: %s\n", r.id, seed, line)
			}
		}
		if seed == 0 {
			first = o
		}
	}
	for _, name := range slices.Concat(oursNames, peerNames) {
		records = append(records, r.record(name, clockVirtual, seeds, figures[name]))
	}
	return records, first
}

func (r row) record(rule, clock string, seeds int, f Figures) record {
	made := record{Kind: kindPeer, Rule: rule, Clock: clock, Row: r.id, Title: r.title, Minutes: r.scene.Length.Minutes(), Seeds: seeds,
		Figures: f.rounded(), Target: r.target(rule)}
	judgedAs := ruleDefault // peers are held to the slower preset
	if slices.Contains(oursNames, rule) {
		made.Kind, judgedAs = kindOurs, rule
	}
	made.Target = r.target(judgedAs)
	if made.Kind == kindOurs {
		made.Missed = r.missed(judgedAs, f)
	} else {
		made.Missed = r.missedVerdicts(limitsOf(judgedAs), f) // they attribute nothing, and some name nobody
	}
	made.Pass = len(made.Missed) == 0
	return made
}

// line is the record for a terminal.
func (r record) line() string {
	verdict := "pass"
	if !r.Pass {
		verdict = "FAIL"
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%-4s %-7s %-14s %-16s flips/h %.3g false %d", verdict, r.Clock, r.Rule, r.Row, r.Figures.Flips, r.Figures.False)
	for _, f := range []struct {
		name, format string
		value        *float64
	}{{"found", "%.0f s", r.Figures.Detect}, {"over", "%.0f s", r.Figures.Recover}, {"pressure", "%.1f", r.Figures.Shown}, {"lost", "%.1f", r.Figures.Lost},
		{"error", "%.1f %%", r.Figures.Attribution}, {"unattributed", "%.0f %%", r.Figures.Unknown}} {
		if f.value != nil {
			text.WriteString("  " + f.name + " " + benchpage.Number(f.value, f.format))
		}
	}
	if len(r.Missed) > 0 {
		text.WriteString("  missed: " + strings.Join(r.Missed, ", "))
	}
	return text.String()
}

// key identifies records.
func (r record) key() string { return r.Row + "\x00" + r.Rule + "\x00" + r.Clock }

// merge puts new records in the place of old ones of the same row, rule and clock, in the table's order.
func merge(old, fresh []record, order []string) []record {
	byKey := map[string]record{}
	for _, r := range slices.Concat(old, fresh) {
		byKey[r.key()] = r
	}
	var merged []record
	for _, id := range order {
		for _, clock := range []string{clockVirtual, clockReal} {
			for _, rule := range slices.Concat(oursNames, []string{ruleShort}, peerNames) {
				blank := record{Row: id, Rule: rule, Clock: clock}
				if r, ok := byKey[blank.key()]; ok {
					merged = append(merged, r)
				}
			}
		}
	}
	return merged
}
