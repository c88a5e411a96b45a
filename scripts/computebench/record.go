// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// record is what a row came to in one run.
type record struct {
	Kind    string        `json:"kind"`  // ours, or peer
	Law     string        `json:"law"`   // whose law held the tenants to their shares
	Clock   string        `json:"clock"` // virtual, or real
	Row     string        `json:"row"`
	Title   string        `json:"title"`
	Figures scene.Figures `json:"figures"`
	Target  string        `json:"target"`
	Pass    bool          `json:"pass"`
	Missed  []string      `json:"missed,omitempty"`       // which limits of the target
	Load    *float64      `json:"load_average,omitempty"` // of the machine, of a row in real time: threads that run or want to
	Tries   int           `json:"tries,omitempty"`        // of a row in real time: it missed its target beside others, and this is alone
	outcome scene.Outcome // for the plots
	err     error         // the row could not be run
}

// Values of record's first fields.
const (
	kindOurs, kindPeer        = "ours", "peer"
	clockVirtual, clockReal   = "virtual", "real"
	lawOurs, lawBlock, lawPID = "vgpud", "block bucket", "PID bucket"
)

func (r row) record(kind, law, clock string, o scene.Outcome) record {
	figures, missed := r.criteria.Judge(o, r.scene)
	return record{Kind: kind, Law: law, Clock: clock, Row: r.id, Title: r.title, Figures: figures,
		Target: r.criteria.String(), Pass: len(missed) == 0, Missed: missed, outcome: o}
}

// line is the record for a terminal.
func (r record) line() string {
	verdict := "pass"
	if !r.Pass {
		verdict = "FAIL"
	}
	if r.err != nil {
		return fmt.Sprintf("%-4s %-7s %-12s %-18s %v", verdict, r.Clock, r.Law, r.Row, r.err)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%-4s %-7s %-12s %-18s %v of %v", verdict, r.Clock, r.Law, r.Row, r.Figures.Shares, r.Figures.Targets)
	for _, f := range r.Figures.Named() {
		fmt.Fprintf(&text, "  %s %.4g", f.Name, f.Value)
	}
	fmt.Fprintf(&text, "  (%.1f s)", r.outcome.Took.Seconds())
	return text.String()
}

// key orders and identifies records.
func (r record) key() string { return r.Row + "\x00" + r.Kind + "\x00" + r.Law + "\x00" + r.Clock }

// merge puts new records in the place of old ones of the same row, kind, law and clock, in the table's order.
func merge(old, fresh []record, rows []row) []record {
	byKey := map[string]record{}
	for _, r := range slices.Concat(old, fresh) {
		byKey[r.key()] = r
	}
	var merged []record
	for _, row := range rows {
		for _, run := range runsOf(row) {
			blank := record{Row: row.id, Kind: run.kind, Law: run.law, Clock: run.clock}
			if r, ok := byKey[blank.key()]; ok {
				merged = append(merged, r)
			}
		}
	}
	return merged
}
