// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Two other laws for a compute share, as models to compare with, written from their published behaviour. Both sit in each
// process, read its use from NVML, and poll while they deny.

package virtual

import (
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// deniedSleep is how long a denied launch sleeps before it asks again.
const deniedSleep = 10 * time.Millisecond

// peer is what both laws have in common: a bucket of tokens by card, and which launches they do not see.
type peer struct {
	process *process
	buckets []bucket // by card
	unseen  []scene.Path
}

// bucket is a pool of launch tokens.
type bucket interface {
	take(l launch) bool // false: denied
}

func (p *peer) launch(t *thread, _ *caller, card, stream int, l launch) {
	waited := t.world.now
	if slices.Contains(p.unseen, l.path) {
		t.submit(p.process.contexts[card], stream, l)
		return
	}
	for !p.process.dead && !p.buckets[card].take(l) {
		t.until(t.world.now + deniedSleep + t.world.late())
	}
	p.process.tenant.note(t.world.now - waited)
	t.submit(p.process.contexts[card], stream, l)
}

func (t *tenant) note(waited time.Duration) {
	t.throttled += waited
	t.longest = max(t.longest, waited)
}

// blockBucket counts blocks of grids, whatever their size. A watcher compares the use with the limit, and moves what it
// refills by a step in proportion to the distance and to the square of the number of SMs.
type blockBucket struct {
	limit        float64 // percent
	sms          float64
	pool, refill float64
	tokens       float64
}

const (
	blockPeriod = 120 * time.Millisecond
	smThreads   = 1536 // that an SM holds
)

func newBlockBucket(limit, sms int) *blockBucket {
	return &blockBucket{limit: float64(limit), sms: float64(sms), pool: float64(sms) * smThreads * 32}
}

func (b *blockBucket) take(l launch) bool {
	if b.tokens < 0 {
		return false
	}
	b.tokens -= float64(l.blocks)
	return true
}

// watch is the watcher's step: use in percent.
func (b *blockBucket) watch(use float64) {
	distance := max(5, math.Abs(b.limit-use))
	step := b.pool * b.sms * distance / 81920
	if distance > b.limit/2 {
		step *= 2 * distance / (b.limit + 1)
	}
	if b.refill >= b.pool && b.tokens < 0 {
		b.pool *= 2
	}
	if use > b.limit {
		step = -step
	}
	b.refill = min(max(b.refill+step, 0), b.pool)
	b.tokens = min(b.tokens+b.refill, b.pool)
}

// pidBucket counts tokens that saturate with the launch's size, and steers the refill by a PID on the smoothed use.
type pidBucket struct {
	target          float64 // 0..1
	rate, tokens    float64 // tokens a second; tokens
	taken           float64 // since the last step
	use, drain      float64 // smoothed; tokens a second
	integral, error float64
	at              time.Duration // of the last refill
	world           *world
}

const (
	pidPeriod   = 100 * time.Millisecond
	pidBurst    = 2.0 // seconds of refill
	pidFirst    = 100 // tokens a second, before anything is known
	pidSmooth   = 0.3
	pidP        = 0.5
	pidI        = 0.1
	pidD        = 0.05
	pidMost     = 0.5 // of the base rate
	pidLeast    = 1   // token a second
	threadScale = 400e3
)

func newPIDBucket(limit int, w *world) *pidBucket {
	return &pidBucket{target: float64(limit) / 100, rate: pidFirst, tokens: pidFirst, world: w}
}

func (b *pidBucket) fill() {
	now := b.world.now
	b.tokens = min(b.tokens+b.rate*(now-b.at).Seconds(), pidBurst*b.rate)
	b.at = now
}

func (b *pidBucket) take(l launch) bool {
	b.fill()
	cost := 0.1 + 9.9*(1-math.Exp(-float64(l.blocks)*float64(l.threads)/threadScale))
	if b.tokens < cost {
		return false
	}
	b.tokens -= cost
	b.taken += cost
	return true
}

// watch is the controller's step: use in percent.
func (b *pidBucket) watch(use float64) {
	b.fill()
	b.use += pidSmooth * (use/100 - b.use)
	b.drain += pidSmooth * (b.taken/pidPeriod.Seconds() - b.drain)
	b.taken = 0
	base := b.rate
	if b.use > 0.01 {
		base = b.drain * b.target / b.use
	}
	e := (b.target - b.use) / b.target
	b.integral = min(max(b.integral+e*pidPeriod.Seconds(), -1), 1)
	correction := pidP*e + pidI*b.integral + pidD*(e-b.error)/pidPeriod.Seconds()
	b.error = e
	b.rate = max(pidLeast, base*(1+min(max(correction, -pidMost), pidMost)))
}

// watcher is a peer's thread that reads NVML for its own process.
func (w *world) watcher(p *process, card int, n *nvml, period time.Duration, step func(use float64)) {
	w.spawn(p.tenant.From, func(t *thread) {
		use := 0.0
		for {
			t.until(t.world.now + period + t.world.late())
			last := n.last
			seen := n.read(t.world.now)
			if n.last > last {
				use = 0
			}
			for _, s := range seen {
				if s.context == p.contexts[card] {
					use = float64(s.percent)
				}
			}
			step(use)
		}
	})
}
