// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// lever.go is the milder step before a card is withdrawn: its antagonist is given less GPU time for a while, and has it
// back. If the contention lasted all the while, that was no help, and the card is withdrawn.

package health

import (
	"fmt"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/steering"
)

// leverTries is how many cuts in a row, each after the one before had helped, may be made within Policy.Repeated.
const leverTries = 3

// lever is what is remembered of the cuts on one card.
type lever struct {
	on    bool
	cut   steering.Cut
	began time.Duration // the last cut
	tries int           // cuts within Policy.Repeated of the one before
}

// pull begins a cut, if one can be made.
func (l lever) pull(found Evidence, policy Policy, now time.Duration) (lever, bool) {
	if l.tries > 0 && now-l.began >= policy.Repeated {
		l.tries = 0
	}
	if policy.LeverFactor <= 0 || found.Antagonist == "" || found.Confidence < policy.LeverConfidence || l.tries >= leverTries {
		return l, false
	}
	lasts := doubled(policy.LeverFor, l.tries, policy.HoldMax)
	return lever{on: true, began: now, tries: l.tries + 1,
		cut: steering.Cut{Key: found.Antagonist, GPUUUID: found.GPUUUID, Factor: policy.LeverFactor, Until: now + lasts}}, true
}

func (l lever) reason(now time.Duration) string {
	return fmt.Sprintf("%s keeps %.0f %% of its share of GPU time for %s", l.cut.Key, 100*l.cut.Factor, (l.cut.Until - now).Round(time.Second))
}

// giveBack ends a cut whose time is over, or whose antagonist is gone, and withdraws the card where it did not help.
func (s *step) giveBack(g gpuContention, seen contention.Result) gpuContention {
	if !g.lever.on {
		return g
	}
	gone := seen.Period && g.why == "" && !slices.ContainsFunc(seen.Slices, func(slice contention.Slice) bool {
		return slice.Key == g.lever.cut.Key && slice.GPUUUID == g.lever.cut.GPUUUID
	})
	found, enough := g.found(s.uuid, s.policy)
	lasted := g.why == "" && enough && s.now-g.looked <= longestStep
	switch {
	case gone:
		s.note(TransitionUncut, "the antagonist is gone", g.evidence)
	case s.now < g.lever.cut.Until:
		return g
	case lasted:
		s.note(TransitionUncut, "it did not help", g.evidence)
	default:
		s.note(TransitionUncut, "its time is over", g.evidence)
	}
	g.lever.on = false
	if lasted && !gone {
		return s.withdraw(g, found)
	}
	if gone {
		g = g.absolved() // it was about somebody else
	}
	g.evidence = Evidence{}
	return g
}
