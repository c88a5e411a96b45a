// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"slices"
	"time"

	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// How libvgpu goes about its launches: what its marks.c and its launch gate do with the core.
const (
	marksMost      = 64                     // launches of a process that are measured at the same time
	marksLookAt    = 8                      // pairs that one look asks for,
	marksNotReady  = 2                      // and after so many that are not done, it stops
	pieceMost      = 100 * time.Millisecond // of a wait: then the shared words are renewed
	busyFirst      = 20 * time.Microsecond  // pauses while the first launch of a kind is under way
	busyMost       = time.Millisecond
	busyPatience   = 3 * time.Second        // and this is how long one waits for it
	patience       = 10 * time.Second       // a launch is kept waiting no longer
	collectiveDebt = 200 * time.Millisecond // collectives are kept waiting from here on
	queryTime      = 500 * time.Nanosecond
)

// ours holds a process to its share with the shipped limiter: one pacer a card, and what libvgpu adds.
type ours struct {
	process *process
	book    *limiter.Book
	pacers  []*limiter.Pacer
	changed []*signal // by card: a new rate is in force
	pairs   []pair    // launches that are being measured
}

// pair is the two marks around a launch.
type pair struct {
	begin, end *mark
	ticket     limiter.Ticket
	card       int
}

func (o *ours) launch(t *thread, c *caller, card, stream int, l launch) {
	x := o.process.contexts[card]
	ticket := limiter.Ticket{Blind: len(o.pairs) >= marksMost}
	collective := l.path == scene.Collective
	if !o.wait(t, card, l, &ticket, o.patience(t, c, card, collective)) {
		return
	}
	c.grouped, c.card = collective, card
	if !ticket.Sample {
		t.submit(x, stream, l)
		return
	}
	o.harvest(t, false)
	p := pair{begin: &mark{}, end: &mark{}, ticket: ticket, card: card}
	t.spend(markTime)
	t.enqueue(x, stream, item{mark: p.begin})
	t.submit(x, stream, l)
	t.spend(markTime)
	t.enqueue(x, stream, item{mark: p.end})
	o.pairs = append(o.pairs, p)
}

// patience is how long the launch may be kept waiting: a collective not at all, unless the debt is high and this is the
// first one of its group.
func (o *ours) patience(t *thread, c *caller, card int, collective bool) time.Duration {
	if !collective {
		return limiter.PatienceMax
	}
	within := c.grouped && card != c.card
	if within || o.pacers[card].Debt(clock(t.world.now)) < collectiveDebt {
		return 0
	}
	return limiter.PatienceMax
}

// wait asks until the launch may go. False: the process was killed meanwhile.
func (o *ours) wait(t *thread, card int, l launch, ticket *limiter.Ticket, longest time.Duration) bool {
	pacer, began, told, pause := o.pacers[card], t.world.now, t.world.now, busyFirst
	waiting := false
	for {
		now := t.world.now
		ticket.Blind = ticket.Blind || now-began > busyPatience
		wait := pacer.Ask(l.function, l.blocks, l.threads, clock(now), now-began, longest, ticket)
		if wait == 0 {
			break
		}
		if ticket.Busy {
			t.until(now + pause + t.world.late())
			pause = min(2*pause, busyMost)
		} else {
			if !waiting {
				waiting, told = true, now
			}
			pacer.Waiting(clock(now), clock(now+wait), now-told)
			told = now
			t.wait(o.changed[card], now+min(wait, pieceMost)+t.world.late())
		}
		if o.process.dead {
			return false
		}
		o.harvest(t, true)
	}
	if waiting {
		pacer.Waited(clock(t.world.now), t.world.now-told)
	}
	o.process.tenant.longest = max(o.process.tenant.longest, t.world.now-began)
	return true
}

// harvest looks at launches that are being measured, at all or at a few, and lets the costs of those that are done be
// learnt.
func (o *ours) harvest(t *thread, all bool) {
	asked, notReady := 0, 0
	for range len(o.pairs) {
		if len(o.pairs) == 0 || (!all && (asked >= marksLookAt || notReady >= marksNotReady)) {
			return
		}
		p := o.pairs[0] // taken out while it is looked at: other threads look, too
		o.pairs = slices.Delete(o.pairs, 0, 1)
		asked++
		t.spend(queryTime)
		if !o.process.contexts[p.card].query(p.end) {
			notReady++
			o.pairs = append(o.pairs, p)
			continue
		}
		elapsed := time.Duration(float64(p.end.at-p.begin.at) * o.process.tenant.factor)
		o.pacers[p.card].Measured(&p.ticket, elapsed, clock(t.world.now))
	}
}

// open opens the process's view of its tenant's pages.
func (o *ours) open(dir string) (err error) {
	if o.book, err = limiter.OpenBook(dir); err != nil {
		return err
	}
	for card := range o.process.contexts {
		p := limiter.NewPacer(o.book, card)
		p.SetCollective(collectiveFunction)
		o.pacers = append(o.pacers, p)
	}
	return nil
}

func (o *ours) close() error {
	for _, p := range o.pacers {
		p.Close()
	}
	if o.book == nil {
		return nil
	}
	return o.book.Close()
}
