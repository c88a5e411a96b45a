// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// Law is whose law holds the tenants to their shares.
type Law int

// The laws.
const (
	Ours        Law = iota
	BlockBucket     // blocks of grids as tokens, a watcher that moves the refill
	PIDBucket       // launches as tokens, a PID on the use
)

// trackStep is the resolution of what a run tells of the use.
const trackStep = 5 * time.Millisecond

// run is one scene being run.
type run struct {
	scene   scene.Scene
	world   *world
	law     Law
	tenants []*tenant
	nvml    []*nvml // by card; the agent's readers
	agent   *agent  // nil for peers
	trace   io.Writer
}

// Run runs a scene. dir is a directory for pages, removed by the caller. Each rate that is published is told to trace.
func Run(s scene.Scene, l Law, dir string, trace io.Writer) (_ scene.Outcome, err error) {
	began := time.Now()
	s = s.Filled()
	r := &run{scene: s, law: l, trace: trace, world: newWorld(s.Length, s.Seed)}
	for range s.Cards {
		c := r.world.addCard(s)
		r.nvml = append(r.nvml, &nvml{model: s.Utilization, seed: s.Seed, card: c, owners: map[*context]int{}})
	}
	for i, t := range s.Tenants {
		r.tenants = append(r.tenants, &tenant{Tenant: t, number: i, factor: 1})
		r.world.meet = r.world.meet || t.Load.Path == scene.Collective
	}
	if l == Ours {
		if r.agent, err = newAgent(r, dir); err != nil {
			return scene.Outcome{}, fmt.Errorf("set up agent: %w", err)
		}
		defer func() { err = errors.Join(err, r.agent.close()) }()
	}
	for _, t := range r.tenants {
		for range t.Processes {
			if err := r.addProcess(t); err != nil {
				return scene.Outcome{}, fmt.Errorf("start process of %s: %w", t.Name, err)
			}
		}
	}
	if r.agent != nil {
		r.agent.start()
	}
	r.world.spawn(0, r.happen)
	r.world.run()
	if r.agent != nil {
		r.agent.settle()
		if r.agent.err != nil {
			return scene.Outcome{}, fmt.Errorf("steer: %w", r.agent.err)
		}
	}
	o := r.outcome()
	o.Took = time.Since(began)
	return o, nil
}

// addProcess makes a process of a tenant, with its contexts, its limiter and its threads.
func (r *run) addProcess(t *tenant) error {
	p := &process{world: r.world, tenant: t, kernel: t.Load.Kernel}
	for range t.processes {
		p.kernel *= time.Duration(t.Load.Longer)
	}
	for i, c := range r.world.cards {
		x := c.addContext(t.Load.Streams)
		p.contexts = append(p.contexts, x)
		r.nvml[i].owners[x] = t.number
	}
	switch {
	case t.Mode == scene.Uncapped:
		p.law = &peer{process: p, buckets: make([]bucket, len(p.contexts)), unseen: everything}
	case r.law == Ours:
		if err := r.agent.admit(p); err != nil {
			return err
		}
	default:
		p.law = r.peerLaw(p)
	}
	t.processes = append(t.processes, p)
	for i := range t.Threads {
		p.start(i)
	}
	return nil
}

// everything is the paths there are.
var everything = []scene.Path{scene.Plain, scene.Extended, scene.Cooperative, scene.Graph, scene.Collective}

func (r *run) peerLaw(p *process) law {
	l := &peer{process: p}
	for i := range p.contexts {
		reader := *r.nvml[i]
		if r.law == BlockBucket {
			l.unseen = []scene.Path{scene.Cooperative, scene.Graph}
			b := newBlockBucket(p.tenant.Share, r.scene.SMs)
			p.tenant.onShare = append(p.tenant.onShare, func(percent int) { b.limit = float64(percent) })
			l.buckets = append(l.buckets, b)
			r.world.watcher(p, i, &reader, blockPeriod, b.watch)
			continue
		}
		l.unseen = []scene.Path{scene.Extended, scene.Graph}
		b := newPIDBucket(p.tenant.Share, r.world)
		p.tenant.onShare = append(p.tenant.onShare, func(percent int) { b.target = float64(percent) / 100 })
		l.buckets = append(l.buckets, b)
		r.world.watcher(p, i, &reader, pidPeriod, b.watch)
	}
	return l
}

// happen lets the scene's events happen.
func (r *run) happen(t *thread) {
	for _, e := range r.scene.Events {
		t.until(e.At)
		switch e.Kind {
		case scene.SetShare:
			for _, set := range r.tenants[e.Tenant].onShare {
				set(e.Value)
			}
		case scene.CostFactor:
			r.tenants[e.Tenant].factor = float64(e.Value) / 1000
		case scene.KillOne:
			p := r.tenants[e.Tenant].processes[0]
			p.dead = true
			for _, x := range p.contexts {
				x.kill()
			}
		case scene.StopAgent, scene.StartAgent, scene.StepClock:
			if r.agent != nil {
				r.agent.happen(e)
			}
		}
	}
}

// outcome reads the first card's meters.
func (r *run) outcome() scene.Outcome {
	var o scene.Outcome
	for _, t := range r.tenants {
		track := scene.Track{Step: trackStep, Used: make([]time.Duration, 1)}
		for at := trackStep; at <= r.scene.Length; at += trackStep {
			used := track.Used[len(track.Used)-1]
			for _, p := range t.processes {
				used += p.contexts[0].used.sum(at-trackStep, at)
			}
			track.Used = append(track.Used, used)
		}
		var byProcess []float64
		for _, p := range t.processes {
			byProcess = append(byProcess, p.contexts[0].used.sum(0, r.scene.Length).Seconds())
		}
		o.Tenants = append(o.Tenants, track)
		o.Claims = append(o.Claims, scene.Claims{Throttled: t.throttled, LongestWait: t.longest, Rounds: t.rounds,
			Jain: scene.JainOf(byProcess)})
	}
	o.Card = scene.Track{Step: trackStep, Used: make([]time.Duration, 1)}
	for at := trackStep; at <= r.scene.Length; at += trackStep {
		o.Card.Used = append(o.Card.Used, o.Card.Used[len(o.Card.Used)-1]+r.world.cards[0].used.sum(at-trackStep, at))
	}
	return o
}
