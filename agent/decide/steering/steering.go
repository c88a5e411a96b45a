// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package steering divides GPU time among the tenants of each card, many times a second. In: what their compute books and the
// driver's samples say (monitor.Compute), a policy, the cuts in force, and the state of the round before. Out: what each may
// use until the next round, what its estimated costs are worth, and verdicts. It has no effects. The agent's steering loop
// calls Steer and writes the rates into the pages; package witness and metrics read the verdicts.
//
// card.go is one GPU in one round, member.go one tenant of it, history.go what it charged of late. lending.go divides GPU time,
// scale.go finds out how wrong estimated costs are (from mark.go, window.go and evidence.go, and with distrust.go), usage.go
// reports.
package steering

import (
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// ppm is one whole in the unit of shares, rates and scales.
const ppm = monitor.WholePPM

// Policy is what the operator chose for GPU time, and the times of steering. But for Cuts it does not change while the
// agent runs.
type Policy struct {
	Round  time.Duration // between rounds while something is wanted
	Rest   time.Duration // between rounds while nothing is
	Active time.Duration // a tenant that asked for GPU time within this time has a claim to its share
	Alone  time.Duration // a tenant is alone when nobody else used the GPU for this time
	// OverShareAfter is how long measured use must be above what was granted before it is reported.
	OverShareAfter time.Duration
	// HeldAfter is the time over which a tenant that waits at least half of it is reported as held by its cap.
	HeldAfter time.Duration
	// Cuts are tenants that have less than their share for a while; see package health. Nothing in it is changed.
	Cuts []Cut
}

// Cut says that an allocation is to have less of a GPU's time than it is granted.
type Cut struct {
	Key, GPUUUID string
	Factor       float64       // part of its share that it keeps, 0 to 1
	Until        time.Duration // CLOCK_MONOTONIC
}

// DefaultPolicy is what the agent uses.
func DefaultPolicy() Policy {
	return Policy{Round: 20 * time.Millisecond, Rest: 100 * time.Millisecond, Active: 30 * time.Millisecond,
		Alone: 200 * time.Millisecond, OverShareAfter: 10 * time.Second, HeldAfter: time.Minute}
}

// State is what has to be remembered between rounds. The zero value is the start. It is a value: Steer makes a new
// one and changes nothing in the one it was given. Its size is bounded by the number of tenants.
type State struct {
	now     time.Duration
	gpus    map[string]gpuTime
	tenants map[tenantID]tenantTime
}

// tenantID names an allocation on a GPU.
type tenantID struct{ gpuUUID, key string }

// Result is what one round asks for. Both lists are in the order of monitor.Compute.Tenants, and have every tenant whose
// mode is not ComputeNone.
type Result struct {
	Rates    []Rate
	Verdicts []Verdict
	Next     time.Duration // look again after this time
}

// Rate is what is to be in force for one allocation on one GPU.
type Rate struct {
	Key, GPUUUID string
	PPM          uint32 // GPU time per time, loans included
	ScalePPM     uint32 // GPU time really used per estimated cost
	Alone        bool   // nobody else used the GPU of late
}

// Verdict is what a round concludes about one allocation on one GPU. Parts are of the whole GPU, 0 to 1.
type Verdict struct {
	Key, GPUUUID string
	Granted      float64 // the share, cut or not
	Rate         float64 // in force, loans included
	Used         float64 // measured by the driver, over about a second
	UsedKnown    bool    // there are samples to tell Used by
	OverShare    bool    // measured use was above what was granted for Policy.OverShareAfter
	Held         bool    // its cap made it wait for at least half of Policy.HeldAfter
	Cut          bool    // it has less than its share for a while
	Distrusted   bool    // it used more than it was granted, and charged itself what it cannot have bought
	Scale        float64 // GPU time really used per estimated cost
	Reason       string  // evidence, for people; empty unless OverShare or Held
}

// Steer judges one round: how much of each GPU's time every tenant may use until the next one.
func Steer(seen *monitor.Compute, policy Policy, state State) (Result, State) {
	if seen.Now < state.now {
		state = state.restarted()
	}
	next := State{now: seen.Now, gpus: map[string]gpuTime{}, tenants: map[tenantID]tenantTime{}}
	cards := map[string]*card{}
	for uuid, known := range state.gpus {
		if seen.Now-known.seen < gpuForgotten {
			next.gpus[uuid] = known
		}
	}
	members := make([]*member, 0, len(seen.Tenants))
	for i := range seen.Tenants {
		tenant := &seen.Tenants[i]
		at := cards[tenant.GPUUUID]
		if at == nil {
			known := next.gpus[tenant.GPUUUID]
			known.seen = seen.Now
			at = &card{uuid: tenant.GPUUUID, now: seen.Now, policy: policy, gpuTime: known}
			cards[tenant.GPUUUID] = at
		}
		if tenant.Mode != monitor.ComputeNone {
			joined := at.join(tenant, state.tenants[tenantID{tenant.GPUUUID, tenant.Key}])
			joined.cut(policy.Cuts, seen.Now)
			members = append(members, joined)
		}
	}
	for _, sample := range seen.Samples {
		if at := cards[sample.GPUUUID]; at != nil {
			at.samples = append(at.samples, sample)
		}
	}
	steering := Result{Next: policy.Rest}
	for uuid, at := range cards {
		if at.steer() {
			steering.Next = policy.Round
		}
		next.gpus[uuid] = at.gpuTime
	}
	for _, m := range members {
		next.tenants[m.id()] = m.tenantTime
		steering.Rates = append(steering.Rates, m.publish())
		steering.Verdicts = append(steering.Verdicts, m.verdict(seen.Now, policy))
	}
	return steering, next
}

// restarted is the state for a clock that was set back: what was learnt of costs stays, times mean nothing any more.
func (s State) restarted() State {
	tenants := make(map[tenantID]tenantTime, len(s.tenants))
	for id, known := range s.tenants {
		tenants[id] = tenantTime{known: known.known, rate: known.rate, scale: scale{known: known.scale.known}}
	}
	return State{tenants: tenants}
}
