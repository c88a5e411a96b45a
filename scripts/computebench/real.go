// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Rows in real time: each on a node of its own, a few side by side, and each beside the same scene in virtual time.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/scripts/benchnode"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

const (
	realLength     = 28 * time.Second // of a scene in real time
	realSideBySide = 4
	readEvery      = 100 * time.Millisecond
	readOften      = 20 * time.Millisecond // where a lender's return is looked at
	realStep       = 10 * time.Millisecond // of the tracks that are made of the readings
	agreeWithin    = 1.0                   // points between a real row and the virtual one
)

// shortened is the row as it is run in real time. Times are scaled, but scenes with phases are cut.
func (r row) shortened() row {
	if r.whole {
		return r
	}
	full := r.scene.Length
	phases := slices.ContainsFunc(r.scene.Tenants, func(t scene.Tenant) bool { return t.Load.On > 0 })
	scale := func(at time.Duration) time.Duration {
		if phases {
			return min(at, realLength)
		}
		return time.Duration(float64(at) * float64(realLength) / float64(full)).Round(100 * time.Millisecond)
	}
	spans := func(old []scene.Span) []scene.Span {
		var fresh []scene.Span
		for _, s := range old {
			if s.From, s.To = scale(s.From), scale(s.To); s.To > s.From {
				fresh = append(fresh, s)
			}
		}
		return fresh
	}
	r.scene.Length = realLength
	r.scene.Events = slices.Clone(r.scene.Events)
	for i := range r.scene.Events {
		r.scene.Events[i].At = scale(r.scene.Events[i].At)
	}
	r.criteria.Means, r.criteria.Steps, r.criteria.BothOn = spans(r.criteria.Means), spans(r.criteria.Steps), spans(r.criteria.BothOn)
	return r
}

// runReal runs rows in real time, some side by side. One line each, as they come.
func runReal(ctx context.Context, rows []row, build string, stdout io.Writer) (_ []record, err error) {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !r.real })
	if len(rows) == 0 {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("real rows mount files as a container runtime does: they need root")
	}
	if build, err = benchnode.Snapshot(build); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(build)) }()
	defer benchnode.Prefer()() // for the readings
	slots := make(chan struct{}, realSideBySide)
	results := make([]record, len(rows))
	var mu sync.Mutex
	var running sync.WaitGroup
	for i, r := range rows {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			results[i] = runOneReal(ctx, r.shortened(), build)
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintln(stdout, results[i].line())
		})
	}
	running.Wait()
	for i, r := range rows { // what missed its target with the others beside it gets one more try without them
		if results[i].Pass || ctx.Err() != nil {
			continue
		}
		again := runOneReal(ctx, r.shortened(), build)
		again.Tries = 2
		fmt.Fprintln(stdout, again.line())
		results[i] = again
	}
	return results, nil
}

func runOneReal(ctx context.Context, r row, build string) record {
	failed := func(err error) record {
		return record{Kind: kindOurs, Law: lawOurs, Clock: clockReal, Row: r.id, Title: r.title, Target: r.criteria.String(), err: err,
			Missed: []string{err.Error()}}
	}
	model := runOneVirtual(r, runKind{kindOurs, lawOurs, clockVirtual}, io.Discard)
	if model.err != nil {
		return failed(model.err)
	}
	began := time.Now()
	o, err := runScene(ctx, r, build)
	if err != nil {
		return failed(err)
	}
	o.Took = time.Since(began)
	result := r.record(kindOurs, lawOurs, clockReal, o)
	last := r.criteria.Means[len(r.criteria.Means)-1]
	here, there := o.Shares(last), model.outcome.Shares(last)
	apart := 0.0
	for i := range here {
		apart = max(apart, math.Abs(here[i]-there[i]))
	}
	result.Load = benchnode.LoadAverage()
	result.Figures.AgainstVirtual = new(math.Round(apart*1000) / 1000)
	result.Target += fmt.Sprintf(", within %g point of the model", agreeWithin)
	if apart > agreeWithin {
		result.Missed = append(result.Missed, fmt.Sprintf("%.3g points from the model", apart))
		result.Pass = false
	}
	return result
}

// runScene runs a scene on a node, and returns what the card tells of it. The scene begins when the last of the tenants
// does; those who have phases begin last.
func runScene(ctx context.Context, r row, build string) (o scene.Outcome, err error) {
	n, err := startNode(ctx, build, r.scene)
	if err != nil {
		return scene.Outcome{}, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	order := make([]int, len(n.Boxes))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return int(n.scene.Tenants[a].Load.On - n.scene.Tenants[b].Load.On)
	})
	var begin time.Duration
	for _, number := range order {
		if err := n.launch(number); err != nil {
			return scene.Outcome{}, err
		}
		if begin, err = n.Boxes[number].Begun(ctx); err != nil {
			return scene.Outcome{}, fmt.Errorf("start %s: %w\n%s", n.scene.Tenants[number].Name, err, n.AgentLog())
		}
	}
	events := make(chan error, 1)
	go func() { events <- n.happen(ctx, begin) }()
	every := readEvery
	if r.criteria.Reach != nil {
		every = readOften
	}
	readings, err := n.watch(ctx, begin, every)
	if err := errors.Join(err, <-events); err != nil {
		return scene.Outcome{}, err
	}
	return n.outcome(readings, begin), nil
}

// happen lets the scene's events happen.
func (n *node) happen(ctx context.Context, begin time.Duration) error {
	for _, e := range n.scene.Events {
		if err := benchnode.Sleep(ctx, begin+e.At); err != nil {
			return err
		}
		switch e.Kind {
		case scene.SetShare:
			share := uint32(e.Value) * (limiter.PPM / 100)
			c := limiter.Compute{Mode: limiter.ComputeHard, SharePPM: share, CeilingPPM: share}
			if err := limiter.SetCompute(n.Boxes[e.Tenant].Pages, n.UUIDs[0], c); err != nil {
				return err
			}
		case scene.StopAgent:
			n.StopAgent(syscall.SIGKILL)
		case scene.StartAgent:
			if err := n.StartAgent(); err != nil {
				return err
			}
		case scene.CostFactor, scene.KillOne, scene.StepClock: // the first one lies in the card; the others are virtual
		}
	}
	return nil
}

// watch reads the card until the scene is over.
func (n *node) watch(ctx context.Context, begin, every time.Duration) ([]reading, error) {
	var readings []reading
	for at := begin; ; at += every {
		if err := benchnode.Sleep(ctx, at); err != nil {
			return nil, err
		}
		r, err := n.read(ctx)
		if err != nil {
			return nil, err
		}
		readings = append(readings, r)
		if r.at >= begin+n.scene.Length {
			return readings, nil
		}
	}
}

// outcome makes tracks of the readings.
func (n *node) outcome(readings []reading, begin time.Duration) scene.Outcome {
	groups := map[int]int{} // by pid: its tenant
	for i, b := range n.Boxes {
		for _, r := range readings {
			for pid := range r.pids {
				if group, err := syscall.Getpgid(pid); err == nil && group == b.Program.PID {
					groups[pid] = i
				}
			}
		}
	}
	var o scene.Outcome
	for i := range n.Boxes {
		o.Tenants = append(o.Tenants, track(readings, begin, n.scene.Length, func(r reading) time.Duration {
			var sum time.Duration
			for pid, used := range r.pids {
				if tenant, ok := groups[pid]; ok && tenant == i {
					sum += used
				}
			}
			return sum
		}))
	}
	o.Card = track(readings, begin, n.scene.Length, func(r reading) time.Duration { return r.card })
	return o
}

// track is what of the readings, in even steps from the scene's begin on, with straight lines between readings.
func track(readings []reading, begin, length time.Duration, what func(reading) time.Duration) scene.Track {
	t := scene.Track{Step: realStep}
	first := time.Duration(-1)
	next := 0
	for at := begin; at <= begin+length; at += realStep {
		for next+1 < len(readings)-1 && readings[next+1].at <= at {
			next++
		}
		from, to := readings[next], readings[min(next+1, len(readings)-1)]
		used := what(from)
		if to.at > from.at {
			part := float64(at-from.at) / float64(to.at-from.at)
			used += time.Duration(part * float64(what(to)-what(from)))
		}
		if first < 0 {
			first = used
		}
		t.Used = append(t.Used, used-first)
	}
	return t
}
