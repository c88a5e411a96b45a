// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

const (
	ms = time.Millisecond
	us = time.Microsecond
)

// feed keeps a stream of a context supplied with kernels, and counts those that went in.
func feed(w *world, x *context, stream int, takes time.Duration, fills float64, put *int) {
	w.spawn(0, func(t *thread) {
		for {
			t.spend(launchTime)
			t.enqueue(x, stream, item{left: takes, fills: fills})
			*put++
		}
	})
}

func used(x *context, from, to time.Duration) float64 {
	return float64(x.used.sum(from, to)) / float64(to-from)
}

func near(t *testing.T, what string, got, want, within float64) {
	t.Helper()
	if math.Abs(got-want) > within {
		t.Errorf("%s is %v, want %v within %v", what, got, want, within)
	}
}

func TestTimeSlices(t *testing.T) {
	w := newWorld(time.Second, 1)
	c := w.addCard(scene.Scene{Length: time.Second})
	var a, b int
	long, short := c.addContext(1), c.addContext(1)
	feed(w, long, 0, 50*ms, 1, &a)
	feed(w, short, 0, 100*us, 1, &b)
	w.run()
	near(t, "share of long kernels", used(long, 0, time.Second), 0.5, 0.01) // they are cut at the slice's end
	near(t, "share of short kernels", used(short, 0, time.Second), 0.5, 0.01)
	near(t, "kernels of the short", float64(b-queueDepth), 5000, 60)
}

func TestSliceIsGivenUpWithoutWork(t *testing.T) {
	w := newWorld(time.Second, 1)
	c := w.addCard(scene.Scene{Length: time.Second})
	var n int
	busy, rare := c.addContext(1), c.addContext(1)
	feed(w, busy, 0, ms, 1, &n)
	w.spawn(0, func(t *thread) { // 0.1 ms of work, waited for, every 10 ms
		for {
			began := t.world.now
			t.enqueue(rare, 0, item{left: 100 * us, fills: 1})
			t.synchronize(rare, 0)
			t.until(began + 10*ms)
		}
	})
	w.run()
	near(t, "share of the rare one", used(rare, 0, time.Second), 0.01, 0.0005)
	near(t, "share of the busy one", used(busy, 0, time.Second), 0.99, 0.0005)
}

func TestMarksIncludeOthersSlices(t *testing.T) {
	w := newWorld(time.Second, 1)
	c := w.addCard(scene.Scene{Length: time.Second})
	var n int
	mine, other := c.addContext(1), c.addContext(1)
	feed(w, other, 0, 10*ms, 1, &n)
	var elapsed time.Duration
	w.spawn(0, func(t *thread) {
		begin, end := &mark{}, &mark{}
		t.enqueue(mine, 0, item{mark: begin})
		t.enqueue(mine, 0, item{left: 9500 * us, fills: 1})
		t.enqueue(mine, 0, item{mark: end})
		t.synchronize(mine, 0)
		elapsed = end.at - begin.at
	})
	w.run()
	near(t, "9.5 ms between marks, in ms", elapsed.Seconds()*1000, 17.5, 0.1) // four of the other's slices lie between
}

func TestStreamsOverlap(t *testing.T) {
	w := newWorld(time.Second, 1)
	c := w.addCard(scene.Scene{Length: time.Second})
	x := c.addContext(4)
	var done int
	w.spawn(0, func(t *thread) {
		for {
			for stream := range 4 {
				t.enqueue(x, stream, item{left: ms, fills: 0.5})
			}
			for stream := range 4 {
				t.synchronize(x, stream)
			}
			done += 4
		}
	})
	w.run()
	near(t, "kernels of 1 ms that fill half of the card, in 1 s", float64(done), 2000, 40)
	near(t, "use", used(x, 0, time.Second), 1, 0.02)
}

func TestMPS(t *testing.T) {
	w := newWorld(time.Second, 1)
	c := w.addCard(scene.Scene{Length: time.Second, Sharing: scene.MPS})
	var a, b int
	half, full := c.addContext(1), c.addContext(1)
	feed(w, half, 0, ms, 0.5, &a)
	feed(w, full, 0, ms, 1, &b)
	w.run()
	near(t, "use of one", used(half, 0, time.Second), 1, 0.001)
	near(t, "use of the other", used(full, 0, time.Second), 1, 0.001)
	near(t, "kernels", float64(a-queueDepth), 1000/1.5, 3) // both at two thirds of full speed
}

func TestCollectiveSpinsUntilItsPeersRun(t *testing.T) {
	w := newWorld(time.Second, 1)
	w.meet = true
	s := scene.Scene{Length: time.Second}
	first, second := w.addCard(s).addContext(1), w.addCard(s).addContext(1)
	var took time.Duration
	w.spawn(0, func(t *thread) {
		meet := &meeting{missing: 2, takes: ms}
		t.enqueue(first, 0, item{meet: meet, fills: 1})
		t.until(100 * ms)
		t.enqueue(second, 0, item{meet: meet, fills: 1})
		t.synchronize(first, 0)
		took = t.world.now
	})
	w.run()
	near(t, "end of the collective, in ms", took.Seconds()*1000, 101, 0.1)
	near(t, "use of the card that spun", used(first, 0, 100*ms), 1, 0.01)
	near(t, "use of the other", used(second, 0, 100*ms), 0, 0)
}

func TestNVML(t *testing.T) {
	w := newWorld(10*time.Second, 1)
	c := w.addCard(scene.Scene{Length: 10 * time.Second})
	mine, idle := c.addContext(1), c.addContext(1)
	w.spawn(0, func(t *thread) { // 30.6 % of each 100 ms
		for at := time.Duration(0); ; at += 100 * ms {
			t.until(at)
			t.enqueue(mine, 0, item{left: 30600 * us, fills: 1})
		}
	})
	w.run()
	n := nvml{model: scene.Utilization{Period: 200 * ms, Lag: 500 * ms}, card: c, owners: map[*context]int{mine: 7, idle: 8}}
	samples := n.read(10 * time.Second)
	if len(samples) != 47 {
		t.Fatalf("%d samples, want one for each 200 ms that ended 500 ms ago or earlier: 47", len(samples))
	}
	for _, s := range samples {
		if s.percent != 31 || s.tenant != 7 {
			t.Fatalf("sample %+v: want 31 whole percent of tenant 7 alone", s)
		}
	}
	if again := n.read(10 * time.Second); len(again) != 0 {
		t.Errorf("%d samples a second time", len(again))
	}
	lossy := nvml{model: scene.Utilization{Period: 200 * ms, Missing: 50}, card: c, owners: n.owners}
	if got := len(lossy.read(10 * time.Second)); got < 15 || got > 35 {
		t.Errorf("%d of 50 samples, though half of them are lost", got)
	}
}
