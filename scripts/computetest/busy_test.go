// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What is made of a program that got less than its share: that is vgpud's fault, or the machine's. The load says little of
// that, as nearly all that runs here sleeps nearly all the time. What says it is how long the programs' threads, which
// wanted to run, waited for a processor.

package computetest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

const (
	// tries is how often a share is measured on a machine that is too busy to have it used.
	tries = 3
	// busyMachine is the percentage of the time from which on waiting for a processor may be why a share was not used.
	busyMachine = 5
)

// used is what was had of a card's time.
type used struct {
	percent float64
	waited  float64 // percent of the time that the program's thread which was worst off waited for a processor
}

// since is what was used of the whole card since an earlier mark.
func (m mark) since(earlier mark) used { return used{m.percentSince(earlier), m.waitedSince(earlier)} }

// waitedSince is used.waited.
func (m mark) waitedSince(earlier mark) float64 {
	return longestWait(earlier.waiting, m.waiting, m.at-earlier.at)
}

// longestWait is the percentage of the time between two readings that a thread waited for a processor, of the one that
// waited the longest.
func longestWait(first, last map[int]time.Duration, d time.Duration) float64 {
	var longest time.Duration
	for thread, waited := range last {
		longest = max(longest, waited-first[thread])
	}
	return 100 * float64(longest) / float64(d)
}

// waitedForProcessor is what the threads of processes have waited for a processor since they began, by thread. Threads
// that have ended meanwhile are left out, as is all on a kernel that does not count this.
func waitedForProcessor(pids []int) map[int]time.Duration {
	waited := map[int]time.Duration{}
	for _, pid := range pids {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			panic(err) // the pattern is well formed
		}
		for _, file := range files {
			var ran, waits time.Duration
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			if _, err := fmt.Sscan(string(text), &ran, &waits); err != nil {
				continue
			}
			if thread, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				waited[thread] = waits
			}
		}
	}
	return waited
}

// mustShare runs measure until what it answers is within tolerance of want, or says something of vgpud.
func mustShare(t *testing.T, want, tolerance float64, measure func() used) {
	t.Helper()
	for try := 1; ; try++ {
		got := measure()
		t.Logf("busy %.2f %% of the time, want %.4g ± %.4g", got.percent, want, tolerance)
		if judge(t, got.percent < want-tolerance, got.percent > want+tolerance, got.waited, try) {
			return
		}
	}
}

// mustBeWithin is mustShare for what cannot be measured again.
func mustBeWithin(t *testing.T, when string, got used, low, high float64) {
	t.Helper()
	t.Logf("%s: busy %.2f %% of the time, want %g to %g", when, got.percent, low, high)
	judge(t, got.percent < low, got.percent > high, got.waited, tries)
}

// judge fails the test if somebody had more than its share; or less, and not for want of a processor. Where that may be
// why, it answers false, try again, and the last time that the test cannot be judged here.
func judge(t *testing.T, less, more bool, waited float64, try int) (done bool) {
	t.Helper()
	switch {
	case more:
		t.Error("more than the share")
	case less && waited < busyMachine:
		t.Errorf("less than the share, and programs waited for a processor no more than %.1f %% of the time", waited)
	case less && try < tries:
		t.Logf("less than the share, and a program waited for a processor %.1f %% of the time: once more", waited)
		return false
	case less:
		skipInTheEnd(t, waited)
	}
	return true
}

// skipInTheEnd makes the test a skip (or, by VGPU_TEST_REQUIRE=quiet, a failure) when it is over: what else it finds is to
// be found on a busy machine, too.
func skipInTheEnd(t *testing.T, waited float64) {
	t.Helper()
	t.Logf("less than the share, on a machine that is too busy: a program waited for a processor %.1f %% of the time", waited)
	t.Cleanup(func() {
		if !t.Failed() {
			require.Need(t, "quiet", false, fmt.Sprintf("the machine is too busy: a program waited for a processor %.1f %% of the time", waited))
		}
	})
}
