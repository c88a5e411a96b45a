// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package health

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
)

// Evidence is why a card counts as contended.
type Evidence struct {
	GPUUUID     string              `json:"gpu"`
	Resource    contention.Resource `json:"resource"`
	Victim      string              `json:"victim"`     // key of the slice that lost most in the last period
	Antagonist  string              `json:"antagonist"` // key of who caused it; "": nobody in particular, or not known who
	Confidence  float64             `json:"confidence"` // in that, over all of the time; 0 to 1
	Avg10       float64             `json:"avg10"`      // pressure of the victim in the last period, 0 to 1
	Avg60       float64             `json:"avg60"`
	DeviceRatio float64             `json:"deviceRatio"` // how much of what the card can do was used then, 0 to 1
	Samples     uint64              `json:"samples"`     // behind the victim's baseline
	Since       time.Duration       `json:"since"`       // when it began, CLOCK_MONOTONIC
	Lasted      time.Duration       `json:"lasted"`      // for how long it had lasted
}

// String is the evidence for people, with allocation keys for names.
func (e Evidence) String() string { return e.Text(func(key string) string { return key }) }

// Text is the evidence for people. name turns the key of an allocation into what people call it.
func (e Evidence) Text(name func(key string) string) string {
	if e.Resource == "" {
		return "no evidence"
	}
	antagonist := "antagonist not known"
	if e.Antagonist != "" {
		antagonist = fmt.Sprintf("antagonist %s (confidence %.2f)", name(e.Antagonist), e.Confidence)
	}
	return fmt.Sprintf("%s lost %.0f %% of the last 10 s and %.0f %% of the last 60 s to contention for %s, for %s, with the card at %.0f %% of what it can do; %s; baseline of %d samples",
		name(e.Victim), 100*e.Avg10, 100*e.Avg60, e.Resource, e.Lasted.Round(time.Second), 100*e.DeviceRatio, antagonist, e.Samples)
}

// streak is what a row of periods without a break has shown, all of them bad, or all suspicious.
type streak struct {
	since    time.Duration
	periods  int
	company  int                // of them, those in which others had much of the traffic
	suspects map[string]float64 // confidence by antagonist, summed over the periods; nothing in it is changed
	victim   string
	last     contention.Strain
	idle     int // last periods in a row in which the victim lost little
}

// A pressure stays high for long after what made it has ended. Where a victim has lost little in each of the last fadePeriods,
// its streak is over, however high the pressure is.
const fadePeriods = 4

// idleWith is what idle becomes with a bad period. What was lost in it follows from how the average over 10 s has moved.
func (s streak) idleWith(w weight, passed time.Duration, policy Policy) int {
	if w.victim != s.victim || w.worst.Resource != s.last.Resource || passed != contention.Period {
		return 0
	}
	kept := math.Exp(-contention.Period.Seconds() / 10)
	if lost := (w.worst.Avg10 - kept*s.last.Avg10) / (1 - kept); lost >= policy.Below {
		return 0
	}
	return s.idle + 1
}

// add takes a bad period in that began at from. The streak has no periods when it is over with it.
func (s streak) add(w weight, from time.Duration, idle int) streak {
	if idle >= fadePeriods {
		return streak{victim: w.victim, last: w.worst, idle: idle}
	}
	if s.periods == 0 {
		s.since, s.suspects, s.company = from, nil, 0
	}
	s.periods++
	s.victim, s.last, s.idle = w.victim, w.worst, idle
	if w.worst.CoActive {
		s.company++
	}
	if w.worst.Antagonist != "" {
		suspects := maps.Clone(s.suspects)
		if suspects == nil {
			suspects = map[string]float64{}
		}
		suspects[w.worst.Antagonist] += min(1, max(0, w.worst.Confidence))
		s.suspects = suspects
	}
	return s
}

// evidence sums it up. The antagonist is who was named most, by confidence; one who was named in some periods alone is less
// certain by that.
func (s streak) evidence(uuid string, lasted time.Duration) Evidence {
	e := Evidence{GPUUUID: uuid, Resource: s.last.Resource, Victim: s.victim, Avg10: s.last.Avg10, Avg60: s.last.Avg60,
		DeviceRatio: s.last.DeviceRatio, Samples: s.last.Samples, Since: s.since, Lasted: lasted}
	for _, key := range slices.Sorted(maps.Keys(s.suspects)) {
		if confidence := s.suspects[key] / float64(max(1, s.company)); confidence > e.Confidence && key != s.victim {
			e.Antagonist, e.Confidence = key, confidence
		}
	}
	return e
}
