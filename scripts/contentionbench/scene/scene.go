// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package scene says what is run in the contention benchmark, whatever runs it: a card, tenants, what they do on it over and
// over, and what happens meanwhile.
package scene

import "time"

// Kind is what an operation is.
type Kind int

// The kinds.
const (
	Kernel       Kind = iota
	HostToDevice      // copies
	DeviceToHost
)

// Operation is one thing that a loop does. The program waits for its end.
type Operation struct {
	Kind  Kind
	Bytes uint64        // of a copy
	Work  time.Duration // of a kernel: GPU time that it takes alone, at full clocks
	DRAM  float64       // of a kernel: part of the memory's peak bandwidth that it uses while it runs alone
	Bound float64       // of a kernel: part of its time that it waits for the card's memory
	Fills float64       // of a kernel: part of the card's multiprocessors that it fills; 0: all
}

// Loop does its operations in turn, over and over.
type Loop struct {
	Operations []Operation
	Pause      time.Duration // rest after each turn, exponentially distributed about this mean; 0: none
	Streams    int           // so many at the same time in each process, where one copy a direction is under way at a time; 0: 1
	On, Off    time.Duration // phases, on first; 0: always on
	From       time.Duration // after the tenant's start
	Until      time.Duration // after the scene's begin; 0: with its tenant
	Unseen     bool          // its copies go past the library: memory of the host that kernels read, other devices' writes
}

// Tenant is one container with a share of the card.
type Tenant struct {
	Name      string
	Share     int           // of GPU time, in percent; 0: not limited
	Slices    int           // of the card's hundred, that it holds; 0: as many as its share has percent, or ten
	Loops     []Loop        // of each of its processes
	Processes int           // 0: 1
	From      time.Duration // when it starts
	Until     time.Duration // when it ends; 0: with the scene
	Again     time.Duration // it ends and starts anew every so often, as a new process with old pages; 0: never
	Lies      float64       // what its library tells of its durations is so many times the truth; 0: 1
	Free      bool          // its GPU time is neither limited nor charged
	Unnamed   bool          // it has no pages: a process that nobody granted anything
}

// Sharing is how a card runs several contexts.
type Sharing int

// The ways.
const (
	TimeSlice Sharing = iota
	MPS
)

// Card is the one that all tenants are on.
type Card struct {
	Sharing   Sharing
	LinkRate  float64 // bytes per second that copies reach in one direction; 0: 25e9
	DRAMRate  float64 // bytes per second of the memory's peak; 0: 2e12
	DRAMReach float64 // part of that peak that programs can reach; 0: 0.92
	NoGPM     bool    // no figures of bandwidth but PCIe throughput over 20 ms, as before Hopper
	Lag       time.Duration
	Sleeps    bool // its link goes down to generation 1 while nothing is copied, and up again
}

// EventKind is what may happen during a scene.
type EventKind int

// The kinds.
const (
	SetClock  EventKind = iota // the multiprocessors' clock becomes Value of its maximum
	SetMemory                  // and the memory's
	SetLink                    // the link becomes Value of its full width
)

// Event is one of them.
type Event struct {
	At      time.Duration
	Kind    EventKind
	Value   float64
	Silent  bool // the driver gives no reason for it
	Setting bool // the reason is that somebody set it, else the power cap
}

// Scene is one run.
type Scene struct {
	Length  time.Duration
	Card    Card
	Tenants []Tenant
	Events  []Event
	Seed    uint64
}

// defaultSlices is what a tenant holds of a card of which nothing else is said.
const defaultSlices = 10

// Filled returns the scene with what was left out filled in.
func (s Scene) Filled() Scene {
	s.Card.LinkRate, s.Card.DRAMRate = orElse(s.Card.LinkRate, 25e9), orElse(s.Card.DRAMRate, 2e12)
	s.Card.DRAMReach = orElse(s.Card.DRAMReach, 0.92)
	tenants := make([]Tenant, len(s.Tenants))
	for i, t := range s.Tenants {
		t.Until, t.Lies, t.Processes = orElse(t.Until, s.Length), orElse(t.Lies, 1), orElse(t.Processes, 1)
		t.Slices = orElse(orElse(t.Slices, t.Share), defaultSlices)
		loops := make([]Loop, len(t.Loops))
		for j, l := range t.Loops {
			l.Streams, l.Until = orElse(l.Streams, 1), orElse(l.Until, t.Until)
			operations := make([]Operation, len(l.Operations))
			for k, o := range l.Operations {
				o.Fills = orElse(o.Fills, 1)
				operations[k] = o
			}
			l.Operations = operations
			loops[j] = l
		}
		t.Loops = loops
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

// NextOn returns the first time from at on at which the loop of a tenant has work, and until when it then has. Beyond the
// loop's end there is none: from is until then.
func (t Tenant) NextOn(l Loop, at time.Duration) (from, until time.Duration) {
	begin, end := t.From+l.From, min(l.Until, t.Until)
	from = min(max(at, begin), end)
	if l.On == 0 || from >= end {
		return from, end
	}
	cycle := l.On + l.Off
	start := from - (from-begin)%cycle
	if from-start >= l.On {
		start += cycle
		from = min(start, end)
	}
	return from, min(start+l.On, end)
}
