// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// shell runs two programs as one command.
func shell(first, second string) []string { return []string{"-c", first + " & " + second + "; wait"} }

// Processes of one slice share its credit fairly, by GPU time and not by launches.
func TestProcessesShareFairly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, first, second string }{
		{"alike", "kernel=busy_2ms", "kernel=busy_2ms"},
		{"short and long kernels", "kernel=busy_100us", "kernel=busy_20ms"},
		{"one thread and eight", "kernel=busy_2ms", "kernel=busy_2ms threads=8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			flood, length := program(t, "flood"), pick(6*time.Second, 20*time.Second)
			seconds := fmt.Sprintf(" seconds=%.1f", (length + patience).Seconds())
			mustShare(t, 30, 2, func() used {
				c := newCard(t)
				p := c.limited(30, "sh", shell(flood+" "+test.first+seconds, flood+" "+test.second+seconds)...)
				defer p.kill()
				ready := p.await("ready", 2, patience)
				time.Sleep(settle)
				first := c.mark()
				time.Sleep(length - settle)
				last := c.mark()
				for _, line := range ready {
					if got := last.percentOf(t, int(line.number(t, "pid")), first); got < 13 || got > 17 {
						t.Errorf("process %s had %.1f %% of the GPU, its part is 15", line["pid"], got)
					}
				}
				return last.since(first)
			})
		})
	}
}

// A process that is killed in the middle of waiting leaves its part to the others, none of which hangs.
func TestKilledProcessIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	flood := program(t, "flood")
	c := newCard(t)
	p := c.limited(20, flood, "processes=4", "kernel=busy_20ms", "log=1", "seconds=60")
	pids := p.await("ready", 4, patience)
	time.Sleep(settle)
	for left := 4; left > 1; left-- { // three of them, one after the other
		if err := syscall.Kill(int(pids[left-1].number(t, "pid")), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed, before := time.Now(), len(p.all("launch"))
		p.await("launch", before+2, time.Second) // at 20 percent, 20 ms come every 100 ms
		if took := time.Since(killed); took > time.Second {
			t.Errorf("with %d processes left nobody launched for %s", left-1, took)
		}
		mustBeWithin(t, fmt.Sprintf("%d processes left", left-1), c.over(2*time.Second), 17, 22)
	}
}

// A process that is stopped while it waits holds up nobody.
func TestStoppedProcessIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	flood := program(t, "flood")
	mustShare(t, 30, 2, func() used {
		c := newCard(t)
		p := c.limited(30, flood, "processes=2", "kernel=busy_5ms", "seconds=60")
		defer p.kill()
		pids := p.await("ready", 2, patience)
		time.Sleep(settle)
		if err := syscall.Kill(int(pids[0].number(t, "pid")), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		return c.over(3 * time.Second)
	})
}

// Processes are killed at random moments, again and again, while others come: the share holds for those that are there.
func TestComingAndGoing(t *testing.T) {
	t.Parallel()
	flood := program(t, "flood")
	c := newCard(t)
	p := c.limited(30, "sh", "-c", "while :; do timeout --foreground -s KILL 0.23 "+flood+" kernel=busy_2ms; done & "+
		flood+" kernel=busy_2ms seconds=60 & "+flood+" kernel=busy_5ms seconds=60; wait")
	p.await("ready", 3, patience)
	time.Sleep(settle)
	// Who is killed has launched what nobody measures, and the others wait for that.
	mustBeWithin(t, "all along", c.over(pick(6*time.Second, 30*time.Second)), 20, 32)
}

// A child has a driver of its own and its parent's limits, for memory and for time.
func TestForkedChildIsLimited(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	length := 5 * time.Second
	forked := program(t, "forked")
	mustShare(t, 30, 2, func() used {
		c := newCard(t)
		p := c.limited(30, forked, "busy_5ms", fmt.Sprint(length.Seconds()), strconv.Itoa(400*mib), strconv.Itoa(300*mib), strconv.Itoa(400*mib))
		defer p.kill()
		p.ready()
		time.Sleep(settle)
		got := c.over(length - settle - 500*time.Millisecond)
		const outOfMemory = "2" // CUDA_ERROR_OUT_OF_MEMORY
		if done := p.done(patience); done["first"] != "0" || done["second"] != outOfMemory {
			t.Errorf("300 MiB beside the parent's 400 were answered with %s, want 0; 400 more with %s, want 2", done["first"], done["second"])
		}
		return got
	})
}
