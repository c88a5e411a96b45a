// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// settle is left out at the start of a run: costs are learnt there, and a first launch has credit.
const settle = time.Second

// flooded is a program that keeps the card busy under a limit.
type flooded struct {
	name      string
	percent   int           // of --cores; 0: 30
	arguments []string      // of flood
	scaled    time.Duration // how long it is watched; 0: 4 s
	want      float64       // percent of the card's time that it is to get; 0: what it may
	tolerance float64       // percent; 0: 2
}

// run measures one share on a card of its own, with variables in the program's environment.
func (f flooded) run(t *testing.T, variables ...string) {
	t.Helper()
	t.Parallel()
	length := pick(cmp.Or(f.scaled, 4*time.Second), 20*time.Second)
	flood := program(t, "flood")
	f.percent = cmp.Or(f.percent, 30)
	mustShare(t, cmp.Or(f.want, float64(f.percent)), cmp.Or(f.tolerance, 2), func() used {
		c := newCard(t)
		command := c.limitedCommand(f.percent, flood, append(f.arguments, fmt.Sprintf("seconds=%.1f", (length+patience).Seconds()))...)
		command.Env = append(command.Env, variables...)
		p := start(t, command)
		defer p.kill()
		p.ready()
		time.Sleep(settle)
		return c.over(length - settle)
	})
}

// runAll runs each as a test of its own.
func runAll(t *testing.T, all []flooded) {
	t.Helper()
	t.Parallel()
	for _, f := range all {
		t.Run(f.name, func(t *testing.T) { f.run(t) })
	}
}

// Work that is sent as a graph pays for all of its kernels, whatever else is in the graph.
func TestGraphsKeepToTheirShare(t *testing.T) {
	runAll(t, []flooded{
		{name: "one kernel", arguments: []string{"path=graph", "kernel=busy_10ms"}, scaled: 5 * time.Second},
		{name: "a hundred kernels", arguments: []string{"path=graph", "nodes=100", pick("kernel=busy_1ms", "kernel=busy_10ms")},
			scaled: 8 * time.Second},
		{name: "child graph and memsets", arguments: []string{"path=rich", "nodes=9", "kernel=busy_10ms"}, scaled: 6 * time.Second},
		{name: "captured", arguments: []string{"path=capture", "nodes=20", "kernel=busy_1ms"}, scaled: 5 * time.Second},
		{name: "kernels are changed", arguments: []string{"path=graph", "nodes=1", "kernel=busy_2ms", "other=busy_8ms"}, scaled: 5 * time.Second},
		{name: "short graphs on many streams", arguments: []string{"path=graph", "nodes=4", "kernel=busy_100us", "streams=4"}, scaled: 5 * time.Second},
	})
}

// Every function that starts a kernel is held to the share.
func TestEveryWayToLaunchKeepsToItsShare(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"launch", "ex", "cooperative", "multi", "old", "grid", "ptsz"} {
		f := flooded{arguments: []string{"path=" + path, "kernel=busy_2ms", "grid=512"}}
		t.Run(path, func(t *testing.T) { f.run(t) })
	}
}

// Work whose length nobody knows yet, again and again: it is held to the share all the same.
func TestWorkThatIsAlwaysNew(t *testing.T) {
	runAll(t, []flooded{
		{name: "a kernel for each launch", arguments: []string{"kernel=busy_5ms", "kernels=5000"}, scaled: 6 * time.Second},
		{name: "a kernel for each launch, waited for", arguments: []string{"kernel=busy_5ms", "kernels=5000", "sync=each"}, scaled: 5 * time.Second},
		{name: "a graph for each launch", arguments: []string{"path=fresh", "nodes=10", "kernel=busy_2ms"}, scaled: 6 * time.Second},
		// Each pays a deposit of fifty times its cost until it is measured, so it has to be measured soon.
		{name: "a small graph for each launch", arguments: []string{"path=fresh", "kernel=busy_20us"}, scaled: 5 * time.Second, want: 28, tolerance: 4},
	})
}

// Programs that launch once, wait for the GPU and end, one after the other.
func TestShortProcessesPay(t *testing.T) {
	t.Parallel()
	for _, kernel := range []string{"busy_50ms", "busy_200ms"} {
		t.Run(kernel, func(t *testing.T) {
			t.Parallel()
			flood := program(t, "flood")
			mustShare(t, 20, 2, func() used {
				c := newCard(t)
				p := c.limited(20, "sh", "-c", "while :; do "+flood+" count=1 kernel="+kernel+"; done")
				defer p.kill()
				p.await("done", 2, patience)
				return c.over(6 * time.Second)
			})
		})
	}
}

// It makes no difference by which door a program gets at the driver's functions.
func TestFunctionsFromTheDriverAreLimited(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"launch", "graph", "ptsz"} {
		f := flooded{arguments: []string{"path=" + path, "kernel=busy_2ms"}}
		t.Run(path, func(t *testing.T) { f.run(t, "CLIENT_DOOR=getproc") })
	}
}

// The customary variable only lowers what was granted; what it cannot mean is taken for the least.
func TestVariableOnlyLowersTheShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		variable        string
		want, tolerance float64
	}{
		{"CUDA_DEVICE_SM_LIMIT=20", 20, 2},
		{"CUDA_DEVICE_SM_LIMIT_0=20", 20, 2},
		{"CUDA_DEVICE_SM_LIMIT= 20 ", 20, 2},
		{"CUDA_DEVICE_SM_LIMIT=80", 50, 2},
		{"CUDA_DEVICE_SM_LIMIT=100", 50, 2},
		{"CUDA_DEVICE_SM_LIMIT=", 50, 2},
		{"CUDA_DEVICE_SM_LIMIT=0", 1, 0.5},
		{"CUDA_DEVICE_SM_LIMIT=-5", 1, 0.5},
		{"CUDA_DEVICE_SM_LIMIT=50%", 1, 0.5},
		{"CUDA_DEVICE_SM_LIMIT=12.5", 1, 0.5},
		{"CUDA_DEVICE_SM_LIMIT=101", 1, 0.5},
		{"CUDA_DEVICE_SM_LIMIT=abc", 1, 0.5},
	} {
		f := flooded{percent: 50, arguments: []string{"kernel=busy_1ms"}, scaled: 3 * time.Second, want: test.want, tolerance: test.tolerance}
		t.Run(test.variable, func(t *testing.T) { f.run(t, test.variable) })
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
	mustShare(t, 100, 3, func() used {
		c := newCard(t)
		command := c.limitedCommand(1, flood, "kernel=busy_1ms", "seconds=60")
		command.Args = slices.DeleteFunc(command.Args, func(argument string) bool { return argument == "--cores=1" })
		p := start(t, command)
		defer p.kill()
		p.ready()
		return c.over(2 * time.Second)
	})
}

// From nothing to the whole card: the least there is, and no limit.
func TestSmallestAndLargestShare(t *testing.T) {
	runAll(t, []flooded{
		{name: "1 percent", percent: 1, arguments: []string{"kernel=busy_1ms"}, scaled: 8 * time.Second, tolerance: 0.5},
		{name: "10 percent of tiny kernels", percent: 10, arguments: []string{"kernel=busy_20us"}, scaled: 5 * time.Second},
		{name: "90 percent", percent: 90, arguments: []string{"kernel=busy_2ms"}, scaled: 5 * time.Second},
		{name: "100 percent", percent: 100, arguments: []string{"kernel=busy_2ms"}},
	})
}

// Streams and threads of one process have one credit together.
func TestManyThreadsAndStreamsShareOneCredit(t *testing.T) {
	runAll(t, []flooded{
		{name: "16 threads", arguments: []string{"threads=16", "kernel=busy_2ms"}, scaled: 5 * time.Second},
		{name: "16 streams", arguments: []string{"streams=16", "kernel=busy_2ms"}, scaled: 5 * time.Second},
		{name: "16 threads that wait for the GPU", arguments: []string{"threads=16", "kernel=busy_2ms", "sync=each"}, scaled: 5 * time.Second},
	})
}
