// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests on real processes: what the kernel counted is what the programs did.

package bpf

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/internal/require"
)

// busy does a known amount of everything, and returns what is to be counted of it, but for times.
func busy(c *caller) Group {
	c.do("begin") // retains one context, allocates 1 MiB
	c.do("htod 7 1000")
	c.do("htod 2 1048576")
	c.do("async 5 4096")
	c.do("dtoh 11 333")
	c.do("dtod 3 512")
	c.do("any 4 100")
	c.do("rect 6 64 32")
	c.do("alloc 9 65537")
	c.do("refused 8")
	c.do("sync 13")
	return Group{
		HostToDevice: Count{Calls: 7 + 2 + 5 + 6, Bytes: 7*1000 + 2<<20 + 5*4096 + 6*64*32},
		DeviceToHost: Count{Calls: 11, Bytes: 11 * 333}, DeviceToDevice: Count{Calls: 3, Bytes: 3 * 512},
		UntoldCopies: Count{Calls: 4, Bytes: 400},
		Allocations:  Count{Calls: 10, Bytes: 1<<20 + 9*65537},
		Stalls:       Count{Calls: 13}, Retained: 1, Failed: 16,
	}
}

// withoutTimes clears what differs from run to run.
func withoutTimes(g Group) Group {
	for _, c := range []*Count{&g.HostToDevice, &g.DeviceToHost, &g.DeviceToDevice, &g.PeerToPeer, &g.UntoldCopies, &g.Stalls} {
		c.Time = 0
	}
	g.CgroupID = 0
	return g
}

func TestCountsAreTheProgramsOwn(t *testing.T) {
	sim := require.Sim(t)
	for _, row := range []struct {
		mechanism Mechanism
		numbering Numbering
	}{
		{MechanismSession, NumberingLegacy},
		{MechanismSession, NumberingUnified},
		{MechanismMulti, NumberingLegacy},
		{MechanismMulti, NumberingUnified},
		{MechanismSingle, NumberingLegacy},
	} {
		t.Run(string(row.mechanism)+" "+string(row.numbering), func(t *testing.T) {
			p := openProbes(t, Options{Mechanism: row.mechanism, Numbering: row.numbering})
			g := newGroup(t, row.numbering)
			c := startCaller(t, cards(t), "")
			g.add(t, c.Pid)
			c.do("load %s", filepath.Join(sim, "libcuda.so.1"))
			awaitProbed(t, p, c.Pid)
			want := busy(c)
			if row.mechanism == MechanismSingle {
				if mode := p.Status().Mode; mode != ModeSampled {
					t.Errorf("mode %s with single probes, want sampled", mode)
				}
				want = Group{Allocations: want.Allocations, Retained: want.Retained, Failed: 8}
			}
			got := counted(t, p, g.id)
			if diff := cmp.Diff(want, withoutTimes(got)); diff != "" {
				t.Errorf("counted otherwise than done (-done +counted):\n%s", diff)
			}
			if row.mechanism != MechanismSingle && (got.HostToDevice.Time <= 0 || got.Stalls.Time <= 0 || got.Stalls.Time > patience) {
				t.Errorf("times: copies %v, stalls %v", got.HostToDevice.Time, got.Stalls.Time)
			}
		})
	}
}

func TestEndedProcessesAreCounted(t *testing.T) {
	sim := require.Sim(t)
	p := openProbes(t, Options{})
	g := newGroup(t, p.Status().Numbering)
	c := startCaller(t, cards(t), "")
	g.add(t, c.Pid)
	c.do("load %s", filepath.Join(sim, "libcuda.so.1"))
	awaitProbed(t, p, c.Pid)
	c.do("begin")
	c.do("fork")
	c.do("fork")
	if got := counted(t, p, g.id).Exits; got != 2 {
		t.Errorf("%d ends of processes counted, want 2", got)
	}
	c.end()
	eventually(t, "the program's own end is counted", func() bool { return counted(t, p, g.id).Exits == 3 })
}

// TestRowsOfRemovedGroupsGo: the last counts of a group that is removed are told once more, and then no longer.
func TestRowsOfRemovedGroupsGo(t *testing.T) {
	sim := require.Sim(t)
	p := openProbes(t, Options{})
	g := newGroup(t, p.Status().Numbering)
	c := startCaller(t, cards(t), "")
	g.add(t, c.Pid)
	c.do("load %s", filepath.Join(sim, "libcuda.so.1"))
	awaitProbed(t, p, c.Pid)
	c.do("begin")
	c.do("htod 5 10")
	c.end()
	removeGroup(t, g.dir)
	last := counted(t, p, g.id)
	if !last.Gone || last.HostToDevice.Calls != 5 || last.Exits != 1 {
		t.Errorf("last row %+v, want 5 copies, one end, gone", last)
	}
	if again := counted(t, p, g.id); again != (Group{CgroupID: g.id}) {
		t.Errorf("row of a removed group again: %+v", again)
	}
}

func TestRateCap(t *testing.T) {
	sim := require.Sim(t)
	const perSecond = 200
	for _, mechanism := range []Mechanism{MechanismSession, MechanismMulti} {
		t.Run(string(mechanism), func(t *testing.T) {
			p := openProbes(t, Options{Cap: perSecond, Mechanism: mechanism})
			noisy, quiet := newGroup(t, p.Status().Numbering), newGroup(t, p.Status().Numbering)
			callers := map[group]*caller{}
			for _, g := range []group{noisy, quiet} {
				c := startCaller(t, cards(t), "")
				g.add(t, c.Pid)
				c.do("load %s", filepath.Join(sim, "libcuda.so.1"))
				callers[g] = c
				awaitProbed(t, p, c.Pid)
			}
			callers[quiet].do("begin")
			callers[noisy].do("begin")
			start := time.Now()
			const calls = 20000
			callers[noisy].do("htod %d 100", calls)
			took := time.Since(start)
			callers[quiet].do("htod 20 100")

			got := counted(t, p, noisy.id)
			most := uint64(perSecond*(took+burst)/time.Second) + 10
			if n := got.HostToDevice.Calls; n+got.Missed != calls || n > most || n < perSecond/2 {
				t.Errorf("%d counted (at most %d in %v), %d missed, of %d", n, most, took, got.Missed, calls)
			}
			if got.HostToDevice.Bytes != 100*got.HostToDevice.Calls {
				t.Errorf("%d bytes of %d calls", got.HostToDevice.Bytes, got.HostToDevice.Calls)
			}
			if got := counted(t, p, quiet.id); got.HostToDevice.Calls != 20 || got.Missed != 0 {
				t.Errorf("beside a noisy group: %+v", got)
			}
		})
	}
}

// TestModeFollowsTheCost: what a hit was measured to cost settles how much is probed, and how often calls are counted.
func TestModeFollowsTheCost(t *testing.T) {
	copying, waiting, allocating := function{class: hostToDevice}, function{class: stall}, function{class: allocation}
	for _, row := range []struct {
		name              string
		asked             Mode
		mechanism         Mechanism
		emulated, stepped time.Duration
		mode              Mode
		because           string
		accepted          []placed
		refused           []placed
	}{
		{"cheap everywhere", ModeAuto, MechanismSession, 700 * time.Nanosecond, 4 * time.Microsecond, ModeFull, "",
			[]placed{{function: copying}, {function: waiting, emulated: true}, {function: allocating}}, nil},
		{"single steps are dear", ModeAuto, MechanismSession, 700 * time.Nanosecond, 16 * time.Microsecond, ModeFull, "",
			[]placed{{function: copying, emulated: true}, {function: allocating}}, []placed{{function: copying}, {function: waiting}}},
		{"as dear as full may be", ModeAuto, MechanismSession, fullHitCost, rareHitCost, ModeFull, "",
			[]placed{{function: copying, emulated: true}, {function: allocating}}, []placed{{function: copying}}},
		{"dearer", ModeAuto, MechanismSession, fullHitCost + 1, rareHitCost + 1, ModeSampled, "only allocations",
			[]placed{{function: allocating, emulated: true}}, []placed{{function: copying, emulated: true}, {function: allocating}}},
		{"dearest", ModeAuto, MechanismSession, rareHitCost, time.Millisecond, ModeSampled, "only allocations", []placed{{function: allocating, emulated: true}}, nil},
		{"too dear", ModeAuto, MechanismSession, rareHitCost + 1, time.Millisecond, ModeOff, "a probed call costs", nil, nil},
		{"full is asked for", ModeFull, MechanismSession, time.Millisecond, time.Millisecond, ModeFull, "", []placed{{function: copying, emulated: true}}, nil},
		{"sampled is asked for", ModeSampled, MechanismSession, time.Nanosecond, time.Nanosecond, ModeSampled, "",
			[]placed{{function: allocating}}, []placed{{function: copying, emulated: true}}},
		{"single probes", ModeFull, MechanismSingle, time.Nanosecond, time.Nanosecond, ModeSampled, "uprobe.multi", []placed{{function: allocating}}, nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, c := &Probes{loaded: &loaded{mechanism: row.mechanism}}, cost{emulated: row.emulated, stepped: row.stepped}
			mode, reason := ModeOff, ""
			if err := p.choose(Options{Mode: row.asked, Proc: "/proc"}, c); err != nil {
				reason = err.Error()
			} else {
				mode, reason = p.status.Mode, strings.Join(p.reasons, "; ")
			}
			if mode != row.mode || !strings.Contains(reason, row.because) || (reason == "") != (row.because == "") {
				t.Errorf("mode %s because %q, want %s because %q", mode, reason, row.mode, row.because)
			}
			for _, f := range row.accepted {
				if !p.accept(c)(f) {
					t.Errorf("%+v is left out", f)
				}
			}
			for _, f := range row.refused {
				if p.accept(c)(f) {
					t.Errorf("%+v is probed", f)
				}
			}
		})
	}
}

// TestCapKeepsTheBudget: the calls that are counted take half a percent of a container's time at most, whatever one costs.
func TestCapKeepsTheBudget(t *testing.T) {
	for _, row := range []struct {
		hit       time.Duration
		perSecond int
	}{{300 * time.Nanosecond, 16666}, {time.Microsecond, 5000}, {7 * time.Microsecond, 714}, {15 * time.Microsecond, 333}, {50 * time.Microsecond, lowestCap}} {
		if got := capFor(row.hit); got != row.perSecond {
			t.Errorf("%v a hit: %d calls a second, want %d", row.hit, got, row.perSecond)
		}
	}
}
