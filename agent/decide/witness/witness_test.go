// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package witness

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/monitor"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// outsideScene is a node as it is seen from outside. One allocation, "k1" of pod default/one, has 8 GiB of GPU-a and a process.
type outsideScene struct{ *monitor.Outside }

func newOutsideScene() outsideScene {
	s := outsideScene{&monitor.Outside{Calls: map[uint64]monitor.Calls{}, MemoryKnown: true, ProcessesKnown: true,
		AllocationsKnown: true, CallsKnown: true}}
	s.allocate("k1", "one", 8*gib, 2*gib)
	s.run(10, "one", "k1").uses(2*gib + 400*mib).Registered = true
	return s
}

// allocate adds an allocation with so much of GPU-a, and by its book in use.
func (s outsideScene) allocate(key, pod string, limit, book uint64) *monitor.OutsideAllocation {
	s.Allocations = append(s.Allocations, monitor.OutsideAllocation{Key: key, Known: true, Registers: true,
		Owner: monitor.Owner{PodUID: "uid-" + pod, Namespace: "default", Pod: pod, Container: "main"},
		GPUs:  []monitor.OutsideShare{{UUID: "GPU-a", LimitBytes: limit, BookBytes: book}}})
	return &s.Allocations[len(s.Allocations)-1]
}

type outsideUser struct{ *monitor.OutsideProcess }

// run adds a process to the container "main" of a pod; "": to the host.
func (s outsideScene) run(pid int, pod string, keys ...string) outsideUser {
	container := monitor.Container{}
	if pod != "" {
		container = monitor.Container{ID: "container-" + pod, PodUID: "uid-" + pod, CgroupID: uint64(pid), Namespace: "default", Pod: pod}
	}
	s.Processes = append(s.Processes, monitor.OutsideProcess{Residence: monitor.Residence{PID: pid, StartTime: 7, Command: "/bin/program",
		Container: container, Keys: keys, Library: true}})
	return outsideUser{&s.Processes[len(s.Processes)-1]}
}

func (p outsideUser) uses(bytes uint64) outsideUser {
	p.Memory = append(p.Memory, monitor.ProcessMemory{GPUUUID: "GPU-a", PID: p.PID, UsedBytes: bytes})
	return p
}

// witnessRun looks at scenes every two seconds.
type witnessRun struct {
	t      *testing.T
	policy Policy
	state  State
	now    time.Duration
	shares []steering.Verdict
	last   Findings
	begun  []string // what was reported, and when
	over   []string
}

func newWitnessRun(t *testing.T) *witnessRun {
	return &witnessRun{t: t, policy: DefaultPolicy(), now: time.Hour}
}

func (w *witnessRun) look(s outsideScene, looks int) *witnessRun {
	w.t.Helper()
	for range looks {
		w.now += 2 * time.Second
		s.Now = w.now
		before := fmt.Sprintf("%+v", w.state)
		previous := w.state
		w.last, w.state = Judge(s.Outside, w.shares, w.policy, w.state)
		if fmt.Sprintf("%+v", previous) != before {
			w.t.Fatal("Judge changed the state it was given")
		}
		name := func(f Finding) string {
			return fmt.Sprintf("%s %s/%s %s pid=%d", f.Kind, f.Namespace, f.Pod, f.Key, f.PID)
		}
		for _, finding := range w.last.Begun {
			w.begun = append(w.begun, name(finding))
		}
		for _, finding := range w.last.Over {
			w.over = append(w.over, name(finding))
		}
	}
	return w
}

// want checks all that has been reported so far.
func (w *witnessRun) want(reported ...string) *witnessRun {
	w.t.Helper()
	slices.Sort(w.begun)
	slices.Sort(reported)
	if !slices.Equal(w.begun, reported) {
		w.t.Fatalf("reported %q, want %q", w.begun, reported)
	}
	return w
}

// tenSeconds is how many looks there are until all must have been said: one may have been just before it began.
const tenSeconds = 4

func TestWitnessReportsWithinTenSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s outsideScene, w *witnessRun)
		want   []string
		bytes  uint64 // unaccounted
	}{
		"static program in the container": {func(s outsideScene, _ *witnessRun) { s.run(66, "one", "k1").uses(8 * gib) },
			[]string{"no-slot default/one k1 pid=66", "memory-beyond-book default/one k1 pid=66"}, 8*gib + 400*mib},
		"a large one behind many small ones": {func(s outsideScene, _ *witnessRun) {
			for i := range 40 {
				s.run(100+i, "one", "k1").uses(10 * mib).Registered = true
			}
			s.Processes[0].Memory[0].UsedBytes = 12 * gib
		}, []string{"memory-beyond-book default/one k1 pid=10"}, 10*gib + 400*mib},
		"an overhead without bounds hides the small ones alone": {func(s outsideScene, w *witnessRun) {
			w.policy.OverheadBytes = 1 << 63
			s.run(66, "one", "k1").uses(8 * gib)
		}, []string{"no-slot default/one k1 pid=66"}, 0},
		"a small one": {func(s outsideScene, _ *witnessRun) { s.run(66, "one", "k1").uses(100 * mib) },
			[]string{"no-slot default/one k1 pid=66"}, 0},
		"one that the driver lists without memory": {func(s outsideScene, _ *witnessRun) { s.run(66, "one", "k1").uses(0) },
			[]string{"no-slot default/one k1 pid=66"}, 0},
		"its pages are not mounted, in a pod with one allocation": {func(s outsideScene, _ *witnessRun) { s.run(66, "one").uses(100 * mib) },
			[]string{"no-slot default/one k1 pid=66"}, 0},
		"a device node without a library": {func(s outsideScene, _ *witnessRun) {
			p := s.run(66, "one", "k1")
			p.Devices, p.Library = true, false
		}, []string{"no-slot default/one k1 pid=66"}, 0},
		"calls are counted where nobody ever registered": {func(s outsideScene, _ *witnessRun) {
			s.allocate("k2", "two", gib, 0).Registers = false
			s.run(77, "two", "k2")
			s.Calls[77] = monitor.Calls{CgroupID: 77, Contexts: 1}
		}, []string{"no-slot default/two k2 pid=77"}, 0},
		"more than its book": {func(s outsideScene, _ *witnessRun) { s.Processes[0].Memory[0].UsedBytes = 5 * gib },
			[]string{"memory-beyond-book default/one k1 pid=10"}, 3 * gib},
		"a forged book": {func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Memory[0].UsedBytes = 12 * gib
			s.Allocations[0].GPUs[0].BookBytes = 1 << 50
		}, []string{"memory-beyond-book default/one k1 pid=10"}, 4 * gib},
		"a page that cannot be read": {func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Memory[0].UsedBytes = 12 * gib
			s.Processes[0].Registered, s.Allocations[0].Known = false, false
		}, []string{"memory-beyond-book default/one k1 pid=10"}, 4 * gib},
		"a replaced file": {func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Replaced = []monitor.Replaced{{Path: "/etc/ld.so.preload", Reason: "a config map"}}
		}, []string{"replaced-file default/one k1 pid=10"}, 0},
		"two replaced files": {func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Replaced = []monitor.Replaced{{Path: "/etc/ld.so.preload"}, {Path: "/x/limits"}}
		}, []string{"replaced-file default/one k1 pid=10", "replaced-file default/one k1 pid=10"}, 0},
		"a container that was given nothing": {func(s outsideScene, _ *witnessRun) { s.run(88, "none").uses(3 * gib) },
			[]string{"no-allocation default/none  pid=88"}, 3 * gib},
		"one that calls itself a server of MPS": {func(s outsideScene, _ *witnessRun) { s.run(88, "none").uses(gib).Command = "nvidia-cuda-mps-server" },
			[]string{"no-allocation default/none  pid=88"}, 0},
		"on the host, with pages of ours": {func(s outsideScene, _ *witnessRun) { s.run(99, "", "k1").uses(100 * mib) },
			[]string{"no-slot default/one k1 pid=99"}, 0},
		"more time than granted, by far": {func(_ outsideScene, w *witnessRun) {
			w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.9, UsedKnown: true}}
		}, []string{"time-beyond-grant default/one k1 pid=10"}, 0},
		"more time than granted for long": {func(_ outsideScene, w *witnessRun) {
			w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.35, UsedKnown: true, OverShare: true, Reason: "used more"}}
		}, []string{"time-beyond-grant default/one k1 pid=10"}, 0},
		"forged charges": {func(_ outsideScene, w *witnessRun) {
			w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.3, UsedKnown: true, Distrusted: true}}
		}, []string{"time-beyond-grant default/one k1 pid=10"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWitnessRun(t).look(newOutsideScene(), 2).want()
			s := newOutsideScene()
			c.change(s, w)
			w.look(s, tenSeconds).want(c.want...)
			if len(w.last.List) != len(c.want) || w.last.List[0].Detail == "" || w.last.List[0].Since >= w.now || w.last.Orders != nil {
				t.Errorf("%+v", w.last)
			}
			if c.bytes > 0 && w.last.UnaccountedBytes["GPU-a"] != c.bytes {
				t.Errorf("%d bytes unaccounted, want %d", w.last.UnaccountedBytes["GPU-a"], c.bytes)
			}
			if taken := w.last.TakenBytes["GPU-a"]; taken != c.bytes {
				t.Errorf("%d bytes taken, want %d", taken, c.bytes)
			}
			// It is said once, lasts, and its end is said once.
			w.look(s, 20).want(c.want...)
			if w.shares = nil; strings.HasPrefix(c.want[0], "time") {
				w.shares = []steering.Verdict{}
			}
			w.look(newOutsideScene(), 2*tenSeconds)
			if slices.Sort(w.over); !slices.Equal(w.over, w.begun) || len(w.last.List) != 0 {
				t.Errorf("over %q, begun %q", w.over, w.begun)
			}
		})
	}
}

func TestWitnessKeepsStillAboutHonestOnes(t *testing.T) {
	for name, change := range map[string]func(s outsideScene, w *witnessRun){
		"nothing":                      func(outsideScene, *witnessRun) {},
		"a process that has not begun": func(s outsideScene, _ *witnessRun) { s.run(11, "one", "k1") },
		"one that only watches":        func(s outsideScene, _ *witnessRun) { s.run(11, "one", "k1").Devices = true },
		"a debugging container":        func(s outsideScene, _ *witnessRun) { s.run(11, "debug").Devices = true },
		"the host's own":               func(s outsideScene, _ *witnessRun) { s.run(11, "").uses(4 * gib) },
		"what the driver needs itself": func(s outsideScene, _ *witnessRun) { s.Processes[0].Memory[0].UsedBytes = 3 * gib },
		"the node's own tools":         func(s outsideScene, _ *witnessRun) { s.run(11, "tool").uses(gib).Container.Namespace = "kube-system" },
		"a full book": func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Memory[0].UsedBytes, s.Allocations[0].GPUs[0].BookBytes = 9*gib, 8*gib
		},
		"just above its rate": func(_ outsideScene, w *witnessRun) {
			w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.45, UsedKnown: true}}
		},
		"use that is not known": func(_ outsideScene, w *witnessRun) {
			w.shares = []steering.Verdict{{Key: "k1", GPUUUID: "GPU-a", Rate: 0.3, Used: 0.9}}
		},
		"calls by one who has registered": func(s outsideScene, _ *witnessRun) { s.Calls[10] = monitor.Calls{CgroupID: 10, Contexts: 5} },
		"calls by one that has ended, and whose slot was taken back": func(s outsideScene, _ *witnessRun) {
			s.allocate("k2", "two", gib, 0)
			s.run(77, "two", "k2")
			s.Calls[77] = monitor.Calls{CgroupID: 77, Contexts: 1}
		},
		"memory that comes and goes while one looks": func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Memory[0].UsedBytes, s.Allocations[0].GPUs[0].Moved = 7*gib, true
		},
		"many that have a context and nothing else": func(s outsideScene, _ *witnessRun) {
			for i := range 40 {
				s.run(100+i, "one", "k1").uses(600 * mib).Registered = true
			}
		},
		"a sidecar in the pid namespace of the pod": func(s outsideScene, _ *witnessRun) { s.run(11, "one").Container.ID = "container-side" },
		"an init container beside the next one of its pod": func(s outsideScene, _ *witnessRun) {
			s.allocate("k0", "one", gib, gib)
			first := s.run(9, "one", "k0").uses(gib)
			first.Container.ID, first.Registered = "container-init", true
		},
		"the server of MPS of the host": func(s outsideScene, _ *witnessRun) { s.run(11, "").uses(gib).Command = "nvidia-cuda-mps-server" },
		"neighbours show that the driver needs more": func(s outsideScene, _ *witnessRun) {
			for i := range 3 {
				key := fmt.Sprintf("n%d", i)
				s.allocate(key, key, 8*gib, gib)
				s.run(20+i, key, key).uses(gib + 1600*mib).Registered = true
			}
			s.Processes[0].Memory[0].UsedBytes = 2*gib + 1500*mib
		},
		"a page that cannot be read": func(s outsideScene, _ *witnessRun) {
			s.Processes[0].Registered, s.Allocations[0].Known = false, false
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newWitnessRun(t), newOutsideScene()
			change(s, w)
			w.look(s, 50).want()
		})
	}
}

// Processes that come and go between two reads are seen in one look at most.
func TestWitnessWaitsForASecondLook(t *testing.T) {
	w := newWitnessRun(t)
	for i := range 50 {
		s := newOutsideScene()
		if i%2 == 0 {
			s.run(1000+i, "one", "k1").uses(gib / 2)
			s.Processes[0].Memory[0].UsedBytes = 7 * gib
			s.run(2000+i, "none").uses(gib)
		}
		w.look(s, 1)
	}
	w.want()
}

// One that is another process at each look is caught all the same.
func TestWitnessCatchesWhoHops(t *testing.T) {
	w := newWitnessRun(t)
	for i := range 6 {
		s := newOutsideScene()
		s.run(1000+i, "one", "k1").uses(gib / 2)
		w.look(s, 1)
	}
	if len(w.begun) != 1 {
		t.Error(w.begun)
	}
	// The same pid is not the same process.
	w = newWitnessRun(t)
	for i := range 3 {
		s := newOutsideScene()
		s.run(1000, "one", "k1").uses(gib / 2).StartTime = uint64(100 + i)
		w.look(s, 1)
	}
	w.want()
}

// What cannot be read neither begins nor ends anything.
func TestWitnessWithoutSources(t *testing.T) {
	bad := newOutsideScene()
	bad.run(66, "one", "k1").uses(8 * gib)
	for name, blind := range map[string]func(s outsideScene){
		"memory":      func(s outsideScene) { s.MemoryKnown, s.Processes = false, nil },
		"processes":   func(s outsideScene) { s.ProcessesKnown, s.Processes = false, nil },
		"allocations": func(s outsideScene) { s.AllocationsKnown, s.Allocations = false, nil },
	} {
		t.Run(name, func(t *testing.T) {
			unseen := newOutsideScene()
			unseen.run(66, "one", "k1").uses(8 * gib)
			blind(unseen)
			w := newWitnessRun(t).look(unseen, 20).want().look(bad, tenSeconds)
			if len(w.last.List) != 2 {
				t.Fatalf("%+v", w.last.List)
			}
			if w.look(unseen, 100); len(w.last.List) != 2 || w.over != nil || len(w.last.UnaccountedBytes) != 0 {
				t.Errorf("%+v, over %v", w.last.List, w.over)
			}
			if w.look(newOutsideScene(), tenSeconds); len(w.last.List) != 0 || len(w.over) != 2 {
				t.Errorf("%+v, over %v", w.last.List, w.over)
			}
		})
	}
}

// What is remembered is bounded by what is there.
func TestWitnessStateIsBounded(t *testing.T) {
	w := newWitnessRun(t)
	for i := range 200 {
		s := newOutsideScene()
		s.run(1000+i, fmt.Sprintf("pod-%d", i)).uses(gib)
		s.run(5000+i, "one", "k1").uses(gib)
		w.look(s, 1)
	}
	if len(w.state.suspects) > 10 || len(w.state.strays) > 10 {
		t.Errorf("%d suspects, %d strays", len(w.state.suspects), len(w.state.strays))
	}
}
