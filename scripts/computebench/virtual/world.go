// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package virtual runs a scene in virtual time: a model of cards, of NVML and of the programs on top, with the shipped
// limiter (libvgpu/core through package limiter, on real pages) and the shipped steering (package steering) between them, or
// with a peer's law in their place. One run is one goroutine's work at a time and draws from one seed: it comes out the
// same each time.
package virtual

import (
	"container/heap"
	"iter"
	"math"
	"math/rand/v2"
	"time"
)

// never is later than anything.
const never = time.Duration(math.MaxInt64)

// wake is an entry of the world's calendar: the thread goes on at that time, if it still waits in the way that it did.
type wake struct {
	at     time.Duration
	serial uint64 // first come, first served
	thread *thread
	turn   uint64
}

type calendar []wake

func (c calendar) Len() int { return len(c) }
func (c calendar) Less(i, j int) bool {
	return c[i].at < c[j].at || (c[i].at == c[j].at && c[i].serial < c[j].serial)
}
func (c calendar) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

// Push and Pop are for container/heap.
func (c *calendar) Push(x any) {
	if w, ok := x.(wake); ok {
		*c = append(*c, w)
	}
}

// Pop takes the last entry.
func (c *calendar) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// world is one run: its time, its threads and its cards.
type world struct {
	now      time.Duration
	end      time.Duration
	calendar calendar
	serial   uint64
	cards    []*card
	threads  []*thread
	random   *rand.Rand
	meet     bool // some work is done by several cards together
}

func newWorld(end time.Duration, seed uint64) *world {
	return &world{end: end, random: rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))}
}

// thread is one thread of a program, or of the agent: a coroutine that gives way when time has to pass.
type thread struct {
	world *world
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	turn  uint64 // raised at each waking, so that an older entry of the calendar means nothing
}

// stopped unwinds a thread when the run is over.
type stopped struct{}

// spawn starts a thread at a time.
func (w *world) spawn(at time.Duration, body func(*thread)) {
	t := &thread{world: w}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			if r := recover(); r != nil && r != any(stopped{}) {
				panic(r)
			}
		}()
		t.yield = yield
		body(t)
	})
	w.threads = append(w.threads, t)
	w.wakeAt(at, t)
}

func (w *world) wakeAt(at time.Duration, t *thread) {
	w.serial++
	heap.Push(&w.calendar, wake{max(at, w.now), w.serial, t, t.turn})
}

// upcoming is when something happens next that somebody waits for.
func (w *world) upcoming() time.Duration {
	at := w.end
	for _, c := range w.cards { // first, since they may put wakings into the calendar
		at = min(at, c.upcoming())
	}
	if len(w.calendar) > 0 {
		at = min(at, w.calendar[0].at)
	}
	return at
}

// run lets time pass until the end, and ends all threads.
func (w *world) run() {
	for {
		at := w.upcoming()
		w.now = max(w.now, at)
		for _, c := range w.cards {
			c.advance(w.now)
		}
		if w.now >= w.end {
			break
		}
		for len(w.calendar) > 0 && w.calendar[0].at <= w.now {
			next, ok := heap.Pop(&w.calendar).(wake)
			if ok && next.turn == next.thread.turn {
				next.thread.turn++
				next.thread.next()
			}
		}
	}
	for _, t := range w.threads {
		t.stop()
	}
}

// pause gives way until something wakes the thread.
func (t *thread) pause() {
	if !t.yield(struct{}{}) {
		panic(stopped{})
	}
}

// until sleeps to a time.
func (t *thread) until(at time.Duration) {
	w := t.world
	if at <= w.now {
		return
	}
	if at < w.upcoming() { // nothing happens till then: no need to give way
		w.now = at
		return
	}
	w.wakeAt(at, t)
	t.pause()
}

// spend lets time pass in which the thread works.
func (t *thread) spend(d time.Duration) { t.until(t.world.now + d) }

// signal is what threads wait for.
type signal struct{ waiting []wake }

// wait waits for the signal, but not beyond a time.
func (t *thread) wait(s *signal, until time.Duration) {
	s.waiting = append(s.waiting, wake{thread: t, turn: t.turn})
	if until < never {
		t.world.wakeAt(until, t)
	}
	t.pause()
}

// fire wakes all who wait, each after the delay that it has in waking.
func (s *signal) fire(w *world, at time.Duration, delay func() time.Duration) {
	for _, waiter := range s.waiting {
		if waiter.turn == waiter.thread.turn {
			w.wakeAt(at+delay(), waiter.thread)
		}
	}
	s.waiting = s.waiting[:0]
}

// jitter is d, give or take up to part of it.
func (w *world) jitter(d time.Duration, part float64) time.Duration {
	return time.Duration(float64(d) * (1 + part*(2*w.random.Float64()-1)))
}

// late is how much later than asked a sleeping thread runs again: mostly some 60 µs, now and then a lot more.
func (w *world) late() time.Duration {
	return 40*time.Microsecond + time.Duration(w.random.ExpFloat64()*float64(30*time.Microsecond))
}
