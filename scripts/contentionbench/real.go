// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Rows in real time: each on a node of its own with simulated cards, the agent, and tenants under the preloaded library; all
// side by side, and each beside the same scene in virtual time. Their thresholds are the default's, their times shorter.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/scripts/benchnode"
	"github.com/vgpud/vgpud/scripts/contentionbench/virtual"
)

// ruleShort is ours with the times of rows in real time.
const ruleShort = "vgpud short"

// shortPolicy has the times that shortFlags give the agent.
func shortPolicy() health.Policy {
	policy := health.DefaultPolicy()
	policy.BadFor, policy.GoodFor, policy.Hold = 10*time.Second, 10*time.Second, 20*time.Second
	return policy
}

func shortFlags() []string {
	policy := shortPolicy()
	return []string{"--contention", "health", "--contention-preset", "custom", "--contention-bad-for", policy.BadFor.String(),
		"--contention-good-for", policy.GoodFor.String(), "--contention-hold", policy.Hold.String(), "--probes", "off", "--witness", "off", "--events", "off"}
}

// ruleHeld is what the agent itself says of the card, whatever the kubelet is told of that.
const ruleHeld = "held"

// How far a row in real time may be from the one in virtual time.
const (
	agreeDetect   = 10.0            // s, and a fifth
	agreeRecover  = 15.0            // s, and a fifth
	agreePressure = 6.0             // points
	agreeToldIn   = 5 * time.Second // of what the agent says, by the kubelet
	readEvery     = 500 * time.Millisecond
)

// runReal runs the rows in real time. One line each, as they come.
func runReal(ctx context.Context, o options, stdout io.Writer) (records []record, shown []outcome, err error) {
	var rows []realRow
	for _, r := range allRealRows() {
		if o.row.MatchString(r.id) {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return nil, nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, nil, errors.New("real rows mount files as a container runtime does: they need root")
	}
	build, err := benchnode.Snapshot(o.build)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(build)) }()
	defer benchnode.Prefer()() // for the readings
	var mu sync.Mutex
	var running sync.WaitGroup
	for _, r := range rows {
		running.Go(func() {
			made, plot, failed := runOneReal(ctx, r, build)
			mu.Lock()
			defer mu.Unlock()
			if failed != nil {
				made = record{Kind: kindOurs, Rule: ruleShort, Clock: clockReal, Row: r.id, Title: r.title, Missed: []string{firstLine(failed)}}
				fmt.Fprintf(stdout, "%s: %v\n", r.id, failed)
			}
			records, shown = append(records, made), append(shown, plot)
			fmt.Fprintln(stdout, made.line())
		})
	}
	running.Wait()
	return records, shown, err
}

// firstLine is an error without the log that follows it.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func runOneReal(ctx context.Context, r realRow, build string) (record, outcome, error) {
	rules := map[string]rule{ruleShort: newShipped(shortPolicy(), r.scene)}
	twin := watch(r.row, rules)
	there := twin.judgeVerdicts(ruleShort)
	twin.judgePressure(&there)
	o, err := r.run(ctx, build)
	if err != nil {
		return record{}, outcome{}, err
	}
	o.twin = twin.points
	here := o.judgeVerdicts(ruleShort)
	o.judgePressure(&here)
	here.Lost = nil // only the model knows
	made := record{Kind: kindOurs, Rule: ruleShort, Clock: clockReal, Row: r.id, Title: r.title, Minutes: r.scene.Length.Minutes(), Seeds: 1,
		Figures: here.rounded(), Twin: new(there.rounded()), Load: benchnode.LoadAverage(),
		Target: fmt.Sprintf("as in virtual time, within %g s and a fifth, %g points", agreeDetect, agreePressure)}
	made.Missed = append(apart(here, there), o.untold()...)
	made.Pass = len(made.Missed) == 0
	return made, o, nil
}

// apart says where a row in real time is not as in virtual time.
func apart(here, there Figures) (missed []string) {
	compare := func(what string, a, b *float64, within, part float64) {
		switch {
		case a == nil && b == nil:
		case a == nil || b == nil || (*a < 0) != (*b < 0):
			missed = append(missed, what+" here or there alone")
		case math.Abs(*a-*b) > within+part*(*b):
			missed = append(missed, fmt.Sprintf("%s %.0f, virtual %.0f", what, *a, *b))
		}
	}
	compare("found after", here.Detect, there.Detect, agreeDetect, 0.2)
	compare("over after", here.Recover, there.Recover, agreeRecover, 0.2)
	compare("pressure", here.Shown, there.Shown, agreePressure, 0)
	if here.Unnamed != 0 || there.Unnamed != 0 {
		missed = append(missed, fmt.Sprintf("%d verdicts name nobody, virtual %d", here.Unnamed, there.Unnamed))
	}
	if here.False != 0 || there.False != 0 {
		missed = append(missed, fmt.Sprintf("%d false verdicts, virtual %d", here.False, there.False))
	}
	return missed
}

// untold says where the kubelet was not told what the agent found.
func (o outcome) untold() []string {
	found, told := o.episodes[ruleHeld], o.episodes[ruleShort]
	if len(found) != len(told) {
		return []string{fmt.Sprintf("the agent held the card contended %d times, the kubelet was told %d times", len(found), len(told))}
	}
	for i := range found {
		if late := max((told[i].from - found[i].from).Abs(), (told[i].to - found[i].to).Abs()); late > agreeToldIn {
			return []string{fmt.Sprintf("the kubelet was told %.0f s later than the agent said", late.Seconds())}
		}
	}
	return nil
}

// run runs the scene on a node, and returns what the kubelet and the agent's control socket tell of it.
func (r realRow) run(ctx context.Context, build string) (o outcome, err error) {
	dir, err := os.MkdirTemp("", "cs")
	if err != nil {
		return outcome{}, fmt.Errorf("make directory of the socket: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s")
	flags := append(shortFlags(), "--control-socket", socket, "--compute-mode", r.mode)
	n, err := benchnode.Start(ctx, benchnode.Config{Build: build, Cards: 2, Sim: r.simulator(), Agent: flags})
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	first := 0
	for _, t := range r.scene.Filled().Tenants {
		if _, err := n.Admit(ctx, t.Name, t.Slices, first); err != nil {
			return outcome{}, err
		}
		first += t.Slices
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	begin := limiter.MonotonicNow()
	var happening sync.WaitGroup
	for i := range r.scene.Tenants {
		happening.Go(func() {
			if err := r.tenant(ctx, n.Boxes[i], i, begin); err != nil {
				cancel(err)
			}
		})
	}
	for _, e := range r.live {
		happening.Go(func() {
			if benchnode.Sleep(ctx, begin+e.at) == nil {
				if _, err := n.Control(ctx, append([]string{"set", "--gpu", "0"}, e.settings...)...); err != nil {
					cancel(err)
				}
			}
		})
	}
	o, err = r.read(ctx, n, control.NewClient(socket), begin)
	cancel(nil)
	happening.Wait()
	return o, err
}

// tenant starts the tenant's program when it is due, and ends it.
func (r realRow) tenant(ctx context.Context, b *benchnode.Box, number int, begin time.Duration) error {
	t := r.scene.Filled().Tenants[number]
	from, until := t.From+t.Loops[0].From, min(t.Loops[0].Until, r.scene.Length)
	if benchnode.Sleep(ctx, begin+from) != nil {
		return nil // it is over
	}
	if err := b.Launch(r.programs[number]...); err != nil {
		return err
	}
	if _, err := b.Begun(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("start %s: %w", t.Name, err)
	}
	if benchnode.Sleep(ctx, begin+until) == nil {
		b.Program.End(syscall.SIGKILL)
	}
	return nil
}

// read follows the scene to its end.
func (r realRow) read(ctx context.Context, n *benchnode.Node, client *control.Client, begin time.Duration) (outcome, error) {
	defer client.Close()
	o := outcome{row: r.row, real: true, length: r.scene.Length, episodes: map[string][]episode{}}
	keys := map[string]string{} // by pod: the key that the model has for it
	for i, t := range r.scene.Tenants {
		keys[n.Boxes[i].Pod.Name] = virtual.Key(t)
	}
	for at := time.Duration(0); at < r.scene.Length; at += readEvery {
		if err := benchnode.Sleep(ctx, begin+at); err != nil {
			return outcome{}, err
		}
		capacity, allocatable := n.Kubelet.Counts(benchnode.ResourceName)
		view, err := client.View(ctx)
		if err != nil {
			return outcome{}, fmt.Errorf("ask the agent: %w\n%s", err, n.AgentLog())
		}
		pods := map[string]string{} // by allocation
		for _, s := range view.Slices {
			pods[s.Allocation] = s.Pod
		}
		antagonist, held := "", false
		for _, gpu := range view.GPUs {
			if gpu.UUID == n.UUIDs[0] && gpu.Evidence != nil {
				antagonist, held = keys[pods[gpu.Evidence.Antagonist]], gpu.Contended
			}
		}
		o.note(ruleShort, at, allocatable < capacity, antagonist)
		o.note(ruleHeld, at, held, antagonist)
		p := point{at: at}
		for _, s := range view.Slices {
			if s.GPUUUID != n.UUIDs[0] || keys[s.Pod] != virtual.Key(r.scene.Tenants[0]) {
				continue
			}
			for _, pressure := range s.Pressures {
				if pressure.Resource != string(contention.ResourceTime) {
					p.avg10, p.avg60 = max(p.avg10, pressure.Full.Avg10), max(p.avg60, pressure.Full.Avg60)
				}
			}
		}
		o.points = append(o.points, p)
	}
	return o, nil
}
