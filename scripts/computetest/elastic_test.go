// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// phase is how long each part of a test with neighbours takes.
var phase = pick(2*time.Second, 20*time.Second)

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
	// What B leaves for a moment is lent, too, most of all while it starts; the end-to-end test watches for longer, and holds
	// A to two points.
	const mostAtFirst, mostOfA = 55, 43
	a := n.start("a", slicesOfA, flood...)
	time.Sleep(settle)
	n.mustHave("alone", phase, a.between(95, 101))
	for range 2 {
		b := n.start("b", slicesOfB, flood...)
		time.Sleep(time.Until(b.at.Add(time.Second)))
		n.mustHave("a second after B's start", settle, a.between(28, mostAtFirst), b.between(45, 101))
		n.mustHave("from then on", phase, a.between(28, mostOfA), b.between(45, 101))
		b.end()
		time.Sleep(settle)
		n.mustHave("after B's end", phase, a.between(95, 101))
	}
}

// Hard: what a neighbour leaves is nobody's.
func TestHardSharesAreNeverExceeded(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=hard")
	flood := floodFor(t, "kernel=busy_2ms")
	a := n.start("a", slicesOfA, flood...)
	for range 2 {
		n.mustHave("alone, the first second", settle, a.between(0, 34)) // a burst more, in so short a time
		n.mustHave("alone", phase, a.between(27, 32))
		b := n.start("b", slicesOfB, flood...)
		n.mustHave("the first second with B", settle, a.between(0, 34), b.between(0, 55))
		n.mustHave("with B", phase, a.between(27, 32), b.between(45, 52))
		b.end()
	}
}

// Elastic with a ceiling: what is lent ends there.
func TestCeilingBoundsWhatIsLent(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=elastic", "--compute-ceiling=60")
	a := n.start("a", slicesOfA, floodFor(t, "kernel=busy_2ms")...)
	time.Sleep(settle)
	n.mustHave("alone under a ceiling", phase, a.between(54, 63))
}

// none: nobody is held to anything.
func TestNoLimitAtAll(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=none")
	a := n.start("a", 1, floodFor(t, "kernel=busy_2ms")...)
	n.mustHave("without a limit", phase, a.between(95, 101))
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
			if !strings.Contains(n.log(), test.env) {
				t.Errorf("the agent's log does not say %q", test.env)
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
		most   [2]float64 // percent that A and B may have, over two seconds
	}{
		{"hard", syscall.SIGKILL, [2]float64{33, 63}},
		{"hard", syscall.SIGTERM, [2]float64{33, 63}},
		{"elastic", syscall.SIGKILL, [2]float64{46, 74}}, // a tenth is lent
	} {
		t.Run(fmt.Sprint(test.mode, " ", test.signal), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, newCard(t), "--compute-mode="+test.mode)
			a := n.start("a", slicesOfA, floodFor(t, "kernel=busy_2ms", "log=1")...)
			b := n.start("b", 6, floodFor(t, "kernel=busy_5ms", "log=1")...)
			time.Sleep(3 * settle)
			check := func(when string, d time.Duration, wider float64) {
				t.Helper()
				launches := [2]int{len(a.all("launch")), len(b.all("launch"))}
				n.mustHave(when, d, a.between(27-wider, test.most[0]+wider), b.between(56-wider, test.most[1]+wider))
				a.await("launch", launches[0]+1, time.Second)
				b.await("launch", launches[1]+1, time.Second)
			}
			check("with the agent", phase, 0)
			if err := n.agent.command.Process.Signal(test.signal); err != nil {
				t.Fatal(err)
			}
			n.agent.wait(patience)
			// The scales stay as they were; whose neighbour does less, for want of a processor, has more than it should.
			const frozen = 4
			check("just after the agent's end", time.Second, frozen)
			check("without an agent", 2*phase, frozen)
			n.startAgent()
			check("with another agent", phase, 0)
		})
	}
}

// An agent that dies while it has lent a share away: what was lent ends, what was promised stays.
func TestLoansEndWithTheAgent(t *testing.T) {
	require.Need(t, "long", longTimes, "a loan outlives the agent by a minute (VGPU_TEST_LONG=1 waits for it)")
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=elastic")
	flood := floodFor(t, "kernel=busy_2ms")
	a := n.start("a", slicesOfA, flood...)
	time.Sleep(settle)
	n.agent.kill()
	time.Sleep(70 * time.Second)
	n.mustHave("long after the agent's end", phase, a.between(25, 33))
	n.startAgent()
	eventually(t, patience, "the next agent lends again", func() bool {
		shares, _ := n.percent(time.Second, a)
		return shares[0] > 90
	})
}

// Both are held exactly though their kernels differ, as are those of several programs in one container.
func TestNeighboursWithDifferentKernels(t *testing.T) {
	t.Parallel()
	n := newNode(t, newCard(t), "--compute-mode=hard")
	a := n.start("a", slicesOfA, floodFor(t, "kernel=busy_50us")...)
	b := n.start("b", 6, floodFor(t, "kernel=busy_20ms")...)
	time.Sleep(3 * settle)
	n.mustHave("side by side", 3*phase, a.between(27, 32), b.between(57, 62))
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
			n.mustHave("overlapping", 2*phase, p.between(27, 33))
		})
	}
}
