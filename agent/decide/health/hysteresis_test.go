// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package health

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
)

// madeLoad is a made pressure: which part of a period of 2 s is lost, as a function of time.
type madeLoad func(at time.Duration) float64

// The scenarios of the table that the presets come from, on top of a background of 3 to 7 %.
var (
	quietLoad = madeLoad(func(time.Duration) float64 { return 0 })
	mild      = steadyLoad(0.10)
	bursts    = pulseLoad(0.9, 10*time.Second, time.Minute)
	longBurst = pulseLoad(0.9, 30*time.Second, 5*time.Minute)
	swings    = pulseLoad(0.9, 20*time.Second, 40*time.Second)
	halfSwing = pulseLoad(0.6, 20*time.Second, 40*time.Second)
	sustained = steadyLoad(0.35)
	severe    = steadyLoad(0.70)
)

func steadyLoad(part float64) madeLoad { return func(time.Duration) float64 { return part } }

func pulseLoad(part float64, on, every time.Duration) madeLoad {
	return func(at time.Duration) float64 {
		if at%every < on {
			return part
		}
		return 0
	}
}

// madePressure keeps averages as Linux PSI does, one step per period.
type madePressure struct{ avg10, avg60 float64 }

func (p *madePressure) add(part float64) {
	decay := func(avg *float64, window float64) {
		*avg += (min(1, part) - *avg) * (1 - math.Exp(-contention.Period.Seconds()/window))
	}
	decay(&p.avg10, 10)
	decay(&p.avg60, 60)
}

// healthChange is a transition and when it was.
type healthChange struct {
	at   time.Duration
	kind TransitionKind
}

// playLoad plays a load for a time, after five minutes of the background alone; times are from when it begins.
func playLoad(policy Policy, made madeLoad, lasts time.Duration, random *rand.Rand) (changes []healthChange) {
	var state State
	var pressure madePressure
	for at := contention.Period - 5*time.Minute; at <= lasts; at += contention.Period {
		part := 0.03 + 0.04*random.Float64()
		if at > 0 {
			part += made(at - contention.Period)
		}
		pressure.add(part)
		var verdicts Verdicts
		verdicts, state = Judge(strained(pressure.avg10, pressure.avg60), policy, state, at+time.Hour)
		for _, transition := range verdicts.Transitions {
			changes = append(changes, healthChange{at, transition.Kind})
		}
	}
	return changes
}

// strained is one card with a slice that is slowed by another.
func strained(avg10, avg60 float64) contention.Result {
	return strainedBy(contention.Strain{Resource: contention.ResourceDRAM, Avg10: avg10, Avg60: avg60, Saturated: true, CoActive: true,
		DeviceRatio: 0.96, Antagonist: "big", Confidence: 0.9, Samples: 500})
}

func strainedBy(strain contention.Strain) contention.Result {
	return contention.Result{Period: true,
		GPUs: []contention.GPU{{UUID: "GPU-a", Possible: []contention.Resource{contention.ResourceDRAM, contention.ResourcePCIeRX}}},
		Slices: []contention.Slice{{Key: "big", GPUUUID: "GPU-a"},
			{Key: "small", GPUUUID: "GPU-a", Strain: []contention.Strain{strain}}}}
}

// The table of hysteresis rules that the presets were chosen from: an hour each, many seeds.
func TestPresetsNeverFlapAndDetectInTime(t *testing.T) {
	const seeds = 6
	for _, c := range []struct {
		preset string
		policy Policy
		name   string
		made   madeLoad
		within time.Duration // of the one withdrawal; 0: there is to be no change
	}{
		{"default", DefaultPolicy(), "quiet", quietLoad, 0},
		{"default", DefaultPolicy(), "mild", mild, 0},
		{"default", DefaultPolicy(), "bursts 10 s/min", bursts, 0},
		{"default", DefaultPolicy(), "burst 30 s/5 min", longBurst, 0},
		{"default", DefaultPolicy(), "oscillation 20 s", swings, 0},
		{"default", DefaultPolicy(), "sustained 35 %", sustained, 2 * time.Minute},
		{"default", DefaultPolicy(), "severe 70 %", severe, 80 * time.Second},
		{"fast", FastPolicy(), "quiet", quietLoad, 0},
		{"fast", FastPolicy(), "mild", mild, 0},
		{"fast", FastPolicy(), "bursts 10 s/min", bursts, 0},
		{"fast", FastPolicy(), "burst 30 s/5 min", longBurst, 0},
		{"fast", FastPolicy(), "oscillation 20 s at 60 %", halfSwing, 0},
		{"fast", FastPolicy(), "oscillation 20 s", swings, 0},
		{"fast", FastPolicy(), "sustained 35 %", sustained, 80 * time.Second},
		{"fast", FastPolicy(), "severe 70 %", severe, 50 * time.Second},
	} {
		t.Run(c.preset+"/"+c.name, func(t *testing.T) {
			var total time.Duration
			for seed := range uint64(seeds) {
				changes := playLoad(c.policy, c.made, time.Hour, rand.New(rand.NewPCG(seed, 1)))
				if c.within == 0 {
					if len(changes) > 0 {
						t.Errorf("seed %d: %v", seed, changes)
					}
					continue
				}
				if len(changes) != 1 || changes[0].kind != TransitionContended || changes[0].at > c.within {
					t.Fatalf("seed %d: %v, want one withdrawal within %s", seed, changes, c.within)
				}
				total += changes[0].at
			}
			if c.within > 0 {
				t.Logf("found after %s on average", (total / seeds).Round(time.Second))
			}
		})
	}
}

// TestFastFindsSustainedContentionInTime: on average, as the table says; noise alone decides about some seconds.
func TestFastFindsSustainedContentionInTime(t *testing.T) {
	var total time.Duration
	const seeds = 50
	for seed := range uint64(seeds) {
		total += playLoad(FastPolicy(), sustained, 5*time.Minute, rand.New(rand.NewPCG(seed, 2)))[0].at
	}
	mean := total / seeds
	t.Logf("found after %s on average", mean)
	if mean > 80*time.Second {
		t.Errorf("found after %s on average, want at most 80 s", mean)
	}
}

// judge is a state with the looks that made it.
type judge struct {
	t      *testing.T
	policy Policy
	state  State
	now    time.Duration
	last   Verdicts
	all    []healthChange
}

// see looks once in each period until so much time has passed.
func (j *judge) see(lasts time.Duration, seen contention.Result) *judge {
	j.t.Helper()
	for passed := time.Duration(0); passed < lasts; passed += contention.Period {
		j.now += contention.Period
		before := fmt.Sprintf("%+v", j.state)
		previous := j.state
		j.last, j.state = Judge(seen, j.policy, j.state, j.now)
		if after := fmt.Sprintf("%+v", previous); after != before {
			j.t.Fatalf("Judge changed the state it was given:\n%s\n%s", before, after)
		}
		for _, transition := range j.last.Transitions {
			j.all = append(j.all, healthChange{j.now, transition.Kind})
		}
	}
	return j
}

// want checks the verdict on the card.
func (j *judge) want(contended bool) *judge {
	j.t.Helper()
	for _, verdict := range j.last.GPUs {
		if verdict.UUID == "GPU-a" && verdict.Contended == contended {
			return j
		}
	}
	j.t.Fatalf("at %s: %+v, want contended=%t; so far %v", j.now, j.last.GPUs, contended, j.all)
	return j
}

func newJudge(t *testing.T) *judge { return &judge{t: t, policy: DefaultPolicy()} }

var (
	badLook  = strained(0.6, 0.5)
	goodLook = strained(0.02, 0.05)
	noLook   = contention.Result{Period: true} // the card is not seen
)

func notedLook(note string) contention.Result {
	seen := strained(0.6, 0.5)
	seen.GPUs[0].Blind = note
	return seen
}

func excludedLook(avg float64, why string) contention.Result {
	seen := strained(avg, avg)
	seen.Slices[1].Strain[0].Excluded = why
	return seen
}

func TestHealthBothWaysWithHold(t *testing.T) {
	j := newJudge(t).see(58*time.Second, badLook).want(false).see(2*time.Second, badLook).want(true)
	if e := j.last.Transitions[0].Evidence; e.Victim != "small" || e.Antagonist != "big" || math.Abs(e.Confidence-0.9) > 1e-9 ||
		e.Lasted != time.Minute || e.Since != 0 || e.Samples != 500 || e.GPUUUID != "GPU-a" || e.Resource != contention.ResourceDRAM {
		t.Errorf("%+v", e)
	}
	for _, word := range []string{"small", "big", "0.90", "60 %", "50 %", "dram", "1m0s", "96 %", "500"} {
		if reason := j.last.Transitions[0].Reason; !strings.Contains(reason, word) {
			t.Errorf("%q lacks %q", reason, word)
		}
	}
	// Good for long enough, but the hold of 300 s is not over.
	j.see(298*time.Second, goodLook).want(true).see(2*time.Second, goodLook).want(false)
	if len(j.all) != 2 || j.all[1].kind != TransitionRecovered {
		t.Errorf("%v", j.all)
	}
}

func TestRecoveryNeedsTwoGoodMinutesWithoutABreak(t *testing.T) {
	middle := strained(0.2, 0.2)
	newJudge(t).see(time.Minute, badLook).want(true).see(300*time.Second, middle).want(true).
		see(118*time.Second, goodLook).want(true).see(2*time.Second, middle).want(true).
		see(118*time.Second, goodLook).want(true).see(2*time.Second, goodLook).want(false)
}

func TestHoldDoublesWithRepeatsUpToHalfAnHour(t *testing.T) {
	j := newJudge(t)
	for _, want := range []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute, 30 * time.Minute} {
		for j.see(contention.Period, badLook); !j.last.GPUs[0].Contended; j.see(contention.Period, badLook) {
		}
		if hold := j.state.gpus["GPU-a"].holdLeft(j.now); hold != want {
			t.Fatalf("hold %s, want %s", hold, want)
		}
		j.see(want, goodLook).want(false)
	}
	// An hour of peace, and the next one is short again.
	j.see(time.Hour+5*time.Minute, goodLook).see(time.Minute, badLook).want(true)
	if hold := j.state.gpus["GPU-a"].holdLeft(j.now); hold != 5*time.Minute {
		t.Errorf("hold %s after an hour of peace", hold)
	}
}

// Ten flips of the cause within 20 s change nothing; and whatever is seen, there is at most one change per hold.
func TestFlappingMakesAtMostOneChangePerHold(t *testing.T) {
	j := newJudge(t).see(time.Minute, badLook)
	for range 5 {
		j.see(contention.Period, goodLook).see(contention.Period, badLook)
	}
	if j.want(true); len(j.all) != 1 {
		t.Errorf("%v", j.all)
	}
	nervous := Policy{Above: 0.25, Below: 0.12, BadFor: 2 * time.Second, GoodFor: 2 * time.Second, Hold: 20 * time.Second,
		HoldMax: 20 * time.Second}
	if err := nervous.Validate(); err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 3))
		j := &judge{t: t, policy: nervous}
		for range 1000 {
			j.see(contention.Period, []contention.Result{badLook, goodLook, noLook}[random.IntN(3)])
		}
		for i := 1; i < len(j.all); i++ {
			if gap := j.all[i].at - j.all[i-1].at; gap < nervous.Hold {
				t.Fatalf("seed %d: two changes within %s", seed, gap)
			}
		}
		if len(j.all) < 10 {
			t.Errorf("seed %d: only %d changes: the test shows nothing", seed, len(j.all))
		}
	}
}

func TestWhatIsNotSeenStopsTheClocks(t *testing.T) {
	for name, blind := range map[string]contention.Result{
		"card not read": noLook, "note": notedLook("the link was trained down"), "throttled": excludedLook(0.6, "throttled: power"),
	} {
		t.Run(name, func(t *testing.T) {
			// Half a dwell, blind for less than a dwell, the other half.
			newJudge(t).see(30*time.Second, badLook).see(50*time.Second, blind).want(false).see(28*time.Second, badLook).want(false).
				see(2*time.Second, badLook).want(true)
			// Too long ago to go on from.
			newJudge(t).see(40*time.Second, badLook).see(2*time.Minute, blind).see(40*time.Second, badLook).want(false)
			// No recovery by blindness, until nothing has been known for as long as the longest hold.
			newJudge(t).see(time.Minute, badLook).want(true).see(100*time.Second, goodLook).see(29*time.Minute, blind).want(true).
				see(20*time.Second, goodLook).want(false)
			j := newJudge(t).see(time.Minute, badLook).see(28*time.Minute, blind).want(true).see(2*time.Minute, blind).want(false)
			if reason := j.all[len(j.all)-1]; reason.kind != TransitionRecovered {
				t.Error(reason)
			}
			// Never a verdict out of nothing.
			if j := newJudge(t).see(time.Hour, blind); len(j.all) != 0 {
				t.Error(j.all)
			}
		})
	}
}

// One that suffers for certain is enough, though others prove nothing.
func TestOneVictimAmongThoseThatProveNothing(t *testing.T) {
	seen := strained(0.6, 0.5)
	seen.Slices = append(seen.Slices, contention.Slice{Key: "new", GPUUUID: "GPU-a", Strain: []contention.Strain{
		{Resource: contention.ResourceDRAM, Avg10: 0.5, Avg60: 0.5, Excluded: "12 samples"}}})
	newJudge(t).see(time.Minute, seen).want(true)
	// One that has lost nothing and proves nothing keeps nobody from recovering.
	seen.Slices[2].Strain[0].Avg10, seen.Slices[2].Strain[0].Avg60 = 0, 0
	seen.Slices[1].Strain[0].Avg10, seen.Slices[1].Strain[0].Avg60 = 0, 0
	newJudge(t).see(time.Minute, badLook).want(true).see(5*time.Minute, seen).want(false)
}

func TestWhatIsNoEvidence(t *testing.T) {
	base := contention.Strain{Resource: contention.ResourceDRAM, Avg10: 0.9, Avg60: 0.9, Saturated: true, CoActive: true, Antagonist: "big", Confidence: 1}
	for name, change := range map[string]func(*contention.Strain){
		"own doing":                   func(s *contention.Strain) { s.Antagonist = "small" },
		"card not saturated":          func(s *contention.Strain) { s.Saturated = false },
		"nobody else active":          func(s *contention.Strain) { s.CoActive = false },
		"waits for time":              func(s *contention.Strain) { s.Resource = contention.ResourceTime },
		"nvlink":                      func(s *contention.Strain) { s.Resource = contention.ResourceNVLink },
		"not possible when so shared": func(s *contention.Strain) { s.Resource = contention.ResourcePCIeTX },
		"just at the threshold":       func(s *contention.Strain) { s.Avg60 = 0.25 },
		"only of late":                func(s *contention.Strain) { s.Avg60 = 0.2 },
		"not of late":                 func(s *contention.Strain) { s.Avg10 = 0.2 },
		"not a number":                func(s *contention.Strain) { s.Avg10, s.Avg60 = math.NaN(), math.NaN() },
	} {
		t.Run(name, func(t *testing.T) {
			strain := base
			change(&strain)
			if j := newJudge(t).see(time.Hour, strainedBy(strain)); len(j.all) != 0 {
				t.Errorf("%v", j.all)
			}
		})
	}
}

// Looks between periods, and a loop that was held up, do not make time pass faster than it was watched.
func TestOnlyPeriodsMoveTheClocks(t *testing.T) {
	j := newJudge(t).see(30*time.Second, badLook)
	between := badLook
	between.Period = false
	j.see(time.Hour, between).want(false)
	j.see(contention.Period, badLook).want(false)
	if gpu := j.state.gpus["GPU-a"]; gpu.bad != 30*time.Second+longestStep {
		t.Errorf("%+v", gpu)
	}
}

func TestAntagonistIsWhoWasNamedMost(t *testing.T) {
	j := newJudge(t)
	other := strained(0.6, 0.5)
	other.Slices[1].Strain[0].Antagonist, other.Slices[1].Strain[0].Confidence = "other", 1
	unknown := strained(0.6, 0.5)
	unknown.Slices[1].Strain[0].Antagonist, unknown.Slices[1].Strain[0].Confidence = "", 0
	j.see(20*time.Second, other).see(30*time.Second, badLook).see(10*time.Second, unknown).want(true)
	e := j.last.GPUs[0].Evidence
	if e.Antagonist != "big" || math.Abs(e.Confidence-0.45) > 1e-9 {
		t.Errorf("%+v", e)
	}
	j = newJudge(t).see(time.Minute, unknown).want(true)
	if e := j.last.GPUs[0].Evidence; e.Antagonist != "" || e.Confidence != 0 || !strings.Contains(e.String(), "not known") {
		t.Errorf("%+v", e)
	}
}

func TestHealthOutlivesTheAgent(t *testing.T) {
	j := newJudge(t).see(time.Minute, badLook).want(true)
	restart := func(gap time.Duration) *judge {
		fresh := newJudge(t)
		fresh.now = 5 * time.Second // another clock
		fresh.state = Restore(j.state.Record(j.now), gap, fresh.now)
		return fresh
	}
	// It stays as it was, with no data, and with data until hold and dwell are over.
	restart(10*time.Second).see(contention.Period, noLook).want(true).see(286*time.Second, goodLook).want(true).see(2*time.Second, goodLook).want(false)
	// A verdict whose hold has passed meanwhile is not kept.
	restart(time.Hour).see(contention.Period, goodLook).want(false)
	// The back-off is: contention right after the restart is a repeat.
	again := restart(6*time.Minute).see(contention.Period, badLook).want(false).see(time.Minute, badLook).want(true)
	if gpu := again.state.gpus["GPU-a"]; gpu.repeats != 1 {
		t.Errorf("%+v", gpu)
	}
	for name, entry := range map[string]GPURecord{
		"no card": {Contended: true, Hold: time.Minute}, "future": {UUID: "GPU-a", Contended: true, Hold: time.Minute, ChangedAgo: -1},
		"endless": {UUID: "GPU-a", Contended: true, Hold: 1 << 62}, "repeats": {UUID: "GPU-a", Hold: time.Minute, Repeats: 1 << 40},
	} {
		if state := Restore(Record{GPUs: []GPURecord{entry}}, 0, 0); len(state.gpus) != 0 {
			t.Errorf("%s: %+v", name, state)
		}
	}
	if state := Restore(j.state.Record(j.now), -time.Second, 0); len(state.gpus) != 0 {
		t.Errorf("written in the future: %+v", state)
	}
}

func TestHealthStateIsBounded(t *testing.T) {
	var state State
	for i := range 500 {
		seen := strained(0.1, 0.1)
		seen.GPUs[0].UUID = fmt.Sprintf("GPU-%d", i)
		_, state = Judge(seen, DefaultPolicy(), state, time.Duration(i)*contention.Period)
	}
	if len(state.gpus) != 1 {
		t.Errorf("%d cards are remembered", len(state.gpus))
	}
}

func TestOwnNumbersAreValidated(t *testing.T) {
	if err := DefaultPolicy().Validate(); err != nil {
		t.Error(err)
	}
	if err := FastPolicy().Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Policy){
		"upper threshold":  func(p *Policy) { p.Above = 1.1 },
		"upper threshold ": func(p *Policy) { p.Above = math.NaN() },
		"lower threshold":  func(p *Policy) { p.Below = 0.3 },
		"before a card is": func(p *Policy) { p.BadFor = time.Second },
		"before a card co": func(p *Policy) { p.GoodFor = 0 },
		"hold of":          func(p *Policy) { p.Hold = 0 },
		"longest hold":     func(p *Policy) { p.HoldMax = time.Minute },
		"negative":         func(p *Policy) { p.Repeated = -1 },
		"keeps":            func(p *Policy) { p.LeverFactor = 1 },
		"cut of":           func(p *Policy) { p.LeverFactor, p.LeverFor = 0.5, time.Second },
		"confidence":       func(p *Policy) { p.LeverFactor, p.LeverConfidence = 0.5, 0 },
	} {
		policy := DefaultPolicy()
		change(&policy)
		if err := policy.Validate(); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
