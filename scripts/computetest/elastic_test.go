// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// phase is how long each part of a test with neighbours takes.
var phase = pick(2500*time.Millisecond, 20*time.Second)

// The neighbours of these tests: three and five slices of ten.
const (
	slicesOfA = 3
	slicesOfB = 5
)

// floodFor are the arguments of a program that keeps the card busy until it is stopped.
func floodFor(t *testing.T, options ...string) []string {
	t.Helper()
	return append([]string{program(t, "flood"), "seconds=600"}, options...)
}

// Elastic: who is alone has the whole card; a neighbour that comes has its share within a second. The fifth that is
// granted to nobody is lent by weights while both are at work: 37.5 and 62.5 percent.
func TestElasticLendsAndGivesBack(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=elastic")
	flood := floodFor(t, "kernel=busy_2ms")
	a := n.start("a", slicesOfA, flood...)
	time.Sleep(settle)
	if got := n.percent(phase, a); got[0] < 90 {
		t.Errorf("alone, A has %.1f %% of the card", got[0])
	}
	for round := range 2 {
		b := n.start("b", slicesOfB, flood...)
		time.Sleep(time.Until(b.at.Add(time.Second)))
		got := n.percent(phase, a, b)
		if got[0] > 39.5 || got[0] < 28 || got[1] < 45 {
			t.Errorf("round %d: from one second after B's start, A has %.1f %% (want 37.5), B %.1f (want 62.5)", round, got[0], got[1])
		}
		b.end()
		time.Sleep(settle)
		if got := n.percent(phase, a); got[0] < 90 {
			t.Errorf("round %d: after B has ended, A has %.1f %% of the card", round, got[0])
		}
	}
}

// Hard: what a neighbour leaves is nobody's.
func TestHardSharesAreNeverExceeded(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=hard")
	flood := floodFor(t, "kernel=busy_2ms")
	a := n.start("a", slicesOfA, flood...)
	for _, neighbour := range []bool{false, true, false, true} {
		pods := []*pod{a}
		if neighbour {
			pods = append(pods, n.start("b", slicesOfB, flood...))
		}
		if got := n.percent(settle, a); got[0] > 34 { // in a single second a little more, see the burst
			t.Errorf("neighbour %v: A has %.1f %% in the first second", neighbour, got[0])
		}
		got := n.percent(phase, pods...)
		if got[0] > 32 || got[0] < 27 {
			t.Errorf("neighbour %v: A has %.1f %%, want 30 and never above 32", neighbour, got[0])
		}
		if neighbour {
			if got[1] > 52 || got[1] < 45 {
				t.Errorf("B has %.1f %%, want 50", got[1])
			}
			pods[1].end()
		}
	}
}

// Elastic with a ceiling: what is lent ends there.
func TestCeilingBoundsWhatIsLent(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=elastic", "--compute-ceiling=60")
	a := n.start("a", slicesOfA, floodFor(t, "kernel=busy_2ms")...)
	time.Sleep(settle)
	if got := n.percent(phase, a); got[0] > 63 || got[0] < 54 {
		t.Errorf("alone under a ceiling of 60, A has %.1f %% of the card", got[0])
	}
}

// none: nobody is held to anything.
func TestNoLimitAtAll(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=none")
	a := n.start("a", 1, floodFor(t, "kernel=busy_2ms")...)
	if got := n.percent(phase, a); got[0] < 95 {
		t.Errorf("without a limit A has %.1f %% of the card", got[0])
	}
}

// Users see which rule holds: in the container's environment, in the agent's log and in its metrics.
func TestPolicyIsVisible(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode, env string
		flags     []string
	}{
		{"hard", "hard share=30", []string{"--compute-mode=hard"}},
		{"elastic", "elastic share=30 ceiling=100", nil},
		{"elastic", "elastic share=30 ceiling=60", []string{"--compute-mode=elastic", "--compute-ceiling=60"}},
		{"none", "none", []string{"--compute-mode=none"}},
	} {
		t.Run(test.env, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, newCard(t), test.flags...)
			p := n.start("seen", slicesOfA, floodFor(t, "kernel=busy_2ms")...)
			if got := p.env["VGPUD_COMPUTE"]; got != test.env {
				t.Errorf("the container's variable says %q, want %q", got, test.env)
			}
			eventually(t, patience, "the metrics name the mode", func() bool {
				return strings.Contains(strings.Join(n.series("vgpud_slice_compute", p.name), "\n"), `mode="`+test.mode+`"`)
			})
			if !strings.Contains(n.log(), test.mode) {
				t.Errorf("the agent's log does not say %s", test.mode)
			}
		})
	}
}

// The agent is killed while containers run: caps hold, nothing hangs; another one comes and nothing shakes.
func TestAgentComesAndGoes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		mode   string
		signal syscall.Signal
		most   [2]float64 // percent that A and B may have
	}{
		{"hard", syscall.SIGKILL, [2]float64{33, 63}},
		{"hard", syscall.SIGTERM, [2]float64{33, 63}},
		{"elastic", syscall.SIGKILL, [2]float64{46, 74}}, // a tenth is lent
	} {
		t.Run(fmt.Sprint(test.mode, " ", test.signal), func(t *testing.T) {
			t.Parallel()
			most := test.most
			n := newNode(t, newCard(t), "--compute-mode="+test.mode)
			a := n.start("a", slicesOfA, floodFor(t, "kernel=busy_2ms", "log=1")...)
			b := n.start("b", 6, floodFor(t, "kernel=busy_5ms", "log=1")...)
			time.Sleep(3 * settle)
			check := func(when string, d time.Duration) {
				t.Helper()
				launches := [2]int{len(a.all("launch")), len(b.all("launch"))}
				got := n.percent(d, a.and(b)...)
				t.Logf("%s: A has %.1f %%, B %.1f", when, got[0], got[1])
				if got[0] < 26 || got[0] > most[0] || got[1] < 54 || got[1] > most[1] {
					t.Errorf("want 30 to %v and 60 to %v", most[0], most[1])
				}
				a.await("launch", launches[0]+1, time.Second)
				b.await("launch", launches[1]+1, time.Second)
			}
			check("with the agent", phase)
			if err := n.agent.command.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			n.agent.wait(patience)
			check("just after the agent's end", time.Second)
			check("without an agent", 2*phase)
			n.startAgent()
			check("with another agent", phase)
		})
	}
}

func (p *pod) and(others ...*pod) []*pod { return append([]*pod{p}, others...) }

// An agent that dies while it has lent a share away: what was lent ends, what was promised stays.
func TestLoansEndWithTheAgent(t *testing.T) {
	if !longTimes {
		t.Skip("a loan outlives the agent by a minute (VGPU_TEST_LONG)")
	}
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=elastic")
	flood := floodFor(t, "kernel=busy_2ms")
	a := n.start("a", slicesOfA, flood...)
	time.Sleep(settle)
	n.agent.kill()
	time.Sleep(70 * time.Second)
	if got := n.percent(phase, a); got[0] > 33 || got[0] < 25 {
		t.Errorf("long after the agent's end A has %.1f %% of the card, its share is 30", got[0])
	}
	n.startAgent()
	eventually(t, patience, "the next agent lends again", func() bool { return n.percent(time.Second, a)[0] > 90 })
}

// Both are held exactly though their kernels differ, as are those of several programs in one container.
func TestNeighboursWithDifferentKernels(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=hard")
	a := n.start("a", slicesOfA, floodFor(t, "kernel=busy_50us")...)
	b := n.start("b", 6, floodFor(t, "kernel=busy_20ms")...)
	time.Sleep(3 * settle)
	if got := n.percent(2*phase, a, b); got[0] < 28 || got[0] > 32 || got[1] < 58 || got[1] > 62 {
		t.Errorf("A has %.1f %%, B %.1f, want 30 and 60", got[0], got[1])
	}
}

// Kernels that overlap on the streams of one program take less of the card's time than they take one by one; the agent
// measures it.
func TestOverlappingStreamsHaveTheirShare(t *testing.T) {
	t.Parallel()
	for _, streams := range []string{"streams=4", "streams=16"} {
		t.Run(streams, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, newCard(t), "--compute-mode=hard")
			p := n.start("overlap", slicesOfA, floodFor(t, "kernel=busy_2ms", "grid=54", streams)...)
			time.Sleep(4 * settle)
			if got := n.percent(2*phase, p); got[0] < 27 || got[0] > 33 {
				t.Errorf("the card was busy for it %.1f %% of the time, want 30", got[0])
			}
		})
	}
}
