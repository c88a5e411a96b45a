// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

const (
	clockBegin   = 1000 * time.Second     // CLOCK_MONOTONIC when a scene begins
	samplePeriod = 100 * time.Millisecond // how often the agent asks NVML
	beatPeriod   = 200 * time.Millisecond
	memoryLimit  = 1 << 30
)

// clock is CLOCK_MONOTONIC at a time of the scene.
func clock(at time.Duration) time.Duration { return clockBegin + at }

// agent steers the tenants of a run with the shipped law: it reads the pages, asks package steering, and publishes.
type agent struct {
	run         *run
	allocations []*allocation
	running     int // raised at each start and stop: threads of an earlier agent end
	samples     []source.ProcessUtilization
	step        time.Duration // by which the wall clock jumped
	stepped     time.Duration // and when: samples from before are taken for so much later ones
	processes   []*process    // by pid
	err         error
}

// allocation is a tenant's pages.
type allocation struct {
	tenant   *tenant
	key, dir string
	steering *limiter.Steering
	changed  []*signal // by card
	ours     []*ours
}

func uuid(card int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", card) }

// newAgent makes the pages of all tenants below dir.
func newAgent(r *run, dir string) (*agent, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	a := &agent{run: r}
	for _, t := range r.tenants {
		if t.Mode == scene.Uncapped {
			continue
		}
		if err := a.allocate(t, dir); err != nil {
			return nil, errors.Join(err, a.close())
		}
	}
	return a, nil
}

func compute(t scene.Tenant) limiter.Compute {
	share := uint32(t.Share) * (limiter.PPM / 100)
	c := limiter.Compute{Mode: limiter.ComputeHard, SharePPM: share, CeilingPPM: share}
	if t.Mode == scene.Elastic {
		c.Mode, c.CeilingPPM = limiter.ComputeElastic, uint32(t.Ceiling)*(limiter.PPM/100)
	}
	return c
}

func (a *agent) allocate(t *tenant, dir string) error {
	n := &allocation{tenant: t, key: fmt.Sprintf("tenant-%d", t.number)}
	n.dir = filepath.Join(dir, n.key)
	limits := limiter.Limits{Key: n.key}
	for card := range a.run.scene.Cards {
		limits.Devices = append(limits.Devices, limiter.Device{UUID: uuid(card), SliceCount: 1, MemoryLimitBytes: memoryLimit, Compute: compute(t.Tenant)})
		n.changed = append(n.changed, &signal{})
	}
	if err := limiter.Create(n.dir, limits); err != nil {
		return err
	}
	steering, err := limiter.OpenSteering(n.dir)
	if err != nil {
		return err
	}
	n.steering = steering
	a.allocations = append(a.allocations, n)
	t.onShare = append(t.onShare, func(percent int) {
		t.Share = percent
		for card := range a.run.scene.Cards {
			if err := n.steering.SetCompute(card, compute(t.Tenant), clock(a.run.world.now)); err != nil {
				a.fail(err)
			}
			n.changed[card].fire(a.run.world, a.run.world.now, a.run.world.late)
		}
	})
	return nil
}

// admit gives a process the limiter of its tenant.
func (a *agent) admit(p *process) error {
	for _, n := range a.allocations {
		if n.tenant == p.tenant {
			o := &ours{process: p, changed: n.changed}
			n.ours = append(n.ours, o)
			a.processes = append(a.processes, p)
			p.law = o
			return o.open(n.dir)
		}
	}
	return errors.New("a tenant without an allocation")
}

func (a *agent) fail(err error) { a.err = errors.Join(a.err, err) }

// start starts the agent's threads: steering, and asking NVML.
func (a *agent) start() {
	a.running++
	running := a.running
	w := a.run.world
	w.spawn(w.now, func(t *thread) {
		var state steering.State
		beat := -beatPeriod
		for a.running == running {
			if w.now-beat >= beatPeriod {
				beat = w.now
				for _, n := range a.allocations {
					n.steering.Beat()
				}
			}
			next := a.round(&state)
			t.until(w.now + min(next, beatPeriod) + w.late())
		}
	})
	w.spawn(w.now, func(t *thread) {
		readers := make([]nvml, len(a.run.nvml))
		for i, n := range a.run.nvml {
			readers[i] = *n
			readers[i].last = (w.now - n.model.Lag).Truncate(n.model.Period.Truncate(meterStep)) // what was before is not asked for
		}
		for a.running == running {
			for card := range readers {
				a.sample(card, &readers[card])
			}
			t.until(w.now + samplePeriod + w.late())
		}
	})
}

// sample hands over what NVML has to say that is new.
func (a *agent) sample(card int, n *nvml) {
	for _, s := range n.read(a.run.world.now) {
		at := clock(s.at)
		if s.at < a.stepped {
			at += a.step
		}
		for pid, p := range a.processes {
			if p.contexts[card] == s.context {
				a.samples = append(a.samples, source.ProcessUtilization{GPUUUID: uuid(card), PID: pid + 1,
					Busy: float64(s.percent) / 100, At: at})
				break
			}
		}
	}
}

// round is one round of steering. It returns when to look again.
func (a *agent) round(state *steering.State) time.Duration {
	now := clock(a.run.world.now)
	var tenants []source.ComputeUsage
	byKey := map[string]*allocation{}
	keys := map[int][]string{}
	for _, n := range a.allocations {
		byKey[n.key] = n
		tenants = append(tenants, a.read(n, now)...)
		for pid, p := range a.processes {
			if p.tenant == n.tenant {
				keys[pid+1] = []string{n.key}
			}
		}
	}
	seen := monitor.CollectCompute(now, tenants, a.samples, keys)
	a.samples = nil
	var result steering.Result
	result, *state = steering.Steer(seen, steering.DefaultPolicy(), *state)
	for _, rate := range result.Rates {
		n := byKey[rate.Key]
		for card := range a.run.scene.Cards {
			if uuid(card) == rate.GPUUUID {
				a.publish(n, card, limiter.Rate{PPM: rate.PPM, ScalePPM: rate.ScalePPM, Alone: rate.Alone}, now)
			}
		}
	}
	return result.Next
}

// read is what the pages of an allocation say.
func (a *agent) read(n *allocation, now time.Duration) []source.ComputeUsage {
	limits := n.steering.Limits()
	usage, err := n.steering.Meter(now)
	if err != nil {
		a.fail(err)
		return nil
	}
	var all []source.ComputeUsage
	for i, u := range usage {
		d, rate := limits.Devices[i], n.steering.Rate(i)
		all = append(all, source.ComputeUsage{Key: n.key, GPUUUID: d.UUID, Mode: source.ComputeMode(d.Compute.Mode),
			SharePPM: d.Compute.SharePPM, CeilingPPM: d.Compute.CeilingPPM, RatePPM: rate.PPM, ScalePPM: rate.ScalePPM, Known: true,
			Debt: u.Debt, Charged: u.Charged, Wanted: u.Wanted, Waited: u.Waited, Throttled: u.Throttled, Degraded: u.Degraded,
			Launches: u.Launches})
	}
	return all
}

func (a *agent) publish(n *allocation, card int, rate limiter.Rate, now time.Duration) {
	if n.steering.Rate(card) == rate {
		return
	}
	if err := n.steering.Publish(card, rate, now); err != nil {
		a.fail(err)
	}
	fmt.Fprintf(a.run.trace, "%.3f %s card %d: rate %.4f scale %.4f alone %v\n", (now - clockBegin).Seconds(), n.tenant.Name, card,
		float64(rate.PPM)/limiter.PPM, float64(rate.ScalePPM)/limiter.PPM, rate.Alone)
	n.changed[card].fire(a.run.world, a.run.world.now, a.run.world.late)
}

// happen lets an event of the agent happen.
func (a *agent) happen(e scene.Event) {
	switch e.Kind {
	case scene.StopAgent:
		a.running++
	case scene.StartAgent:
		a.start()
	case scene.StepClock:
		a.step, a.stepped = time.Duration(e.Value)*time.Millisecond, e.At
	}
}

// settle reads what the tenants' limiters claim, at the end.
func (a *agent) settle() {
	for _, n := range a.allocations {
		usage, err := n.steering.Meter(clock(a.run.world.now))
		if err != nil {
			a.fail(err)
			continue
		}
		n.tenant.throttled = usage[0].Throttled
		var used time.Duration
		for _, p := range n.tenant.processes {
			used += p.contexts[0].used.sum(0, a.run.scene.Length)
		}
		fmt.Fprintf(a.run.trace, "%s in all: used %.3f s, charged %.3f s, spent %.3f s\n", n.tenant.Name, used.Seconds(), usage[0].Charged.Seconds(),
			usage[0].Spent.Seconds())
	}
}

func (a *agent) close() error {
	var errs []error
	for _, n := range a.allocations {
		for _, o := range n.ours {
			errs = append(errs, o.close())
		}
		errs = append(errs, n.steering.Close())
	}
	return errors.Join(errs...)
}
