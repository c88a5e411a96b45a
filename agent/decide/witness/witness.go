// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package witness judges containers from outside: the library limits programs that load it, and this sees those that do not. In:
// processes, memory, files and calls as the driver, the kernel and the ledger tell them (monitor.Outside), the verdicts of
// steering, a policy, and the state of the look before. Out: findings, and what is to be done to whom. It has no effects. The
// look from outside calls Judge every two seconds; the freezer carries its orders out, metrics and events tell its findings.
//
// rules.go says what is suspicious in one look; here is how long it must be so before it is said, how long it stays said, and
// what is to be done.
package witness

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
)

// Kind is what a container does.
type Kind string

// The kinds, as they appear in metrics and logs.
const (
	NoSlot       Kind = "no-slot"            // a process uses the GPU past our library
	BeyondBook   Kind = "memory-beyond-book" // it holds more memory than its book says, or than it may
	BeyondGrant  Kind = "time-beyond-grant"  // it uses more GPU time than it may, or forges its book of it
	ReplacedFile Kind = "replaced-file"      // it does not see the files that were mounted into it
	NoAllocation Kind = "no-allocation"      // it uses a GPU and was given none
)

// Kinds are all of them.
var Kinds = []Kind{NoSlot, BeyondBook, BeyondGrant, ReplacedFile, NoAllocation}

// Action is what is done about it.
type Action string

// The actions.
const (
	Report Action = "report"
	Freeze Action = "freeze" // its container's processes are stopped until its pod ends
	Kill   Action = "kill"   // and ended
)

// Policy is what the operator chose. It does not change while the agent runs.
type Policy struct {
	Action Action
	// OverheadBytes is what the driver takes for itself in each process of a GPU, at most: contexts and code. The driver
	// counts it, no book does. Where other containers show more, that counts, up to twice as much.
	OverheadBytes uint64
	// TrustedNamespaces are those whose containers may use GPUs without an allocation, such as the driver's own tools.
	TrustedNamespaces []string
}

// DefaultPolicy is what the agent uses unless it is told otherwise.
func DefaultPolicy() Policy {
	return Policy{Action: Report, OverheadBytes: 1 << 30, TrustedNamespaces: []string{"kube-system", "gpu-operator"}}
}

// Finding is one thing that one container does.
type Finding struct {
	Kind                                               Kind
	Namespace, Pod, PodUID, ContainerName, ContainerID string        // empty where not known
	Key                                                string        // of its allocation; "": it has none, or several
	GPUUUID                                            string        // "": not about one GPU
	PID                                                int           // one of its processes that does it
	Command                                            string        // of that; any bytes
	Bytes, BookBytes                                   uint64        // held by the driver's word, and accounted for
	Used, Granted                                      float64       // parts of the GPU's time, 0 to 1
	Path                                               string        // of the replaced file, in the container
	Detail                                             string        // for people
	Since                                              time.Duration // when it was first seen, CLOCK_MONOTONIC

	container monitor.Container
	start     uint64        // of the process
	certain   bool          // enough to act on
	settle    time.Duration // how long it must be so before it is said
}

// Unaccounted is how much memory nobody has accounted for.
func (f Finding) Unaccounted() uint64 { return f.Bytes - min(f.Bytes, f.BookBytes) }

// id tells findings apart.
func (f Finding) id() findingID {
	return findingID{f.Kind, place(f.container, f.Key), f.GPUUUID, f.Path}
}

type findingID struct {
	kind             Kind
	place, gpu, path string
}

// Order is what is to be done to one container. Doing it again is no harm.
type Order struct {
	Action    Action
	Container monitor.Container
	PID       int // one of its processes, with its start time
	StartTime uint64
	Finding   Finding // the reason
}

// Findings is what follows from one look.
type Findings struct {
	List        []Finding // in force, in a fixed order
	Begun, Over []Finding
	Orders      []Order
	// UnaccountedBytes is how much memory of each GPU is held that no book has, whether reported or not.
	UnaccountedBytes map[string]uint64
	// TakenBytes is the part of it of containers that were reported for it. There is so much less to give to others.
	TakenBytes map[string]uint64
}

// State is what has to be remembered between looks. The zero value is the start. It is a value: Judge makes a new
// one. Its size is bounded by the number of processes.
type State struct {
	suspects map[findingID]suspect
	strays   map[identity]time.Duration // since when a process was seen to use a GPU without a slot
}

// identity tells a process from others, also from one that had its pid before.
type identity struct {
	pid   int
	start uint64
}

// suspect is a finding with its times.
type suspect struct {
	finding Finding
	since   time.Duration
	last    time.Duration // when it was last seen
	said    bool
}

// Times of the witness. Looks are two seconds apart; all of it is said within ten.
const (
	strayFor   = 2 * time.Second // a process that has no slot yet may be about to take one
	suspectFor = 3 * time.Second // one look proves nothing: between two reads a book or a process may have changed
	hoppingFor = 7 * time.Second // where it is another process each time
	overuseFor = 5 * time.Second // use of time follows a rate that fell with a delay
	changedFor = 2 * time.Second // a file is there or not
	calmFor    = 5 * time.Second // what is not seen for so long is over
)

// Judge judges one look. shares are the verdicts of the last round of steering; nil: there are none.
func Judge(seen *monitor.Outside, shares []steering.Verdict, policy Policy, state State) (Findings, State) {
	look := newLook(seen, shares, policy, state)
	found := look.judge()
	next := State{suspects: map[findingID]suspect{}, strays: look.strays}
	var result Findings
	for _, finding := range found {
		id := finding.id()
		if _, twice := next.suspects[id]; twice {
			continue
		}
		now, before := suspect{since: seen.Now}, state.suspects[id]
		if before.last > 0 && before.last <= seen.Now {
			now = before
		}
		finding.Since = now.since
		now.finding, now.last = finding, max(seen.Now, 1)
		if !now.said && seen.Now-now.since >= finding.settle {
			now.said = true
			result.Begun = append(result.Begun, finding)
		}
		next.suspects[id] = now
	}
	for id, before := range state.suspects {
		if _, still := next.suspects[id]; still || !before.said {
			continue
		}
		if look.known(id.kind) && seen.Now-before.last >= calmFor {
			result.Over = append(result.Over, before.finding)
			continue
		}
		if !look.known(id.kind) { // nothing was learnt
			before.last = max(seen.Now, 1)
		}
		next.suspects[id] = before
	}
	for _, suspect := range next.suspects {
		if suspect.said {
			result.List = append(result.List, suspect.finding)
		}
	}
	for _, list := range [][]Finding{result.List, result.Begun, result.Over} {
		slices.SortFunc(list, compareFindings)
	}
	result.take(look.unaccounted())
	result.Orders = orders(result.List, next.suspects, seen.Now, policy)
	return result, next
}

func compareFindings(a, b Finding) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod), strings.Compare(place(a.container, a.Key), place(b.container, b.Key)),
		strings.Compare(string(a.Kind), string(b.Kind)), strings.Compare(a.GPUUUID, b.GPUUUID), strings.Compare(a.Path, b.Path))
}

// orders says what is to be done, once for each container: about what is seen now, is certain, and is a container's.
func orders(list []Finding, suspects map[findingID]suspect, now time.Duration, policy Policy) []Order {
	if policy.Action != Freeze && policy.Action != Kill {
		return nil
	}
	chosen := map[string]Order{}
	for _, finding := range list {
		where := place(finding.container, finding.Key)
		if _, twice := chosen[where]; twice || !finding.certain || finding.container.ID == "" || finding.PID == 0 ||
			suspects[finding.id()].last != max(now, 1) {
			continue
		}
		chosen[where] = Order{Action: policy.Action, Container: finding.container, PID: finding.PID, StartTime: finding.start, Finding: finding}
	}
	var all []Order
	for _, where := range slices.Sorted(maps.Keys(chosen)) {
		all = append(all, chosen[where])
	}
	return all
}
