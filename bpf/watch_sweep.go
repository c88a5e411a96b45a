// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The sweep: all processes' maps, some at a time; those of young processes sooner. See watch.go.

package bpf

import (
	"errors"
	"os"
	"strconv"
	"time"
)

// fillQueue lists the processes for the next sweep.
func (w *watcher) fillQueue() {
	entries, err := os.ReadDir(w.options.Proc)
	if err != nil {
		return
	}
	w.queue, w.began = w.queue[:0], time.Now()
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			w.queue = append(w.queue, pid)
		}
	}
}

// sweep looks at the next processes for about so long, files that are new aside, which have their own allowance. It ends a
// round, and begins the next. The time that one process takes beyond the budget is taken from sweeps that follow.
func (w *watcher) sweep(now time.Time, budget time.Duration) {
	budget, w.debt = budget-w.debt, max(0, w.debt-budget)
	if budget <= 0 {
		return
	}
	start, allowed := time.Now(), w.work.left
	taken := func() time.Duration { return time.Since(start) - (allowed - w.work.left) }
	for taken() < budget {
		if len(w.queue) == 0 {
			w.swept, w.hurry, w.behind, w.missed = w.began, false, w.missed, false
			w.fillQueue()
			return
		}
		last := len(w.queue) - 1
		pid := w.queue[last]
		w.queue = w.queue[:last]
		if !w.sweepProcess(pid, now) {
			w.missed = true
		}
	}
	w.debt = max(0, taken()-budget)
}

// sweepYoung looks at processes that are new, while they are: a program loads its driver early or late.
func (w *watcher) sweepYoung(now time.Time) {
	entries, err := os.ReadDir(w.options.Proc)
	if err != nil {
		return
	}
	alive := map[int]time.Time{}
	start, next := time.Now(), 0
	for i := range entries {
		at := (w.youngNext + i) % len(entries)
		pid, err := strconv.Atoi(entries[at].Name())
		if err != nil {
			continue
		}
		first, known := w.young[pid]
		if !known {
			first = now
		}
		alive[pid] = first
		if now.Sub(first) >= youngFor {
			continue
		}
		if time.Since(start) < scanBudget {
			w.sweepProcess(pid, now)
		} else if next == 0 {
			next = at // there is no time for it: it is the first the next time
		}
	}
	w.young, w.youngNext = alive, next
}

// sweepProcess looks at what one process has mapped now. It says whether it has seen all of that: new files are looked at for
// as long as there is an allowance, and the others the next time.
func (w *watcher) sweepProcess(pid int, now time.Time) bool {
	if pid == w.self {
		return true
	}
	lines, err := execMappings(w.options.Proc, pid)
	if err != nil && !errors.Is(err, errManyMappings) {
		return true // it is gone, or not to be seen
	}
	whole, many := true, err != nil
	has := map[fileID]bool{}
	for _, line := range lines {
		known, err := w.sighted(pid, line, 0, now)
		switch {
		case errors.Is(err, errNoTime):
			whole = false
		case err == nil && known.driver:
			has[known.file] = true
		}
	}
	if whole && !many {
		for id, l := range w.libraries {
			if _, was := l.pids[pid]; was && !has[id] {
				delete(l.pids, pid)
			}
		}
	}
	return whole
}
