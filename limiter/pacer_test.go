// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The shim's pacing, driven in virtual time.

package limiter_test

import (
	"testing"
	"time"

	"github.com/vgpud/vgpud/limiter"
)

// flood is a process that always has a next kernel to launch, one at a time, on a GPU that runs them at once.
type flood struct {
	pacer             *limiter.Pacer
	kernel            time.Duration
	at, began, told   time.Duration // when it acts next; since when it waits; when it last said so
	used, longestWait time.Duration
	ticket            limiter.Ticket
}

func (f *flood) step(now time.Duration) {
	waited := time.Duration(0)
	if f.began != 0 {
		waited = now - f.began
	}
	if wait := f.pacer.Ask(1, 100, 256, now, waited, limiter.PatienceMax, &f.ticket); wait != 0 {
		if f.began == 0 {
			f.began, f.told = now, now
		}
		if !f.ticket.Busy {
			f.pacer.Waiting(now, now+wait, now-f.told)
			f.told = now
		}
		f.at = now + min(wait, 100*time.Millisecond)
		return
	}
	if f.began != 0 {
		f.pacer.Waited(now, now-f.told)
		f.longestWait, f.began = max(f.longestWait, waited), 0
	}
	if f.ticket.Sample {
		f.pacer.Measured(&f.ticket, f.kernel, now+f.kernel)
	}
	f.used += f.kernel
	f.at = now + 2*time.Microsecond
	f.ticket = limiter.Ticket{}
}

// TestPacer: two processes of a container with kernels of 20 ms and 0.2 ms get half of the share each.
func TestPacer(t *testing.T) {
	dir := newComputePages(t, hard(400000))
	start := limiter.MonotonicNow()
	floods := []*flood{
		{pacer: newPacer(t, dir), kernel: 20 * time.Millisecond, at: start},
		{pacer: newPacer(t, dir), kernel: 200 * time.Microsecond, at: start},
	}
	for {
		next := floods[0]
		if floods[1].at < next.at {
			next = floods[1]
		}
		if next.at > start+20*time.Second {
			break
		}
		next.step(next.at)
	}
	for _, f := range floods {
		f.pacer.Flush(start)
		if off := f.used - 4*time.Second; off.Abs() > 100*time.Millisecond {
			t.Errorf("kernels of %v used %v in 20s at 0.4, want 4s", f.kernel, f.used)
		}
		if f.longestWait > time.Second {
			t.Errorf("kernels of %v waited up to %v", f.kernel, f.longestWait)
		}
	}
	u := readUsage(t, dir)
	if got := u.Devices[0].Compute; len(u.Processes) != 2 || got.Launches < 20000 || got.Throttled < 30*time.Second {
		t.Errorf("%d processes, %+v", len(u.Processes), got)
	}
}

// TestPacerRefused: what the driver refuses is not paid for; what cannot be measured is paid for by guess; a cap of the
// process holds beside the share.
func TestPacerRefused(t *testing.T) {
	dir := newComputePages(t, hard(500000))
	p, now := newPacer(t, dir), limiter.MonotonicNow()+time.Second
	var first limiter.Ticket
	if wait := p.Ask(7, 1, 1, now, 0, limiter.PatienceMax, &first); wait != 0 || !first.Sample || first.Charged != time.Millisecond {
		t.Fatalf("first launch: wait %v, %+v", wait, first)
	}
	var second limiter.Ticket
	if wait := p.Ask(7, 1, 1, now, 0, limiter.PatienceMax, &second); wait == 0 || !second.Busy {
		t.Errorf("second launch: wait %v, %+v, want it to wait for the first", wait, second)
	}
	p.Refused(&first)
	if wait := p.Ask(7, 1, 1, now, 0, limiter.PatienceMax, &second); wait != 0 || !second.Sample {
		t.Errorf("second launch: wait %v, %+v", wait, second)
	}
	p.Measured(&second, 500*time.Millisecond, now+500*time.Millisecond)
	debt := p.Debt(now)
	var third limiter.Ticket
	if wait := p.Ask(7, 1, 1, now, 0, 0, &third); wait != 0 || third.Charged != 500*time.Millisecond {
		t.Errorf("third launch: wait %v, %+v", wait, third)
	}
	p.Refused(&third)
	if got := p.Debt(now); (got-debt).Abs() > time.Millisecond || debt < 480*time.Millisecond {
		t.Errorf("debt %v after a refused launch, %v before", got, debt)
	}
	debt = p.Debt(now)
	var unmeasured limiter.Ticket
	p.Ask(8, 1, 1, now, 0, 0, &unmeasured)
	p.Unmeasured(&unmeasured)
	if got := p.Debt(now); got != debt+unmeasured.Charged || unmeasured.Charged < 100*time.Millisecond {
		t.Errorf("debt %v after a launch that was not measured, want %v and %v", got, debt, unmeasured.Charged)
	}
	capped := limiter.NewCappedPacer(openBook(t, newComputePages(t, limiter.Compute{})), 0, 100000)
	defer capped.Close()
	if got := use(capped, now); got != 3*time.Millisecond {
		t.Errorf("%v used at once by a process capped to a tenth, want 2ms and one kernel", got)
	}
}

// TestPacerCollective: a collective does not pay for waiting for its peers, or little, in a program that does something
// else, too.
func TestPacerCollective(t *testing.T) {
	p, now := newPacer(t, newComputePages(t, hard(400000))), limiter.MonotonicNow()+time.Second
	p.SetCollective(7)
	for range 5 {
		var kernel limiter.Ticket
		if wait := p.Ask(8, 1, 1, now, 0, 0, &kernel); wait != 0 {
			t.Fatalf("wait %v, %+v", wait, kernel)
		}
		if kernel.Sample {
			p.Measured(&kernel, 20*time.Millisecond, now+20*time.Millisecond)
		}
		var ticket limiter.Ticket
		if wait := p.Ask(7, 1, 1, now, 0, 0, &ticket); wait != 0 || !ticket.Sample {
			t.Fatalf("wait %v, %+v", wait, ticket)
		}
		p.Measured(&ticket, time.Second, now+time.Second)
		now += 10 * time.Millisecond
	}
	if debt := p.Debt(now); debt < 200*time.Millisecond || debt > 600*time.Millisecond {
		t.Errorf("debt %v for 100 ms of kernels and five seconds of waiting, want that and a sixteenth", debt)
	}
	p.Doubt(7)
	only, now := newPacer(t, newComputePages(t, hard(400000))), limiter.MonotonicNow()+time.Second
	only.SetCollective(7)
	for range 5 {
		var ticket limiter.Ticket
		only.Ask(7, 1, 1, now, 0, 0, &ticket)
		only.Measured(&ticket, time.Second, now+time.Second)
	}
	if debt := only.Debt(now); debt < 4500*time.Millisecond {
		t.Errorf("debt %v for five seconds of nothing but collectives", debt)
	}
}
