// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"math"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// What the modelled driver and card are like.
const (
	queueDepth = 1024                 // launches and marks of one process that may be outstanding; then a launch blocks
	timeslice  = 2 * time.Millisecond // of a context, while others have work
	meterStep  = time.Millisecond     // resolution of what the card knows of its own use
	syncDelay  = 5 * time.Microsecond // from the end of work to the thread that waited for it
)

// card runs the work of its contexts: in turns of a slice, or all at once where sharing is MPS. It is advanced by whoever
// looks; where somebody waits for it, the world does.
type card struct {
	world    *world
	mps      bool
	now      time.Duration
	contexts []*context
	running  int           // index of the context whose turn it is
	sliceEnd time.Duration // of its turn
	watchers int           // threads that wait for something of this card
	active   []*context    // room for turn's answer
	used     meter         // time in which anything ran
}

// context is one process's part of a card.
type context struct {
	card     *card
	channels []*channel
	queued   int // items not yet done
	used     meter
	room     signal
	watched  int // threads that wait for room
	dead     bool
}

// channel is a stream: its items run in order.
type channel struct {
	items []item
	head  int
}

func (c *channel) empty() bool { return c.head == len(c.items) }

// item is a kernel (or a graph's kernels, one after the other), or a mark.
type item struct {
	left  time.Duration // GPU time to go, running alone
	fills float64       // part of the card
	mark  *mark         // nil for a kernel; reached at once when it is its turn
	meet  *meeting      // of a collective: nobody gets on until all are there
	there bool          // this rank is at the meeting
}

// mark is an event: it is stamped when the card comes to it.
type mark struct {
	reached bool
	at      time.Duration
	signal  signal
}

// meeting is one round of a collective.
type meeting struct {
	missing int // ranks that do not run yet
	takes   time.Duration
}

// meter keeps what was used in steps of time.
type meter struct{ steps []time.Duration }

func newMeter(length time.Duration) meter {
	return meter{make([]time.Duration, length/meterStep+2)}
}

// add notes that the time between the two was used.
func (m *meter) add(from, to time.Duration) {
	for from < to {
		i := int(from / meterStep)
		stop := min(to, time.Duration(i+1)*meterStep)
		if i < len(m.steps) {
			m.steps[i] += stop - from
		}
		from = stop
	}
}

// sum is what was used between two times, which are whole steps.
func (m *meter) sum(from, to time.Duration) time.Duration {
	var used time.Duration
	for i := int(max(from, 0) / meterStep); i < int(to/meterStep) && i < len(m.steps); i++ {
		used += m.steps[i]
	}
	return used
}

func (w *world) addCard(s scene.Scene) *card {
	c := &card{world: w, mps: s.Sharing == scene.MPS, used: newMeter(s.Length)}
	w.cards = append(w.cards, c)
	return c
}

func (c *card) addContext(streams int) *context {
	x := &context{card: c, used: newMeter(c.world.end)}
	for range streams {
		x.channels = append(x.channels, &channel{})
	}
	c.contexts = append(c.contexts, x)
	return x
}

func (x *context) busy() bool { return x.queued > 0 }

// put enqueues an item; the caller has made room.
func (x *context) put(stream int, it item) {
	x.card.advance(x.card.world.now)
	channel := x.channels[stream]
	if channel.empty() {
		channel.items, channel.head = channel.items[:0], 0
	} else if channel.head > queueDepth {
		channel.items = append(channel.items[:0], channel.items[channel.head:]...)
		channel.head = 0
	}
	channel.items = append(channel.items, it)
	x.queued++
}

// enqueue puts an item, and first waits for room as a driver does.
func (t *thread) enqueue(x *context, stream int, it item) {
	x.card.advance(t.world.now)
	for x.queued >= queueDepth {
		x.watched++
		x.card.watchers++
		t.wait(&x.room, never)
		x.watched--
		x.card.watchers--
		x.card.advance(t.world.now)
	}
	x.put(stream, it)
}

// synchronize waits until everything that was put into the stream is done.
func (t *thread) synchronize(x *context, stream int) {
	m := &mark{}
	t.enqueue(x, stream, item{mark: m})
	x.card.watchers++
	for !m.reached {
		t.wait(&m.signal, never)
	}
	x.card.watchers--
}

// query says whether a mark has been reached.
func (x *context) query(m *mark) bool {
	x.card.advance(x.card.world.now)
	return m.reached
}

// kill drops everything that a process has on the card.
func (x *context) kill() {
	x.card.advance(x.card.world.now)
	for _, channel := range x.channels {
		channel.items, channel.head = nil, 0
	}
	x.queued, x.dead = 0, true
}

// settle passes marks, and meetings that nobody is missed at, until each channel has a kernel at its head or is empty.
func (x *context) settle() {
	c := x.card
	for _, channel := range x.channels {
		for !channel.empty() {
			head := &channel.items[channel.head]
			if head.meet != nil && head.left == 0 && !head.there { // this rank runs now
				head.meet.missing--
				head.left, head.there = head.meet.takes, true
			}
			if head.mark == nil && head.left > 0 {
				break
			}
			if m := head.mark; m != nil {
				m.reached, m.at = true, c.now
				m.signal.fire(c.world, c.now, func() time.Duration { return syncDelay })
			}
			head.mark, head.meet = nil, nil
			channel.head++
			x.queued--
		}
	}
	if x.watched > 0 && x.queued < queueDepth {
		x.room.fire(c.world, c.now, func() time.Duration { return syncDelay })
	}
}

// heads says how much of the card the context's heads fill in all, and the time to the first end at full speed. Heads
// that wait for a meeting occupy the card and get nowhere.
func (x *context) heads() (fills float64, first time.Duration) {
	first = never
	for _, channel := range x.channels {
		if channel.empty() {
			continue
		}
		head := &channel.items[channel.head]
		fills += head.fills
		if head.meet == nil || head.meet.missing == 0 {
			first = min(first, head.left)
		}
	}
	return fills, first
}

// progress gives every head of the context that much of its time.
func (x *context) progress(done time.Duration) {
	for _, channel := range x.channels {
		if channel.empty() {
			continue
		}
		head := &channel.items[channel.head]
		if head.meet == nil || head.meet.missing == 0 {
			head.left = max(0, head.left-done)
		}
	}
}

// turn returns the contexts that run now: all that have work, or the one whose slice it is while it has work, else the
// next that has.
func (c *card) turn() []*context {
	if c.mps {
		c.active = c.active[:0]
		for _, x := range c.contexts {
			if x.settle(); x.busy() {
				c.active = append(c.active, x)
			}
		}
		return c.active
	}
	for n := len(c.contexts); n > 0; {
		if c.now < c.sliceEnd {
			if c.contexts[c.running].settle(); c.contexts[c.running].busy() {
				return c.contexts[c.running : c.running+1]
			}
		}
		next := -1
		for i := 1; i <= n && next < 0; i++ {
			if at := (c.running + i) % n; c.contexts[at].busy() {
				next = at
			}
		}
		if next < 0 {
			break
		}
		c.running, c.sliceEnd = next, c.now+timeslice
	}
	return nil
}

// speed is the part of full speed at which the contexts' heads progress together, and when the next thing happens.
func (c *card) speed(active []*context) (rate float64, next time.Duration) {
	var fills float64
	first := never
	for _, x := range active {
		more, end := x.heads()
		fills, first = fills+more, min(first, end)
	}
	rate, next = 1, never
	if fills > 1 {
		rate = 1 / fills
	}
	if first < never {
		next = c.now + time.Duration(math.Ceil(float64(first)/rate))
	}
	if !c.mps {
		next = min(next, c.sliceEnd)
	}
	return rate, next
}

// advance works the card's queues off up to a time. Cards that meet go together.
func (c *card) advance(to time.Duration) {
	if !c.world.meet {
		c.advanceAlone(to)
		return
	}
	for {
		at := to
		for _, other := range c.world.cards {
			if active := other.turn(); len(active) > 0 {
				_, next := other.speed(active)
				at = min(at, max(next, other.now))
			}
		}
		for _, other := range c.world.cards {
			other.advanceAlone(at)
		}
		if at >= to {
			return
		}
	}
}

func (c *card) advanceAlone(to time.Duration) {
	for {
		active := c.turn()
		if c.now >= to {
			return
		}
		if len(active) == 0 {
			c.now = to
			return
		}
		rate, next := c.speed(active)
		next = min(next, to)
		done := time.Duration(float64(next-c.now)*rate + 0.5)
		for _, x := range active {
			x.progress(done)
			x.used.add(c.now, next)
		}
		c.used.add(c.now, next)
		c.now = next
	}
}

// upcoming is when the card next does something that a thread waits for.
func (c *card) upcoming() time.Duration {
	if c.watchers == 0 {
		return never
	}
	active := c.turn()
	if len(active) == 0 {
		return never
	}
	_, next := c.speed(active)
	return next
}
