// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Figures of a run, and the targets that they are held to.

package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

const (
	confident    = 0.5              // from which on an attribution counts as known
	learning     = 3 * time.Minute  // at a scene's begin, in which attribution and pressure are not judged
	fadesOver    = 30 * time.Second // of what is said of traffic, which is a mean that fades
	leastTraffic = 0.10             // of what a card can do: less is not worth telling apart
	leastShare   = 0.05             // of that: a tenant with less need not be told of
	afterwards   = 15 * time.Minute // in which a verdict may last on after the disturbance
	levelWithin  = 0.03             // of what a row says that its victim loses, and of what is shown of that
)

// Targets.
const (
	detectDefault, detectFast   = 120.0, 80.0 // s
	recoverDefault, recoverFast = 300.0, 180.0
	attributionError            = 10.0 // percent of the device's total
	untoldMost                  = 10.0 // percent of the time, more than what the row says that nobody can tell
	pressureError               = 5.0  // points
)

// Figures of one rule on one row, over all seeds: the worst of each.
type Figures struct {
	Flips       float64  `json:"flips_per_hour"`
	False       int      `json:"false_verdicts"` // when nothing was contended, or with the wrong one to blame
	Blamed      []string `json:"blamed,omitempty"`
	Unnamed     int      `json:"unnamed_verdicts,omitempty"` // right in time, that name nobody
	Early       int      `json:"early_ends,omitempty"`       // of verdicts, while the disturbance went on
	Detect      *float64 `json:"detect_seconds,omitempty"`   // -1: never
	Recover     *float64 `json:"recover_seconds,omitempty"`
	Attribution *float64 `json:"attribution_error_percent,omitempty"` // 95th percentile, of the device's total, where known
	Mean        *float64 `json:"attribution_mean_error_percent,omitempty"`
	Unknown     *float64 `json:"unattributed_percent,omitempty"` // of the time and of tenants with traffic
	Shown       *float64 `json:"pressure_percent,omitempty"`     // mean of the victim's avg10 while it is disturbed,
	Lost        *float64 `json:"truly_lost_percent,omitempty"`   // and what it truly lost
}

// flips are the changes of a rule's verdict per hour.
func (o outcome) flips(rule string) float64 {
	changes := 0
	for _, e := range o.episodes[rule] {
		changes++
		if e.to != 0 {
			changes++
		}
	}
	return float64(changes) / o.length.Hours()
}

// judgeVerdicts fills what is known of a rule's verdicts.
func (o outcome) judgeVerdicts(rule string) (f Figures) {
	f.Flips = o.flips(rule)
	want := o.row.expect
	for i, e := range o.episodes[rule] {
		blamed := tenantOf(o.row.scene.Tenants, e.antagonist)
		switch {
		case want == nil, e.from < want.from, e.from > want.to:
			f.False++
		case blamed != "" && blamed != want.antagonist:
			f.False++
		default:
			if blamed == "" {
				f.Unnamed++
			}
			if i == 0 {
				f.Detect = new((e.from - want.from).Seconds())
			}
			if e.from <= want.to && e.to > want.to {
				f.Recover = new((e.to - want.to).Seconds())
			}
			if e.to != 0 && e.to < want.to {
				f.Early++
			}
			if e.to == 0 && !o.row.again() {
				f.Recover = new(-1.0)
			}
			continue
		}
		f.Blamed = append(f.Blamed, orElse(blamed, "nobody"))
	}
	if want != nil && f.Detect == nil {
		f.Detect = new(-1.0)
	}
	return f
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// judgeAttribution compares what was attributed with the truth.
func (o outcome) judgeAttribution(f *Figures) {
	var errors []float64
	unknown, all := 0, 0
	for _, p := range o.points {
		if p.at < learning {
			continue
		}
		for _, portions := range p.attributed {
			for _, of := range portions {
				switch {
				case of.known:
					all++
					errors = append(errors, 100*math.Abs(of.part-of.truly))
				case of.truly >= leastShare:
					all++
					unknown++
				}
			}
		}
	}
	if all > 0 {
		f.Unknown = new(100 * float64(unknown) / float64(all))
	}
	if len(errors) == 0 {
		return
	}
	slices.Sort(errors)
	mean := 0.0
	for _, e := range errors {
		mean += e / float64(len(errors))
	}
	f.Attribution, f.Mean = new(errors[(len(errors)*95-1)/100]), new(mean)
}

// judgePressure compares the victim's pressure with what it truly lost while it was disturbed.
func (o outcome) judgePressure(f *Figures) {
	from, to := learning, o.length
	if o.row.expect != nil {
		from, to = o.row.expect.from+time.Minute, o.row.expect.to
	}
	shown, lost, count := 0.0, 0.0, 0.0
	for _, p := range o.points {
		if p.at >= from && p.at < to {
			shown += p.avg10
			lost += p.true
			count++
		}
	}
	if count > 0 {
		f.Shown, f.Lost = new(100*shown/count), new(100*lost/count)
	}
}

// worst joins the figures of several seeds.
func worst(a, b Figures) Figures {
	higher := func(x, y *float64) *float64 {
		switch {
		case x == nil:
			return y
		case y == nil:
			return x
		case *x < 0 || *y < 0:
			return new(-1.0)
		}
		return new(max(*x, *y))
	}
	blamed := slices.Concat(a.Blamed, b.Blamed)
	slices.Sort(blamed)
	return Figures{Flips: max(a.Flips, b.Flips), False: a.False + b.False, Blamed: slices.Compact(blamed), Unnamed: a.Unnamed + b.Unnamed,
		Early: a.Early + b.Early, Detect: higher(a.Detect, b.Detect),
		Recover: higher(a.Recover, b.Recover), Attribution: higher(a.Attribution, b.Attribution), Mean: higher(a.Mean, b.Mean),
		Unknown: higher(a.Unknown, b.Unknown), Shown: higher(a.Shown, b.Shown), Lost: higher(a.Lost, b.Lost)}
}

// rounded is the figures as they are written.
func (f Figures) rounded() Figures {
	for _, value := range []**float64{&f.Detect, &f.Recover, &f.Attribution, &f.Mean, &f.Unknown, &f.Shown, &f.Lost} {
		if *value != nil {
			*value = new(math.Round(100**(*value)) / 100)
		}
	}
	f.Flips = math.Round(100*f.Flips) / 100
	return f
}

// limits are what a rule of ours is held to on a row.
type limits struct {
	detect, recovery float64
	pressure         bool
}

func limitsOf(rule string) limits {
	switch rule {
	case ruleFast:
		return limits{detectFast, recoverFast, false}
	case ruleDefault:
		return limits{detectDefault, recoverDefault, true}
	}
	return limits{}
}

// target is the row's target for people.
func (r row) target(rule string) string {
	l := limitsOf(rule)
	parts := []string{"0 verdicts"}
	switch {
	case r.unsure:
		parts = []string{"0 false"}
	case r.again():
		parts = []string{fmt.Sprintf("found ≤ %g s", l.detect), "0 false"}
	case r.expect != nil:
		parts = []string{fmt.Sprintf("found ≤ %g s, over ≤ %g s", l.detect, l.recovery), "2 changes", "0 false"}
	}
	if r.mixture && !r.vague {
		parts = append(parts, fmt.Sprintf("error ≤ %g %%", attributionError))
	}
	if r.vague {
		parts = append(parts, "unattributed, or error ≤ 10 %")
	}
	return strings.Join(parts, ", ")
}

// again says whether the row's disturbance comes back, so that there may be several verdicts.
func (r row) again() bool { return r.id == "again" }

// missed says which targets a rule of ours misses.
func (r row) missed(rule string, f Figures) []string {
	l := limitsOf(rule)
	m := misses(r.missedVerdicts(l, f))
	m.add(f.Unnamed > 0 && !r.unsure, "%d verdicts name nobody", f.Unnamed)
	m.add(f.Attribution != nil && *f.Attribution > attributionError, "attribution off by more than %g %%", attributionError)
	m.add(r.mixture && f.Unknown == nil, "nothing to attribute")
	if f.Unknown != nil && !r.vague {
		m.add(math.Abs(*f.Unknown-r.untoldPercent()) > untoldMost, "%.0f %% unattributed, the row says %.0f", *f.Unknown, r.untoldPercent())
	}
	if r.level > 0 && f.Lost != nil {
		m.add(math.Abs(*f.Lost-100*r.level) > 100*levelWithin, "the model's victim loses %.1f %%, the row says %.0f", *f.Lost, 100*r.level)
	}
	if r.level > 0 && l.pressure {
		m.add(f.Shown == nil || math.Abs(*f.Shown-100*r.level) > pressureError, "pressure is not %.0f ± %g %%", 100*r.level, pressureError)
	}
	return m
}

// misses are targets that were missed, in words.
type misses []string

func (m *misses) add(is bool, format string, values ...any) {
	if is {
		*m = append(*m, fmt.Sprintf(format, values...))
	}
}

// missedVerdicts says which of the targets any rule misses, whoever it names.
func (r row) missedVerdicts(l limits, f Figures) []string {
	var m misses
	m.add(f.False > 0, "%d false verdicts", f.False)
	switch {
	case r.expect == nil:
		m.add(f.Flips > 0, "%.4g flips/h", f.Flips)
		return m
	case r.unsure:
		return m
	}
	found := f.Detect != nil && *f.Detect >= 0
	m.add(!found, "not found")
	m.add(found && *f.Detect > l.detect, "found after more than %g s", l.detect)
	if !r.again() {
		m.add(f.Recover != nil && (*f.Recover < 0 || *f.Recover > l.recovery), "not over within %g s", l.recovery)
		m.add(f.Early > 0, "%d times over before the disturbance was", f.Early)
		m.add(found && f.Flips != 2/r.scene.Length.Hours(), "%.4g flips/h", f.Flips)
	}
	return m
}

// untoldPercent is for how much of the time that is judged nobody can tell whose traffic it is.
func (r row) untoldPercent() float64 {
	from, to := max(r.untold.from, learning), min(r.untold.to, r.scene.Length)
	return 100 * max(0, (to-from).Seconds()) / (r.scene.Length - learning).Seconds()
}
