// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A closed loop around Steer: a GPU that divides its time evenly among those who have work queued, tenants that buy GPU time
// by the law of libvgpu/core/rate.h, and a driver that tells whole percents of past periods, late and not always.

package decide

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
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
	verdict ComputeVerdict
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
	state         SteerState
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
			book = monitor.Tenant{Key: book.Key, GPUUUID: book.GPUUUID, Mode: book.Mode, SharePPM: book.SharePPM, CeilingPPM: book.CeilingPPM,
				RatePPM: book.RatePPM, ScalePPM: book.ScalePPM}
		}
		seen.Tenants = append(seen.Tenants, book)
	}
	for len(l.pending) > 0 && l.pending[0].At+l.driver.lag <= l.now {
		seen.Samples = append(seen.Samples, l.pending[0])
		l.pending = l.pending[1:]
	}
	var steering Steering
	steering, l.state = Steer(seen, DefaultSteerPolicy(), l.state)
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

// Costs that are wrong by half and by double are corrected in time, for short and long
// kernels and every kind of driver, and costs that are right are left alone.
func TestScaleSettles(t *testing.T) {
	for name, d := range drivers {
		for _, kernel := range []time.Duration{20 * time.Microsecond, 2 * ms, 20 * ms} {
			for _, share := range []float64{0.1, 0.3, 0.5} {
				for _, bias := range []float64{0.5, 1, 2} {
					if kernel == 20*ms && share < 0.3 {
						continue // so few launches in a second that their number decides
					}
					p := &program{mode: monitor.ComputeHard, share: share, kernel: kernel, jitter: 0.05, bias: constant(bias)}
					newLoop(d, p).run(12 * time.Second)
					settled, steady := p.settled(share), p.got(4*time.Second, 12*time.Second)
					if settled > d.settles() || math.Abs(steady-share) > 0.01 {
						t.Errorf("%s driver, kernels of %s, share %.2f, costs times %.1f: settled after %s, steady %.4f, scale %.3f",
							name, kernel, share, bias, settled, steady, p.verdict.Scale)
					}
				}
			}
		}
	}
}

// The same where a neighbour comes and goes every two seconds, and costs are wrong in its company only.
func TestScaleWithANeighbour(t *testing.T) {
	comes := func(now time.Duration) bool { return now/(2*time.Second)%2 == 1 }
	for name, d := range drivers {
		if d.lag >= time.Second {
			continue
		}
		for _, kernel := range []time.Duration{200 * time.Microsecond, 20 * ms} {
			for _, bias := range []float64{0.6, 1, 1.7} {
				biased := func(_ time.Duration, alone bool) float64 {
					if alone {
						return 1
					}
					return bias
				}
				a := &program{mode: monitor.ComputeHard, share: 0.5, kernel: kernel, jitter: 0.05, bias: biased, runs: comes}
				b := &program{mode: monitor.ComputeHard, share: 0.3, kernel: kernel, jitter: 0.05, bias: biased}
				newLoop(d, a, b).run(36 * time.Second)
				for _, got := range []struct {
					of         string
					share, was float64
				}{{"visitor", 0.25, a.got(8*time.Second, 36*time.Second)}, {"other", 0.3, b.got(8*time.Second, 36*time.Second)}} {
					if math.Abs(got.was-got.share) > 0.01 {
						t.Errorf("%s driver, kernels of %s, costs times %.1f: the %s has %.4f, want %.4f", name, kernel, bias, got.of, got.was, got.share)
					}
				}
			}
		}
	}
}

// What is lent comes back within 100 ms, is divided by weight, and the GPU is not idle.
func TestLendingInTheLoop(t *testing.T) {
	comes := func(now time.Duration) bool { return now/(2*time.Second)%2 == 1 }
	a := &program{mode: monitor.ComputeElastic, share: 0.5, kernel: 2 * ms, jitter: 0.05, runs: comes}
	b := &program{mode: monitor.ComputeElastic, share: 0.3, kernel: 2 * ms, jitter: 0.05}
	l := newLoop(drivers["usual"], a, b)
	l.run(40 * time.Second)
	busy := time.Duration(0)
	for _, step := range l.busy[4*time.Second/loopStep:] {
		busy += step
	}
	if part := busy.Seconds() / 36; part < 0.97 {
		t.Errorf("the GPU was busy %.3f of the time, want 0.97", part)
	}
	for from := 6 * time.Second; from < 40*time.Second; from += 4 * time.Second {
		if got := a.got(from, from+100*ms); got < 0.45 {
			t.Errorf("%s: the lender had %.3f in its first 100 ms, want 0.45", from, got)
		}
		if got := a.got(from+200*ms, from+2*time.Second); math.Abs(got-0.625) > 0.02 {
			t.Errorf("%s: the lender had %.3f of the GPU, want 0.625", from, got)
		}
	}
	if changes := len(b.rates); changes > 40 {
		t.Errorf("%d changes of a rate in ten visits", changes)
	}
}

// Kernels that are longer than any period: the mean holds, whatever is seen of them.
func TestLongKernelsInTheLoop(t *testing.T) {
	for name, d := range drivers {
		for _, kernel := range []time.Duration{200 * ms, 2 * time.Second} {
			p := &program{mode: monitor.ComputeHard, share: 0.2, kernel: kernel, jitter: 0.05, sync: true}
			newLoop(d, p).run(120 * time.Second)
			if got := p.got(0, 120*time.Second); math.Abs(got-0.2) > 0.02 {
				t.Errorf("%s driver, kernels of %s: %.4f of the GPU, want 0.2 (scale %.3f)", name, kernel, got, p.verdict.Scale)
			}
			if p.verdict.OverShare {
				t.Errorf("%s driver, kernels of %s: %s", name, kernel, p.verdict.Reason)
			}
		}
	}
}

// What is remembered does not grow.
func TestStateIsBounded(t *testing.T) {
	p := &program{mode: monitor.ComputeHard, share: 0.3, kernel: 2 * ms}
	l := newLoop(drivers["fast"], p)
	l.run(100 * time.Second)
	known := l.state.tenants[tenantID{"GPU-a", "k0"}]
	if len(known.history) > 200 || len(known.scale.marks) > marksCount || len(known.usage.recent) > 40 {
		t.Errorf("%d moments, %d marks, %d periods", len(known.history), len(known.scale.marks), len(known.usage.recent))
	}
	_, state := Steer(&monitor.Compute{Now: l.now}, DefaultSteerPolicy(), l.state)
	if len(state.tenants) != 0 {
		t.Error("a tenant that is gone is remembered")
	}
	if _, state = Steer(&monitor.Compute{Now: l.now + gpuForgotten}, DefaultSteerPolicy(), state); len(state.gpus) != 0 {
		t.Error("a GPU without tenants is remembered for ever")
	}
}

// Two rounds from the same state do not disturb each other, nor that state.
func TestHistoryBranches(t *testing.T) {
	h := history{}.add(time.Second, 0, 1, 1, alone)
	for i := range 20 {
		h = h.add(time.Second+time.Duration(i+1)*20*ms, time.Duration(i)*ms, 1, 1, alone)
	}
	one := h.add(2*time.Second, time.Second, 1, 1, alone)
	want := one[len(one)-1]
	two := h.add(2*time.Second, 2*time.Second, 1, 1, alone)
	if got := one[len(one)-1]; got != want || two[len(two)-1].charged != 2*time.Second || h[len(h)-1].charged >= time.Second {
		t.Errorf("%+v, then %+v", want, got)
	}
}

// Whatever is seen: no panic, and rates and scales within their bounds.
func FuzzSteer(f *testing.F) {
	f.Add([]byte("\x01\x02\x03 0123456789 abcdefgh"), int64(1))
	f.Add([]byte{255, 0, 255, 0, 128, 7, 9, 200, 31, 42, 255, 255, 0, 0, 1}, int64(-5))
	f.Fuzz(func(t *testing.T, data []byte, seed int64) {
		random := rand.New(rand.NewSource(seed))
		next := func() int64 {
			if len(data) == 0 {
				return random.Int63()
			}
			value := int64(data[0])
			data = data[1:]
			return value
		}
		odd := func() time.Duration { // now and then absurd
			switch next() % 8 {
			case 0:
				return time.Duration(random.Uint64())
			case 1:
				return math.MaxInt64 - time.Duration(next())
			case 2:
				return math.MinInt64 + time.Duration(next())
			}
			return time.Duration(next()) * ms
		}
		var state SteerState
		now := time.Hour
		for range 40 {
			now += time.Duration(next()%64) * ms
			if next()%32 == 0 {
				now += odd() % (24 * time.Hour)
			}
			seen := &monitor.Compute{Now: now}
			for i := range next() % 5 {
				seen.Tenants = append(seen.Tenants, monitor.Tenant{Key: fmt.Sprint(next() % 4), GPUUUID: fmt.Sprint("GPU-", i%2),
					Mode: monitor.ComputeMode(next() % 4), SharePPM: uint32(next() * 5000), CeilingPPM: uint32(next() * 5000),
					RatePPM: uint32(random.Uint64()), ScalePPM: uint32(random.Uint64()), Known: next()%4 > 0, Debt: odd(), Charged: odd(),
					Wanted: now + odd()%time.Second, Waited: now + odd()%time.Second, Throttled: odd()})
			}
			for range next() % 5 {
				busy := float64(next()) / 100
				if next()%16 == 0 {
					busy = math.Float64frombits(random.Uint64())
				}
				seen.Samples = append(seen.Samples, monitor.Utilization{Key: fmt.Sprint(next() % 4), GPUUUID: fmt.Sprint("GPU-", next()%2), Busy: busy,
					At: now + odd()%time.Second})
			}
			var steering Steering
			steering, state = Steer(seen, DefaultSteerPolicy(), state)
			checkSteering(t, seen, steering)
		}
	})
}

// checkSteering holds what was decided against what must never be.
func checkSteering(t *testing.T, seen *monitor.Compute, steering Steering) {
	t.Helper()
	if len(steering.Rates) != len(steering.Verdicts) || steering.Next <= 0 {
		t.Fatalf("%+v", steering)
	}
	shares, lent := map[string]float64{}, map[string]float64{}
	i := 0
	for _, tenant := range seen.Tenants {
		if tenant.Mode == monitor.ComputeNone {
			continue
		}
		rate, verdict := steering.Rates[i], steering.Verdicts[i]
		i++
		if rate.Key != tenant.Key || rate.GPUUUID != tenant.GPUUUID {
			t.Fatalf("rate %+v in the place of %+v", rate, tenant)
		}
		share := min(max(float64(tenant.SharePPM)/ppm, 0.01), 1)
		ceiling := share
		if tenant.Mode == monitor.ComputeElastic {
			ceiling = min(max(float64(tenant.CeilingPPM)/ppm, share), 1)
		}
		got := float64(rate.PPM) / ppm
		shares[tenant.GPUUUID] += share
		lent[tenant.GPUUUID] += max(0, got-share)
		if got > ceiling*1.01+1e-6 || got <= 0 || rate.ScalePPM < ppm/10 || rate.ScalePPM > 10*ppm {
			t.Errorf("rate %+v of share %.3f and ceiling %.3f", rate, share, ceiling)
		}
		if !(verdict.Used >= 0 && verdict.Used <= 1.01) {
			t.Errorf("%+v", verdict)
		}
	}
	for uuid, sum := range lent {
		if sum > 1.01 {
			t.Errorf("%s: %.3f is lent of shares of %.3f", uuid, sum, shares[uuid])
		}
	}
}
