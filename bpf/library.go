// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The libraries that are known: how one comes to be probed or refused, and when its probes go.

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// library is a file that is the driver's, probed or not.
type library struct {
	probes    attachment     // of rare calls, see function.rare; nil: it cannot be probed
	often     often          // probes of the others
	partial   string         // what of it cannot be seen
	reason    string         // why it cannot be probed
	pids      map[int]string // who has it mapped, by what name; maxUsers at most, see use
	group     string         // where it was found first
	ahead     bool           // named by us, kept while that name is its
	unused    time.Time
	functions int
	stepped   int // of those left out, as they would be single-stepped
}

// probe attaches to a driver's library.
func (w *watcher) probe(pid int, name string, id fileID, file *os.File, im *image) {
	d, err := place(im)
	if err != nil {
		w.refuse(pid, name, id, err.Error())
		return
	}
	group := cgroupOf(w.options.Proc, pid)
	attached, byGroup := 0, 0
	for _, l := range w.libraries {
		if l.probes != nil {
			attached++
			if l.group == group && pid != 0 {
				byGroup++
			}
		}
	}
	if attached >= maxLibraries || byGroup >= maxByGroup {
		w.refuse(pid, name, id, fmt.Sprintf("too many files are probed: %d of %d, %d of %d of this container", attached, maxLibraries, byGroup, maxByGroup))
		return
	}
	places := slices.DeleteFunc(distinct(d.functions), func(p placed) bool { return !w.accept(p) })
	if len(places) == 0 {
		w.refuse(pid, name, id, "every probe in it would be single-stepped, which costs too much here")
		return
	}
	l := &library{pids: map[int]string{}, group: group, functions: len(places)}
	if err := w.attach(l, file, places); err != nil {
		w.refuse(pid, name, id, firstLine(err))
		return
	}
	for _, p := range d.functions {
		if !p.emulated && !w.accept(p) {
			l.stepped++
		}
	}
	if len(d.lacking) > 0 {
		l.partial = "it does not export " + strings.Join(d.lacking, ", ") + ": such calls are not seen"
	}
	w.add(pid, name, id, l)
	w.options.Log.Info("library is probed", "path", name, "pid", pid, "functions", l.functions, "left_out", l.stepped)
}

// refuse notes a driver that cannot be probed. A container can map as many as it likes: what is kept and said is bounded.
func (w *watcher) refuse(pid int, name string, id fileID, reason string) {
	if l := w.libraries[id]; l != nil {
		l.use(pid, name)
		return
	}
	refused := 0
	for _, l := range w.libraries {
		if l.probes == nil {
			refused++
		}
	}
	if refused >= maxRefused {
		return
	}
	w.add(pid, name, id, &library{reason: reason, pids: map[int]string{}})
	if w.said++; w.said <= maxSaid {
		w.options.Log.Warn("library cannot be probed", "path", name, "pid", pid, "reason", reason)
	}
}

func (w *watcher) add(pid int, name string, id fileID, l *library) {
	l.use(pid, name)
	w.libraries[id] = l
}

// use notes that a process has it mapped; 0: nobody yet. Beyond maxUsers nobody is noted: once those have ended, sweeps find
// who is left.
func (l *library) use(pid int, name string) {
	if _, known := l.pids[pid]; pid != 0 && (known || len(l.pids) < maxUsers) {
		l.pids[pid] = name
	}
}

// closeUnused detaches from libraries that nobody has mapped for a while, and that a whole round of sweeps has not found
// since. The kernel keeps probes in a file that has no
// name any more, so a library that was replaced is seen as long as somebody uses it.
func (w *watcher) closeUnused(now time.Time) {
	var unused []*library
	for id, l := range w.libraries {
		looked := 0
		for pid := range l.pids { // in no order
			if looked++; looked > usersByLook {
				break
			}
			if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				delete(l.pids, pid)
			}
		}
		switch {
		case len(l.pids) > 0 || l.ahead:
			l.unused = time.Time{}
		case l.unused.IsZero():
			l.unused = now
		case now.Sub(l.unused) > w.options.keepUnused():
			if !w.swept.After(l.unused) { // children of a fork have mapped what nobody told
				w.hurry = true
				continue
			}
			unused = append(unused, l)
			delete(w.libraries, id)
		}
	}
	if err := closeAll(unused); err != nil {
		w.options.Log.Warn("detaching failed", "error", err)
	}
}

// unobservable lists the libraries in use that cannot be probed, or not all of them, by path.
func (w *watcher) unobservable() (list []Unobservable) {
	for _, l := range w.libraries {
		if reason := cmp.Or(l.reason, l.partial); reason != "" && len(l.pids) > 0 {
			first := slices.Min(slices.Collect(maps.Keys(l.pids)))
			list = append(list, Unobservable{Path: l.pids[first], PID: first, Processes: len(l.pids), Partial: l.probes != nil, Reason: reason})
		}
	}
	slices.SortFunc(list, func(a, b Unobservable) int { return cmp.Or(strings.Compare(a.Path, b.Path), a.PID-b.PID) })
	return list
}

// trace tells which probed libraries whom has mapped.
func (w *watcher) trace() map[int][]fileID {
	if !w.options.trace {
		return nil
	}
	traced := map[int][]fileID{}
	for id, l := range w.libraries {
		if l.probes == nil {
			continue
		}
		for pid := range l.pids {
			traced[pid] = append(traced[pid], id)
		}
		if l.ahead {
			traced[0] = append(traced[0], id)
		}
	}
	return traced
}
