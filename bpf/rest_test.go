// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What is called too often rests, see rest.go.

package bpf

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

// TestBusyFilesRest: where copies stay over the cap their probes are taken out, so that nothing is seen of them, not even
// that they are missed; rare calls are counted as before; and after the rest all are.
func TestBusyFilesRest(t *testing.T) {
	library := hostCopy(t)
	for _, mechanism := range []Mechanism{MechanismSession, MechanismMulti} {
		t.Run(string(mechanism), func(t *testing.T) {
			p := openProbes(t, Options{Cap: 200, Mechanism: mechanism, restFor: 6 * time.Second})
			g := newGroup(t, p.Status().Numbering)
			c := startCaller(t, cards(t), "")
			g.add(t, c.Pid)
			c.do("load %s", library)
			id := awaitProbed(t, p, c.Pid)
			c.do("begin")
			if rests(p, id) {
				t.Fatalf("at rest at once: %+v", p.Status())
			}
			eventually(t, "the file rests", func() bool { c.do("htod 2000 8"); return rests(p, id) })
			if s := p.Status(); s.Mode != ModeSampled || s.Resting < 1 || !strings.Contains(s.Reason, "not counted for a while") {
				t.Errorf("mode %s because %q", s.Mode, s.Reason)
			}
			time.Sleep(burst + burst/4) // until the bucket has room for calls that are rare
			before := counted(t, p, g.id)
			c.do("sync 2000")
			c.do("htod 50 8")
			c.do("alloc 20 4096")
			after := counted(t, p, g.id)
			if !rests(p, id) {
				t.Fatal("the rest was over before the test was")
			}
			if n := after.HostToDevice.Calls + after.Stalls.Calls + after.Missed - before.HostToDevice.Calls - before.Stalls.Calls - before.Missed; n != 0 {
				t.Errorf("%d copies and waits were seen at rest", n)
			}
			if n := after.Allocations.Calls - before.Allocations.Calls; n != 20 {
				t.Errorf("%d allocations counted at rest, want 20", n)
			}
			eventually(t, "the rest ends", func() bool { return !rests(p, id) })
			c.do("htod 7 8")
			if n := counted(t, p, g.id).HostToDevice.Calls - after.HostToDevice.Calls; n != 7 {
				t.Errorf("%d copies counted after the rest, want 7", n)
			}
		})
	}
}

// TestRests: how long a file rests by its load.
func TestRests(t *testing.T) {
	now, over := time.Unix(1e9, 0), uint64(0)
	var r rest
	// go on for so long, busy or not, and return for how long probes were in until they were taken out; 0: never.
	run := func(length time.Duration, busy bool) (in time.Duration) {
		for end := now.Add(length); now.Before(end); now = now.Add(restEvery) {
			if busy && r.until.IsZero() {
				over += 100
			}
			if in += restEvery; !r.look(over, now, restFirst) {
				return in
			}
		}
		return 0
	}
	rested := func() time.Duration {
		start := now
		for !r.look(over, now, restFirst) {
			now = now.Add(restEvery)
		}
		return now.Sub(start)
	}
	if in := run(time.Hour, false); in != 0 {
		t.Fatalf("an idle file rests after %v", in)
	}
	if in := run((restAfter-1)*restEvery, true); in != 0 || run(time.Minute, false) != 0 {
		t.Fatal("a short burst makes it rest")
	}
	for want := restFirst; want < 3*restMost; want *= 2 {
		if in := run(time.Hour, true); in != restAfter*restEvery {
			t.Fatalf("probes of a busy file were in for %v", in)
		}
		if got := rested(); got != min(want, restMost) {
			t.Errorf("rested for %v, want %v", got, min(want, restMost))
		}
	}
	if in := run(3*restMost, false); in != 0 {
		t.Fatal("it rests though it is idle")
	}
	if run(time.Hour, true); rested() != restFirst {
		t.Error("it is remembered for ever")
	}
}

// TestChangedFileIsNotProbedAsItWas: a library that is written over while it rests has its functions elsewhere, if any.
func TestChangedFileIsNotProbedAsItWas(t *testing.T) {
	library := hostCopy(t)
	p := openProbes(t, Options{Cap: 200, restFor: 2 * time.Second})
	c := startCaller(t, cards(t), "")
	c.do("load %s", library)
	id := awaitProbed(t, p, c.Pid)
	c.do("begin")
	eventually(t, "the file rests", func() bool { c.do("htod 2000 8"); return rests(p, id) })
	info, err := os.Stat(library)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(library, os.O_WRONLY, 0) // not truncated: the program has it mapped
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(bytes.Repeat([]byte{0x90}, int(info.Size()))); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Process.Kill(); err != nil { // its code is gone
		t.Fatal(err)
	}
	eventually(t, "the rest ends", func() bool { return !rests(p, id) })
	if isProbed(p, id) || len(probedBy(p, c.Pid)) != 0 {
		t.Error("it is probed where the old file's functions were")
	}
}
