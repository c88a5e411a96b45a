// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"testing"
	"time"
)

// settle is left out at the start of a run: costs are learnt there, and a first launch has credit.
const settle = time.Second

// flooded is a program that keeps the card busy under a limit, and how much of the card's time it is to get.
type flooded struct {
	name            string
	percent         int
	arguments       []string
	scaled, long    time.Duration
	want, tolerance float64
}

// run measures one share on a card of its own.
func (f flooded) run(t *testing.T) {
	t.Helper()
	t.Parallel()
	length := pick(f.scaled, f.long)
	flood := program(t, "flood")
	mustShare(t, f.want, f.tolerance, func() float64 {
		c := newCard(t)
		p := c.limited(f.percent, flood, append(f.arguments, fmt.Sprintf("seconds=%.1f", (length+patience).Seconds()))...)
		defer p.kill()
		p.ready()
		time.Sleep(settle)
		return c.percentOver(length - settle)
	})
}

// Work that is sent as a graph pays for all of its kernels, whatever else is in the graph.
func TestGraphsKeepToTheirShare(t *testing.T) {
	for _, f := range []flooded{
		{"one kernel", 30, []string{"path=graph", "kernel=busy_10ms"}, 5 * time.Second, 20 * time.Second, 30, 5},
		{"a hundred kernels", 30, []string{"path=graph", "nodes=100", pick("kernel=busy_1ms", "kernel=busy_10ms")},
			8 * time.Second, 20 * time.Second, 30, 5},
		{"child graph and memsets", 30, []string{"path=rich", "nodes=9", "kernel=busy_10ms"}, 6 * time.Second, 20 * time.Second, 30, 5},
		{"captured", 30, []string{"path=capture", "nodes=20", "kernel=busy_1ms"}, 5 * time.Second, 20 * time.Second, 30, 5},
		{"kernels are changed", 30, []string{"path=graph", "nodes=1", "kernel=busy_2ms", "other=busy_8ms"},
			5 * time.Second, 20 * time.Second, 30, 5},
		{"short graphs on many streams", 30, []string{"path=graph", "nodes=4", "kernel=busy_100us", "streams=4"},
			5 * time.Second, 20 * time.Second, 30, 5},
	} {
		t.Run(f.name, f.run)
	}
}

// Every function that starts a kernel is held to the share.
func TestEveryWayToLaunchKeepsToItsShare(t *testing.T) {
	for _, path := range []string{"launch", "ex", "cooperative", "multi", "old", "grid", "ptsz"} {
		t.Run(path, flooded{"", 30, []string{"path=" + path, "kernel=busy_2ms"}, 4 * time.Second, 20 * time.Second, 30, 4}.run)
	}
}

// From nothing to the whole card: the least there is, and no limit.
func TestSmallestAndLargestShare(t *testing.T) {
	for _, f := range []flooded{
		{"1 percent", 1, []string{"kernel=busy_1ms"}, 8 * time.Second, 30 * time.Second, 1, 0.5},
		{"10 percent of tiny kernels", 10, []string{"kernel=busy_20us"}, 5 * time.Second, 20 * time.Second, 10, 3},
		{"90 percent", 90, []string{"kernel=busy_2ms"}, 5 * time.Second, 20 * time.Second, 90, 4},
		{"100 percent", 100, []string{"kernel=busy_2ms"}, 4 * time.Second, 20 * time.Second, 100, 3},
	} {
		t.Run(f.name, f.run)
	}
}

// Streams and threads of one process have one credit together.
func TestManyThreadsAndStreamsShareOneCredit(t *testing.T) {
	for _, f := range []flooded{
		{"16 threads", 30, []string{"threads=16", "kernel=busy_2ms"}, 5 * time.Second, 20 * time.Second, 30, 4},
		{"16 streams", 30, []string{"streams=16", "kernel=busy_2ms"}, 5 * time.Second, 20 * time.Second, 30, 4},
		{"16 threads that wait for the GPU", 30, []string{"threads=16", "kernel=busy_2ms", "sync=each"},
			5 * time.Second, 20 * time.Second, 30, 4},
	} {
		t.Run(f.name, f.run)
	}
}
