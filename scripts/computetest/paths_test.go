// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// settle is left out at the start of a run: costs are learnt there, and a first launch has credit.
const settle = time.Second

// flooded is a program that keeps the card busy under a limit, and how much of the card's time it is to get.
type flooded struct {
	name            string
	percent         int
	arguments       []string // of flood
	scaled, long    time.Duration
	want, tolerance float64
}

// run measures one share on a card of its own.
func (f flooded) run(t *testing.T) { f.runWith(t) }

// runWith is run with variables in the program's environment.
func (f flooded) runWith(t *testing.T, variables ...string) {
	t.Helper()
	t.Parallel()
	length := pick(f.scaled, f.long)
	flood := program(t, "flood")
	mustShare(t, f.want, f.tolerance, func() float64 {
		c := newCard(t)
		command := c.limitedCommand(f.percent, flood, append(f.arguments, fmt.Sprintf("seconds=%.1f", (length+patience).Seconds()))...)
		command.Env = append(command.Env, variables...)
		p := start(t, command)
		defer p.kill()
		p.ready()
		time.Sleep(settle)
		return c.percentOver(length - settle)
	})
}

// Work that is sent as a graph pays for all of its kernels, whatever else is in the graph.
func TestGraphsKeepToTheirShare(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	for _, path := range []string{"launch", "ex", "cooperative", "multi", "old", "grid", "ptsz"} {
		t.Run(path, flooded{"", 30, []string{"path=" + path, "kernel=busy_2ms", "grid=512"}, 4 * time.Second, 20 * time.Second, 30, 4}.run)
	}
}

// Work whose length nobody knows yet, again and again: it is held to the share all the same.
func TestWorkThatIsAlwaysNew(t *testing.T) {
	t.Parallel()
	for _, f := range []flooded{
		{"a kernel for each launch", 30, []string{"kernel=busy_5ms", "kernels=5000"}, 6 * time.Second, 20 * time.Second, 30, 5},
		{"a kernel for each launch, waited for", 30, []string{"kernel=busy_5ms", "kernels=5000", "sync=each"}, 5 * time.Second, 20 * time.Second, 30, 5},
		{"a graph for each launch", 30, []string{"path=fresh", "nodes=10", "kernel=busy_2ms"}, 6 * time.Second, 20 * time.Second, 30, 5},
		// Each is measured before the next goes, so there may be less than the share.
		{"a small graph for each launch", 30, []string{"path=fresh", "kernel=busy_20us"}, 5 * time.Second, 20 * time.Second, 24, 10},
	} {
		t.Run(f.name, f.run)
	}
}

// Programs that launch once, wait for the GPU and end, one after the other.
func TestShortProcessesPay(t *testing.T) {
	t.Parallel()
	for _, kernel := range []string{"busy_50ms", "busy_200ms"} {
		t.Run(kernel, func(t *testing.T) {
			t.Parallel()
			flood := program(t, "flood")
			mustShare(t, 20, 4, func() float64 {
				c := newCard(t)
				p := c.limited(20, "sh", "-c", "while :; do "+flood+" count=1 kernel="+kernel+"; done")
				defer p.kill()
				p.await("done", 2, patience)
				return c.percentOver(6 * time.Second)
			})
		})
	}
}

// It makes no difference by which door a program gets at the driver's functions.
func TestFunctionsFromTheDriverAreLimited(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"launch", "graph", "ptsz"} {
		f := flooded{"", 30, []string{"path=" + path, "kernel=busy_2ms"}, 4 * time.Second, 20 * time.Second, 30, 4}
		t.Run(path, func(t *testing.T) { f.runWith(t, "CLIENT_DOOR=getproc") })
	}
}

// The customary variable only lowers what was granted; what it cannot mean is taken for the least.
func TestVariableOnlyLowersTheShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		variable        string
		want, tolerance float64
	}{
		{"CUDA_DEVICE_SM_LIMIT=20", 20, 4},
		{"CUDA_DEVICE_SM_LIMIT_0=20", 20, 4},
		{"CUDA_DEVICE_SM_LIMIT= 20 ", 20, 4},
		{"CUDA_DEVICE_SM_LIMIT=80", 50, 4},
		{"CUDA_DEVICE_SM_LIMIT=100", 50, 4},
		{"CUDA_DEVICE_SM_LIMIT=", 50, 4},
		{"CUDA_DEVICE_SM_LIMIT=0", 1, 1},
		{"CUDA_DEVICE_SM_LIMIT=-5", 1, 1},
		{"CUDA_DEVICE_SM_LIMIT=50%", 1, 1},
		{"CUDA_DEVICE_SM_LIMIT=12.5", 1, 1},
		{"CUDA_DEVICE_SM_LIMIT=101", 1, 1},
		{"CUDA_DEVICE_SM_LIMIT=abc", 1, 1},
	} {
		f := flooded{"", 50, []string{"kernel=busy_1ms"}, 3 * time.Second, 3 * time.Second, test.want, test.tolerance}
		t.Run(test.variable, func(t *testing.T) { f.runWith(t, test.variable) })
	}
}

// vgpud exec takes whole percents from 1 to 100 and nothing else.
func TestExecRefusesSharesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"0", "101", "150", "-5", "50%", "12.5", "", "abc", "99999999999999999999"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			command := newCard(t).limitedCommand(1, "true")
			for i, argument := range command.Args {
				if argument == "--cores=1" {
					command.Args[i] = "--cores=" + text
				}
			}
			out, err := command.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--cores") {
				t.Errorf("--cores=%s: %v, %s", text, err, out)
			}
		})
	}
}

// Without --cores only memory is limited.
func TestExecWithoutAShare(t *testing.T) {
	t.Parallel()
	flood := program(t, "flood")
	mustShare(t, 100, 3, func() float64 {
		c := newCard(t)
		command := c.limitedCommand(1, flood, "kernel=busy_1ms", "seconds=60")
		command.Args = slices.DeleteFunc(command.Args, func(argument string) bool { return argument == "--cores=1" })
		p := start(t, command)
		defer p.kill()
		p.ready()
		return c.percentOver(2 * time.Second)
	})
}

// From nothing to the whole card: the least there is, and no limit.
func TestSmallestAndLargestShare(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	for _, f := range []flooded{
		{"16 threads", 30, []string{"threads=16", "kernel=busy_2ms"}, 5 * time.Second, 20 * time.Second, 30, 4},
		{"16 streams", 30, []string{"streams=16", "kernel=busy_2ms"}, 5 * time.Second, 20 * time.Second, 30, 4},
		{"16 threads that wait for the GPU", 30, []string{"threads=16", "kernel=busy_2ms", "sync=each"},
			5 * time.Second, 20 * time.Second, 30, 4},
	} {
		t.Run(f.name, f.run)
	}
}
