// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package virtual is a model of what the agent's sources would say of a card and its tenants: operations share the card and
// its link, and out of that come what pages and counters show, each with its own lag and noise. What is concluded from that
// is not its business. A model is one goroutine's, draws from one seed, and comes out the same each time.
package virtual

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

const (
	never      = time.Duration(math.MaxInt64)
	timeslice  = 2 * time.Millisecond
	workVaries = 0.05                  // kernels vary so much either way
	burst      = 20 * time.Millisecond // of GPU time that a share lets gather
)

// activity is what a worker is at.
type activity int

const (
	resting   activity = iota // until `wake`
	waiting                   // for its share, until `wake`
	copying                   // `left` bytes
	computing                 // `left` ns of work
	gone
)

// worker is one stream of operations of a tenant.
type worker struct {
	tenant  *tenant
	process int // among all of the card
	loop    *scene.Loop
	step    int
	doing   activity
	wake    time.Duration
	left    float64       // of the operation
	rate    float64       // at which it gets less, per ns
	alone   float64       // and would without the other tenants
	began   time.Duration // when the card came to it; before that: -1
	asked   time.Duration // when the program asked for it
	order   uint64        // of asking, among copies
	cost    []float64     // by step: what the kernel took last time, in ns of the card
	ran     float64       // ns of the card that this kernel had
}

func (w *worker) operation() *scene.Operation { return &w.loop.Operations[w.step] }

// tenant is one container.
type tenant struct {
	scene.Tenant
	number  int
	workers []*worker
	credit  float64       // ns of GPU time that it may use at once
	at      time.Duration // as of then
	truth   Truth
	library library
	skew    float64 // what it is charged is so many times what it used
}

// world is the card and all that happens on it.
type world struct {
	scene          scene.Scene
	now            time.Duration
	random         *rand.Rand
	tenants        []*tenant
	workers        []*worker
	events         []scene.Event // still to come
	clock          float64       // of their maximum
	memory         float64
	link           float64
	cause          scene.Event // of a clock that is not at its maximum
	turn           int         // process that has the card, with time slices
	processes      int
	order          uint64
	until          time.Duration
	copied         time.Duration // when something was last copied
	meters         meters
	under, running []*worker // for use within one call
}

func newWorld(s scene.Scene) *world {
	w := &world{scene: s.Filled(), random: rand.New(rand.NewPCG(s.Seed, 0x9e3779b97f4a7c15)), clock: 1, memory: 1, link: 1}
	w.events = w.scene.Events
	for i := range w.scene.Tenants {
		t := &tenant{Tenant: w.scene.Tenants[i], number: i, skew: 1 + 0.03*(2*w.random.Float64()-1), credit: float64(burst)}
		t.library = library{tenant: t, started: t.From}
		for range t.Processes {
			w.spawn(t)
		}
		w.tenants = append(w.tenants, t)
	}
	w.settle()
	return w
}

// spawn adds one process of a tenant.
func (w *world) spawn(t *tenant) {
	for j := range t.Loops {
		for range t.Loops[j].Streams {
			x := &worker{tenant: t, process: w.processes, loop: &t.Loops[j], cost: make([]float64, len(t.Loops[j].Operations))}
			x.wake, _ = t.NextOn(t.Loops[j], 0)
			x.wake += time.Duration(w.random.Int64N(int64(10 * time.Millisecond))) // nobody is in step with others
			t.workers, w.workers = append(t.workers, x), append(w.workers, x)
		}
	}
	w.processes++
}

// advance lets time pass.
func (w *world) advance(to time.Duration) {
	for w.now < to {
		next := min(to, w.upcoming())
		w.pass(next - w.now)
		w.now = next
		w.settle()
	}
}

// upcoming is when something changes next.
func (w *world) upcoming() time.Duration {
	at := never
	if len(w.events) > 0 {
		at = w.events[0].At
	}
	contenders := false
	for _, x := range w.workers {
		switch x.doing {
		case resting, waiting:
			at = min(at, x.wake)
		case copying, computing:
			if x.rate > 0 {
				at = min(at, w.now+max(1, time.Duration(math.Ceil(x.left/x.rate))))
			}
			contenders = contenders || (x.doing == computing && x.process != w.turn)
		case gone:
		}
	}
	if contenders && w.scene.Card.Sharing == scene.TimeSlice {
		at = min(at, max(w.until, w.now+1))
	}
	for _, t := range w.tenants {
		if t.Again > 0 && w.now < t.Until {
			at = min(at, t.library.started+t.Again)
		}
	}
	return at
}

// pass lets the work go on at the present rates.
func (w *world) pass(d time.Duration) {
	if d <= 0 {
		return
	}
	w.measure(float64(d))
	for _, x := range w.workers {
		if x.doing == copying || x.doing == computing {
			x.left -= x.rate * float64(d)
			if x.rate > 0 {
				x.ran += float64(d)
			}
		}
	}
}

// settle does what is due now, and sets the rates anew.
func (w *world) settle() {
	for len(w.events) > 0 && w.events[0].At <= w.now {
		w.happen(w.events[0])
		w.events = w.events[1:]
	}
	for _, t := range w.tenants {
		if t.Again > 0 && w.now < t.Until && w.now >= t.library.started+t.Again {
			w.restart(t)
		}
	}
	for _, x := range w.workers {
		for range 1 + len(x.loop.Operations) { // an operation may take no time
			if !w.step(x) {
				break
			}
		}
	}
	w.share()
}

func (w *world) happen(e scene.Event) {
	switch e.Kind {
	case scene.SetClock:
		w.clock, w.cause = e.Value, e
	case scene.SetMemory:
		w.memory, w.cause = e.Value, e
	case scene.SetLink:
		w.link = e.Value
	}
}

// restart ends a tenant's process and starts another one, whose handles are others.
func (w *world) restart(t *tenant) {
	t.library.started = w.now
	t.library.incarnation++
	for _, x := range t.workers {
		x.doing, x.step, x.wake = resting, 0, w.now+time.Second // to start takes a second
		clear(x.cost)
	}
}

// step moves a worker on if it is done with what it was at. True: look again.
func (w *world) step(x *worker) bool {
	switch x.doing {
	case resting, waiting:
		if x.wake > w.now {
			return false
		}
		return w.begin(x)
	case copying, computing:
		if x.left > 1e-6 {
			return false
		}
		w.complete(x)
		return true
	case gone:
	}
	return false
}

// begin has a worker start its next operation, or rest until it may.
func (w *world) begin(x *worker) bool {
	if x.doing == waiting {
		x.tenant.library.waited += w.now - x.asked
	}
	from, until := x.tenant.NextOn(*x.loop, w.now)
	if from >= until {
		x.doing = gone
		return false
	}
	if from > w.now {
		x.doing, x.wake = resting, from
		return false
	}
	o := x.operation()
	x.ran, x.began = 0, w.now
	if o.Kind != scene.Kernel {
		w.order++
		x.doing, x.left, x.asked, x.order = copying, float64(o.Bytes), w.now, w.order
		if !x.loop.Unseen {
			x.tenant.library.copies(o)
		}
		return false
	}
	estimate := x.cost[x.step]
	if estimate == 0 {
		estimate = float64(o.Work)
	}
	if debt := x.tenant.debt(w.now); debt > 0 {
		x.doing, x.asked, x.wake = waiting, w.now, w.now+debt
		return false
	}
	x.tenant.credit -= estimate
	x.tenant.library.charged += estimate * x.tenant.skew
	x.doing, x.began, x.asked = computing, -1, w.now
	x.left = float64(o.Work) * (1 + workVaries*(2*w.random.Float64()-1))
	return false
}

// debt is how long a tenant has to wait for its share before it may launch.
func (t *tenant) debt(now time.Duration) time.Duration {
	if t.Share == 0 || t.Share >= 100 {
		return 0
	}
	share := float64(t.Share) / 100
	t.credit = min(t.credit+share*float64(now-t.at), float64(burst))
	t.at = now
	if t.credit >= 0 {
		return 0
	}
	return time.Duration(-t.credit/share) + time.Microsecond
}

// complete ends an operation: its duration may be measured, and the loop goes on.
func (w *world) complete(x *worker) {
	o := x.operation()
	if x.doing == computing {
		x.cost[x.step] = x.ran
		x.tenant.library.stalled(w.now - x.asked)
	}
	if !x.loop.Unseen {
		x.tenant.library.measured(w, x, o, w.now-x.began)
	}
	x.step++
	x.doing, x.wake = resting, w.now
	if x.step < len(x.loop.Operations) {
		return
	}
	x.step = 0
	if x.loop.Pause > 0 {
		x.wake += time.Duration(w.random.ExpFloat64() * float64(x.loop.Pause))
	}
}
