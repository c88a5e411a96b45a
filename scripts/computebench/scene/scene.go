// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package scene says what is run in the compute benchmark, whatever runs it: cards, tenants, what they launch, and what
// happens meanwhile. And it judges what came of it: Outcome has the GPU time that each tenant really got, as the card knows
// it, and figures.go makes figures of that.
package scene

import "time"

// Path is the driver call by which a tenant launches.
type Path int

// The paths. They differ in what a limiter has to know of.
const (
	Plain Path = iota
	Extended
	Cooperative
	Graph
	Collective // spins until its peers on other cards run, too: each thread of the process is a rank on a card of its own
)

// Load is what each thread of a tenant does, for as long as it is on.
type Load struct {
	Kernel  time.Duration // GPU time of one kernel, running alone
	Longer  int           // kernels of each further process of the tenant are so many times longer; 0: 1
	Blocks  uint64        // grid; 0: 1024
	Threads uint32        // of one block; 0: 256
	Path    Path
	Nodes   int           // kernels in a graph; 0: 1
	Streams int           // dealt in turn; 0: 1
	Duty    float64       // 0: launch without end; else wait for each launch, and be busy this part of the time
	Fills   float64       // part of the card that one kernel fills; 0: all of it
	On, Off time.Duration // phases, on first; 0: always on
}

// Mode is how a tenant's share is meant.
type Mode int

// The modes.
const (
	Hard Mode = iota
	Elastic
	Uncapped
)

// Tenant is one container with a share of each card of the scene.
type Tenant struct {
	Name      string
	Share     int // percent
	Mode      Mode
	Ceiling   int // percent; 0: 100
	Processes int // 0: 1
	Threads   int // of each process; 0: 1
	Load      Load
	From      time.Duration // when it starts
	Until     time.Duration // when it ends; 0: with the scene
}

// Sharing is how a card runs several contexts.
type Sharing int

// The ways.
const (
	TimeSlice Sharing = iota
	MPS
)

// Utilization is how NVML shows the use of the card.
type Utilization struct {
	Absent  bool          // it has no figures by process
	Period  time.Duration // 0: 200 ms
	Lag     time.Duration
	Missing int // percent of samples that never appear
}

// EventKind is what may happen during a scene.
type EventKind int

// The kinds.
const (
	SetShare   EventKind = iota // Tenant's share becomes Value percent
	StopAgent                   // killed: nobody steers from now on
	StartAgent                  // a new one
	CostFactor                  // what marks on the tenant's streams show is Value permille of the truth
	KillOne                     // one process of the tenant is killed in the middle of a launch
	StepClock                   // the wall clock of the node, from which NVML stamps samples, jumps by Value milliseconds
)

// Event is one of them.
type Event struct {
	At     time.Duration
	Kind   EventKind
	Tenant int
	Value  int
}

// Scene is one run.
type Scene struct {
	Length      time.Duration
	Cards       int // 0: 1; a tenant launches on all of them
	SMs         int // 0: 132
	Sharing     Sharing
	Utilization Utilization
	Tenants     []Tenant
	Events      []Event
	Seed        uint64
}

// Filled returns the scene with what was left out filled in.
func (s Scene) Filled() Scene {
	s.Cards, s.SMs = orElse(s.Cards, 1), orElse(s.SMs, 132)
	s.Utilization.Period = orElse(s.Utilization.Period, 200*time.Millisecond)
	tenants := make([]Tenant, len(s.Tenants))
	for i, t := range s.Tenants {
		t.Processes, t.Threads, t.Ceiling = orElse(t.Processes, 1), orElse(t.Threads, 1), orElse(t.Ceiling, 100)
		t.Until = orElse(t.Until, s.Length)
		t.Load.Blocks, t.Load.Threads = orElse(t.Load.Blocks, 1024), orElse(t.Load.Threads, 256)
		t.Load.Longer = orElse(t.Load.Longer, 1)
		t.Load.Nodes, t.Load.Streams, t.Load.Fills = orElse(t.Load.Nodes, 1), orElse(t.Load.Streams, 1), orElse(t.Load.Fills, 1)
		tenants[i] = t
	}
	s.Tenants = tenants
	return s
}

func orElse[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// NextOn returns the first time from at on at which the tenant has work, and until when it then has.
func (t Tenant) NextOn(at time.Duration) (from, until time.Duration) {
	from = max(at, t.From)
	if t.Load.On == 0 {
		return from, t.Until
	}
	cycle := t.Load.On + t.Load.Off
	start := from - (from-t.From)%cycle
	if from-start >= t.Load.On {
		start += cycle
		from = start
	}
	return from, min(start+t.Load.On, t.Until)
}
