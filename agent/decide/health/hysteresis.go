// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package health turns contention into the health of cards, slowly. In: what package contention concludes from each look, a
// policy, and the state of the look before. Out: which cards are contended and why, what changed, and whose GPU time is cut
// meanwhile. It has no effects. The agent's watch calls Judge; package decide withdraws slices by its verdicts, steering takes
// its cuts, and the record of its state outlives the agent.
//
// A card is contended when a slice of it has lost much to others for some time without a break, and no longer when none has for
// longer. Nothing changes before a hold is over, so that no series of looks makes a card flap. What cannot be seen stops the
// clocks: it neither condemns nor acquits. lever.go is the milder step before a card is withdrawn, evidence.go sums up why,
// policy.go is what the operator chose, record.go what outlives the agent.
package health

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/steering"
)

// longestStep is what one period counts for at most: a loop that was held up has not seen what happened meanwhile.
const longestStep = 2 * contention.Period

// confirmed is by how much longer than BadFor contention must have lasted by the average over 10 s alone where the one over
// 60 s has only now come to say so too. Of a constant 35 % that begins on a quiet card that one says 25 % after 75 s.
const confirmed = 25 * time.Second

// healthResources are those on which contention withdraws a card. Waiting for time is what shares are for.
var healthResources = []contention.Resource{contention.ResourceDRAM, contention.ResourcePCIeRX, contention.ResourcePCIeTX}

// State is what is remembered between looks. The zero value is the start. It is a value: Judge makes a new
// one. Its size is bounded by the number of cards and slices.
type State struct {
	gpus map[string]gpuContention
}

// gpuContention is what is remembered of one card.
type gpuContention struct {
	contended bool
	moved     bool          // the verdict has changed once at least
	changed   time.Duration // when it last did
	hold      time.Duration // before which it does not change again
	repeats   int           // withdrawals in a row that followed a recovery within Policy.Repeated
	looked    time.Duration // when a period was last judged
	bad, good time.Duration // how long without a break it was, as far as was seen
	blind     time.Duration // for how long nothing has been seen
	why       string        // it is blind; "": it is not
	streak    streak        // of bad periods
	suspected time.Duration // how long without a break periods were suspicious, bad ones included
	suspicion streak        // of them
	evidence  Evidence      // for contended, or for the cut
	lever     lever
}

// Verdicts is what follows for the cards' health.
type Verdicts struct {
	GPUs        []Verdict // of every card that was seen or is contended, sorted by UUID
	Transitions []Transition
	Cuts        []steering.Cut // in force, sorted by GPU
}

// Verdict is what is thought of one card.
type Verdict struct {
	UUID      string
	Contended bool
	Since     time.Duration // when that changed last, CLOCK_MONOTONIC; 0: never
	Blind     string        // why the clocks stand still; "": they do not
	Evidence  Evidence      // why it is contended, or why somebody is cut; else zero
}

// TransitionKind is what changed.
type TransitionKind string

// The kinds.
const (
	TransitionContended TransitionKind = "contended"
	TransitionRecovered TransitionKind = "recovered"
	TransitionCut       TransitionKind = "cut"   // the antagonist was given less GPU time
	TransitionUncut     TransitionKind = "uncut" // and has it back
)

// Transition is a change of one card's verdict.
type Transition struct {
	UUID     string
	Kind     TransitionKind
	Reason   string // for people
	Evidence Evidence
}

// Judge judges one look. It is to be called at every look; only those with which a period ends move its clocks.
// now is CLOCK_MONOTONIC.
func Judge(seen contention.Result, policy Policy, state State, now time.Duration) (Verdicts, State) {
	next := State{gpus: maps.Clone(state.gpus)}
	if next.gpus == nil {
		next.gpus = map[string]gpuContention{}
	}
	var verdicts Verdicts
	cards := map[string]*contention.GPU{}
	for i := range seen.GPUs {
		cards[seen.GPUs[i].UUID] = &seen.GPUs[i]
		if _, known := next.gpus[seen.GPUs[i].UUID]; !known && seen.Period {
			next.gpus[seen.GPUs[i].UUID] = gpuContention{}
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(next.gpus)) {
		gpu := next.gpus[uuid]
		step := step{uuid: uuid, policy: policy, now: now}
		if seen.Period {
			gpu = step.look(gpu, weigh(cards[uuid], seen.Slices, policy))
		}
		gpu = step.move(gpu, seen)
		verdicts.Transitions = append(verdicts.Transitions, step.transitions...)
		if cards[uuid] == nil && seen.Period && !gpu.worthKeeping(policy, now) {
			delete(next.gpus, uuid)
			continue
		}
		next.gpus[uuid] = gpu
		verdicts.GPUs = append(verdicts.GPUs, gpu.verdict(uuid))
		if gpu.lever.on {
			verdicts.Cuts = append(verdicts.Cuts, gpu.lever.cut)
		}
	}
	return verdicts, next
}

// worthKeeping says whether anything is remembered of a card that still matters.
func (g gpuContention) worthKeeping(policy Policy, now time.Duration) bool {
	return g.contended || g.lever.on || g.suspected > 0 || g.moved && now-g.changed < max(policy.Repeated, g.hold)
}

// verdict is what is told of a card.
func (g gpuContention) verdict(uuid string) Verdict {
	v := Verdict{UUID: uuid, Contended: g.contended, Blind: g.why}
	if g.moved {
		v.Since = g.changed
	}
	if g.contended || g.lever.on {
		v.Evidence = g.evidence
	}
	return v
}

func (g gpuContention) holdLeft(now time.Duration) time.Duration {
	if !g.moved {
		return 0
	}
	return max(0, g.hold-(now-g.changed))
}

// weight is what one period says of a card.
type weight struct {
	bad, good  bool   // both false: neither, or nothing
	suspicious bool   // bad, or would be if it lasted
	blind      string // why nothing can be said; "": it can
	victim     string
	worst      contention.Strain // of the victim; where suspicious
}

// weigh looks at all slices of a card. card is nil where the card was not seen.
func weigh(card *contention.GPU, all []contention.Slice, policy Policy) weight {
	if card == nil {
		return weight{blind: "the card's counters could not be read"}
	}
	if card.Blind != "" {
		return weight{blind: card.Blind}
	}
	w := weight{good: true}
	for _, slice := range all {
		if slice.GPUUUID != card.UUID {
			continue
		}
		for _, strain := range slice.Strain {
			if slices.Contains(healthResources, strain.Resource) && slices.Contains(card.Possible, strain.Resource) {
				w = w.add(slice.Key, strain, policy)
			}
		}
	}
	if w.bad {
		w.blind = "" // one that suffers for certain is enough
	}
	w.good = w.good && !w.bad && w.blind == ""
	return w
}

// add takes one slice's strain on one resource in.
func (w weight) add(key string, strain contention.Strain, policy Policy) weight {
	low := strain.Avg10 < policy.Below && strain.Avg60 < policy.Below
	switch {
	case strain.Antagonist == key:
		// Its own doing is nobody's fault.
	case strain.Excluded != "":
		if !low { // it may be the one that suffers
			w.blind = cmp.Or(w.blind, strain.Excluded)
		}
	case strain.Suspicious(policy.Above):
		bad := strain.Bad(policy.Above)
		if !w.suspicious || bad && !w.bad || bad == w.bad && strain.Avg60 > w.worst.Avg60 {
			w.victim, w.worst = key, strain
		}
		w.suspicious, w.bad, w.good = true, w.bad || bad, w.good && !strain.CoActive
	default:
		if !low && strain.Saturated && strain.CoActive {
			w.good = false
		}
	}
	return w
}

// step is one look at one card.
type step struct {
	uuid        string
	policy      Policy
	now         time.Duration
	transitions []Transition
}

// look moves the clocks by what a period says.
func (s *step) look(g gpuContention, w weight) gpuContention {
	passed := contention.Period
	if g.looked != 0 {
		passed = min(max(0, s.now-g.looked), longestStep)
	}
	g.looked, g.why = s.now, w.blind
	if w.blind != "" {
		g.blind += passed
		if g.blind >= s.policy.BadFor {
			g = g.absolved() // too long ago to go on from
		}
		return g
	}
	g.blind = 0
	suspected, suspicion := g.suspected, g.suspicion
	if w.bad {
		g.bad, g.streak = s.extend(g.bad, g.streak, w, passed)
	} else {
		g = g.absolved()
	}
	if w.suspicious {
		g.suspected, g.suspicion = s.extend(suspected, suspicion, w, passed)
	}
	if g.good += passed; !w.good {
		g.good = 0
	}
	return g
}

// extend lets a streak, and how long it has lasted, go on with a period.
func (s *step) extend(lasted time.Duration, of streak, w weight, passed time.Duration) (time.Duration, streak) {
	if of = of.add(w, s.now-passed, of.idleWith(w, passed, s.policy)); of.periods == 0 {
		return 0, of
	}
	return lasted + passed, of
}

// absolved is the card without its streaks.
func (g gpuContention) absolved() gpuContention {
	g.bad, g.streak, g.suspected, g.suspicion = 0, streak{}, 0, streak{}
	return g
}

// found says whether the card has been contended for long enough, and by what evidence.
func (g gpuContention) found(uuid string, policy Policy) (Evidence, bool) {
	switch {
	case g.bad >= policy.BadFor:
		return g.streak.evidence(uuid, g.bad), true
	case g.bad > 0 && g.suspected >= policy.BadFor+confirmed:
		return g.suspicion.evidence(uuid, g.suspected), true
	}
	return Evidence{}, false
}

// move changes the verdict where it is due.
func (s *step) move(g gpuContention, seen contention.Result) gpuContention {
	g = s.giveBack(g, seen)
	switch {
	case g.contended && g.blind >= s.policy.HoldMax:
		return s.recover(g, "nothing has shown contention or its absence for "+g.blind.Round(time.Second).String()+": "+g.why)
	case g.contended && g.good >= s.policy.GoodFor && g.holdLeft(s.now) == 0:
		return s.recover(g, "no contention for "+g.good.Round(time.Second).String())
	case g.contended || g.lever.on || !seen.Period || g.why != "" || g.holdLeft(s.now) > 0:
		return g
	}
	found, enough := g.found(s.uuid, s.policy)
	if !enough {
		return g
	}
	if cut, can := g.lever.pull(found, s.policy, s.now); can {
		g.lever, g.evidence = cut, found
		s.note(TransitionCut, cut.reason(s.now), found)
		return g
	}
	return s.withdraw(g, found)
}

func (s *step) withdraw(g gpuContention, found Evidence) gpuContention {
	if g.moved && s.now-g.changed < s.policy.Repeated {
		g.repeats++
	} else {
		g.repeats = 0
	}
	g.contended, g.moved, g.changed, g.evidence = true, true, s.now, found
	g.hold = doubled(s.policy.Hold, g.repeats, s.policy.HoldMax)
	s.note(TransitionContended, found.String(), found)
	return g
}

// recover takes a card back. A plain hold applies before it can be withdrawn again.
func (s *step) recover(g gpuContention, reason string) gpuContention {
	s.note(TransitionRecovered, reason, g.evidence)
	g.contended, g.moved, g.changed, g.hold = false, true, s.now, s.policy.Hold
	g.evidence = Evidence{}
	return g.absolved()
}

func (s *step) note(kind TransitionKind, reason string, found Evidence) {
	s.transitions = append(s.transitions, Transition{UUID: s.uuid, Kind: kind, Reason: reason, Evidence: found})
}

// doubled is a time doubled so many times, up to a limit.
func doubled(d time.Duration, times int, limit time.Duration) time.Duration {
	for range times {
		if d >= limit {
			break
		}
		d *= 2
	}
	return min(d, limit)
}
