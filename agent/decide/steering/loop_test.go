// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A closed loop around Steer: a GPU that divides its time evenly among those who have work queued, tenants that buy GPU time
// by the law of libvgpu/core/rate.h, and a driver that tells whole percents of past periods, late and not always.

package steering

import (
	"fmt"
	"maps"
	"math"
	"math/rand"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

const (
	ms       = time.Millisecond
	loopStep = ms
)

// program is a tenant of the loop and its program.
type program struct {
	mode           monitor.ComputeMode
	share, ceiling float64
	kernel         time.Duration                                 // how long its kernels run
	jitter         float64                                       // by which part they differ
	bias           func(now time.Duration, alone bool) float64   // estimated cost per true cost
	runs           func(now time.Duration) bool                  // nil: always
	sync           bool                                          // it waits for each kernel
	unreadable     func(now time.Duration) bool                  // nil: never
	forge          func(now time.Duration, page *monitor.Tenant) // what it writes into its own page after each step

	book    monitor.Tenant
	line    time.Duration // what it is entitled to
	spent   time.Duration
	queue   time.Duration // true GPU time that waits or runs
	queued  int
	used    time.Duration
	history []time.Duration // used, by steps
	period  time.Duration   // used in the driver's period
	rates   []uint32        // all that were published
	verdict Verdict
}

// driver is how the driver samples.
type driver struct {
	period, lag time.Duration
	missing     float64 // part of samples that never come
	floor       bool    // percents are cut off, not rounded
	exact       bool    // parts are not whole percents
}

// loop is one GPU with its tenants.
type loop struct {
	programs      []*program
	driver        driver
	foreign       func(now time.Duration) bool // a process without an allocation that floods the GPU
	now           time.Duration
	state         State
	random        *rand.Rand
	busy          []time.Duration // of the GPU, by steps
	next          time.Duration
	pending       []monitor.Utilization
	foreignPeriod time.Duration
}

func newLoop(d driver, programs ...*program) *loop {
	l := &loop{programs: programs, driver: d, random: rand.New(rand.NewSource(1)), now: time.Hour, next: time.Hour}
	for i, p := range programs {
		if p.ceiling == 0 {
			p.ceiling = 1
		}
		p.book = monitor.Tenant{Key: fmt.Sprintf("k%d", i), GPUUUID: "GPU-a", Mode: p.mode, SharePPM: uint32(p.share * ppm),
			CeilingPPM: uint32(p.ceiling * ppm), RatePPM: uint32(p.share * ppm), ScalePPM: ppm, Known: true}
	}
	return l
}

// run goes on for so long.
func (l *loop) run(span time.Duration) {
	for end := l.now + span; l.now < end; l.now += loopStep {
		if l.now >= l.next {
			l.steer()
		}
		for _, p := range l.programs {
			l.admit(p)
		}
		l.execute()
		l.sample()
	}
}

// elapsed is the time since the start.
func (l *loop) elapsed() time.Duration { return l.now - time.Hour }

// admit launches what a program may launch in this step.
func (l *loop) admit(p *program) {
	rate := float64(p.book.RatePPM) / ppm
	p.line += scaled(loopStep, rate)
	defer p.forged(l.elapsed())
	if p.runs != nil && !p.runs(l.elapsed()) {
		p.book.Debt = max(0, p.spent-p.line)
		return
	}
	for (!p.sync || p.queue == 0) && p.queued < 1024 {
		p.book.Wanted = l.now
		if p.spent = max(p.spent, p.line-scaled(burst, rate)); p.spent > p.line {
			p.book.Waited = l.now
			p.book.Throttled += loopStep
			break
		}
		cost := scaled(p.kernel, 1+p.jitter*(2*l.random.Float64()-1))
		bias := 1.0
		if p.bias != nil {
			bias = p.bias(l.elapsed(), l.alone(p))
		}
		estimate := scaled(cost, bias)
		p.spent += scaled(estimate, float64(p.book.ScalePPM)/ppm)
		p.book.Charged += estimate
		p.book.Launches++
		p.queue += cost
		p.queued++
	}
	p.book.Debt = max(0, p.spent-p.line)
}

// forged writes into its page what it likes; what it bought and owes is kept elsewhere.
func (p *program) forged(now time.Duration) {
	if p.forge != nil {
		p.forge(now, &p.book)
	}
}

// alone says whether nobody else has work.
func (l *loop) alone(p *program) bool {
	for _, other := range l.programs {
		if other != p && (other.queue > 0 || other.runs == nil || other.runs(l.elapsed())) {
			return false
		}
	}
	return true
}

// execute gives one step of GPU time to those who have work, evenly.
func (l *loop) execute() {
	left := loopStep
	foreign := l.foreign != nil && l.foreign(l.elapsed())
	before := left
	for left > 0 {
		var users []*program
		for _, p := range l.programs {
			if p.queue > 0 {
				users = append(users, p)
			}
		}
		count := len(users)
		if foreign {
			count++
		}
		if count == 0 {
			break
		}
		part := left / time.Duration(count)
		if part == 0 {
			break
		}
		for _, p := range users {
			ran := min(part, p.queue)
			p.queue -= ran
			p.used += ran
			p.period += ran
			left -= ran
		}
		if foreign {
			l.foreignPeriod += part
			left -= part
		}
	}
	l.busy = append(l.busy, before-left)
	for _, p := range l.programs {
		p.history = append(p.history, p.used)
		p.queued = min(p.queued, int((p.queue+p.kernel-1)/p.kernel))
	}
}

// sample ends a period of the driver.
func (l *loop) sample() {
	if (l.elapsed()+loopStep)%l.driver.period != 0 {
		return
	}
	at := l.now + loopStep
	lost := l.random.Float64() < l.driver.missing
	add := func(key string, used time.Duration) {
		busy := float64(used) / float64(l.driver.period)
		switch {
		case l.driver.exact:
		case l.driver.floor:
			busy = math.Floor(busy*100+1e-9) / 100
		default:
			busy = math.Round(busy*100) / 100
		}
		if busy > 0 && !lost {
			l.pending = append(l.pending, monitor.Utilization{Key: key, GPUUUID: "GPU-a", Busy: busy, At: at})
		}
	}
	for _, p := range l.programs {
		add(p.book.Key, p.period)
		p.period = 0
	}
	add("", l.foreignPeriod)
	l.foreignPeriod = 0
}

// steer does one round.
func (l *loop) steer() {
	seen := &monitor.Compute{Now: l.now}
	for _, p := range l.programs {
		book := p.book
		if p.unreadable != nil && p.unreadable(l.elapsed()) {
			book = monitor.Tenant{Key: book.Key, GPUUUID: book.GPUUUID, Mode: book.Mode,
				SharePPM: book.SharePPM, CeilingPPM: book.CeilingPPM, RatePPM: book.RatePPM, ScalePPM: book.ScalePPM}
		}
		seen.Tenants = append(seen.Tenants, book)
	}
	for len(l.pending) > 0 && l.pending[0].At+l.driver.lag <= l.now {
		seen.Samples = append(seen.Samples, l.pending[0])
		l.pending = l.pending[1:]
	}
	var steering Result
	steering, l.state = Steer(seen, DefaultPolicy(), l.state)
	l.next = l.now + steering.Next
	for i, rate := range steering.Rates {
		p := l.programs[i]
		if p.book.RatePPM != rate.PPM {
			p.rates = append(p.rates, rate.PPM)
		}
		p.book.RatePPM, p.book.ScalePPM = rate.PPM, rate.ScalePPM
		p.verdict = steering.Verdicts[i]
	}
}

// got is the part of the GPU that a program had between two times.
func (p *program) got(from, to time.Duration) float64 {
	before := time.Duration(0)
	if from > 0 {
		before = p.history[from/loopStep-1]
	}
	return float64(p.history[to/loopStep-1]-before) / float64(to-from)
}

// settled is when the share of one second's windows came within a tenth of the target for good.
func (p *program) settled(target float64) time.Duration {
	end := time.Duration(len(p.history)) * loopStep
	settled := time.Duration(0)
	for from := time.Duration(0); from+time.Second <= end; from += 20 * ms {
		if got := p.got(from, from+time.Second); math.Abs(got-target) > target/10 {
			settled = from + 20*ms
		}
	}
	return settled
}

func constant(value float64) func(time.Duration, bool) float64 {
	return func(time.Duration, bool) float64 { return value }
}

// drivers are all that a driver may be.
var drivers = map[string]driver{
	"usual": {period: 200 * ms, floor: true}, "fast": {period: 167 * ms, lag: 50 * ms}, "slow": {period: time.Second},
	"late": {period: 200 * ms, lag: time.Second}, "gaps": {period: 200 * ms, missing: 0.3}, "exact": {period: 250 * ms, exact: true},
}

// settles is within which time wrong costs have to be put right.
func (d driver) settles() time.Duration {
	limit := 2*time.Second + d.lag + scaled(time.Second, d.missing)
	if d.period >= time.Second {
		limit += d.period // the first period does not tell how long it was
	}
	return limit
}

// CreditForger is a loop for tests from outside: an honest tenant k0, and k1, which after some time writes off in its own page
// what it has bought, so that it always has credit.
type CreditForger struct {
	loop           *loop
	honest, forger *program
}

// Drivers are the names of all drivers, for tests from outside.
func Drivers() []string { return slices.Sorted(maps.Keys(drivers)) }

// NewCreditForger makes a loop in which both are honest for a time.
func NewCreditForger(driver string, mode monitor.ComputeMode, honestFor time.Duration) *CreditForger {
	f := &CreditForger{honest: &program{mode: mode, share: 0.5, kernel: ms, jitter: 0.05},
		forger: &program{mode: mode, share: 0.2, kernel: ms, jitter: 0.05}}
	f.forger.forge = func(now time.Duration, book *monitor.Tenant) {
		if now > honestFor {
			f.forger.spent, book.Debt = 0, 0 // what burst allows it is its own again at each step
		}
	}
	f.loop = newLoop(drivers[driver], f.honest, f.forger)
	return f
}

// Run lets time pass, and returns how much has in all, what the forger had of the GPU in it, and the verdicts on both.
func (f *CreditForger) Run(span time.Duration) (elapsed time.Duration, used float64, verdicts []Verdict) {
	f.loop.run(span)
	elapsed = f.loop.elapsed()
	return elapsed, f.forger.got(elapsed-span, elapsed), []Verdict{f.honest.verdict, f.forger.verdict}
}
