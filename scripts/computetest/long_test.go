// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"testing"
	"time"
)

// boundOfWait is the documented bound of one wait for GPU time; what is still owed then is carried.
const boundOfWait = 10 * time.Second

// A kernel cannot be stopped, so one that is longer than any period of control is paid for afterwards.
func TestKernelsThatTheProgramWaitsFor(t *testing.T) {
	t.Parallel()
	t.Run("long", func(t *testing.T) {
		t.Parallel()
		kernel := pick(150*time.Millisecond, 2*time.Second)
		length, flood := 60*kernel, program(t, "flood")
		mustShare(t, 20, 2, func() used {
			c := newCard(t)
			p := c.limited(20, flood, "kernel="+kernelName(kernel), "sync=each", "log=1",
				fmt.Sprintf("seconds=%.1f", (length+patience).Seconds()))
			defer p.kill()
			p.ready()
			got := c.over(length)
			mustWaitBetween(t, p.all("launch"), kernel)
			return got
		})
	})
	short := flooded{percent: 20, arguments: []string{"kernel=busy_5ms", "sync=each"}, scaled: 6 * time.Second}
	t.Run("short", func(t *testing.T) { short.run(t) })
}

// mustWaitBetween fails the test unless the launches, each of which the program waited for, waited four times as long
// as a kernel runs: at 20 percent. The first two may go while the kernel's cost is not known.
func mustWaitBetween(t *testing.T, launches []fields, kernel time.Duration) {
	t.Helper()
	if len(launches) < 5 {
		t.Fatalf("only %d launches", len(launches))
	}
	want := 4 * kernel.Seconds() * 1000
	for _, launch := range launches[2:] {
		if took := launch.number(t, "took_ms"); took < 0.8*want || took > 1.3*want {
			t.Errorf("launch %s waited %.0f ms, want about %.0f", launch["launch"], took, want)
		}
	}
}

func kernelName(d time.Duration) string { return fmt.Sprintf("busy_%dms", d.Milliseconds()) }

// One very long kernel, then small ones: no wait is longer than the documented bound, and in the end all is paid back.
func TestDebtIsCarriedAndPaidBack(t *testing.T) {
	t.Parallel()
	kernel := pick(2700*time.Millisecond, 30*time.Second)
	length := 6 * kernel // the debt is paid back after five times the kernel
	flood := program(t, "flood")
	// While the kernel runs nobody knows what it costs, and what the others could have had meanwhile may be forfeited.
	mustShare(t, 19, 3, func() used {
		c := newCard(t)
		p := c.limited(20, flood, "first="+kernelName(kernel), "kernel=busy_1ms", "log=1",
			fmt.Sprintf("seconds=%.1f", (length+patience).Seconds()))
		defer p.kill()
		p.ready()
		first := c.mark()
		time.Sleep(4 * kernel) // of the debt, a fifth is still owed
		if got := c.mark().percentSince(first); got > 26.5 {
			t.Errorf("after four times the kernel's time the card was busy %.1f %% of it, want 25 at most", got)
		}
		time.Sleep(length - 4*kernel)
		got := c.mark().since(first)
		longest := 0.0
		for _, launch := range p.all("launch") {
			longest = max(longest, launch.number(t, "took_ms"))
		}
		if limit := float64((boundOfWait + time.Second).Milliseconds()); longest > limit || longest < float64(boundOfWait.Milliseconds()) {
			t.Errorf("the longest wait was %.0f ms, want %s", longest, boundOfWait)
		}
		return got
	})
}
