// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Finding libraries: who maps a file to execute is told by the kernel's records (perf_ring.go), looked at four times a
// second; a slow sweep of all processes' maps finds what records missed and what is mapped no longer. Where records are
// not to be had the sweep is all there is, and gets more time. A file is looked at once, whoever maps it.

package bpf

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lookEvery   = 250 * time.Millisecond
	sweepEvery  = time.Second
	sweepBudget = 300 * time.Microsecond // of each sweep, beside records: 0.03 % of a core
	scanBudget  = 10 * time.Millisecond  // of each sweep, without records
	youngFor    = 20 * time.Second       // without records, new processes are looked at in each sweep for so long
	pathsEvery  = 10 * time.Second       // libraries that are probed ahead, and device nodes
	keepUnused  = 30 * time.Second       // a library that nobody maps

	maxLibraries  = 256   // that are probed at a time
	maxByGroup    = 16    // of them first found in one control group: a container cannot take them all
	maxRemembered = 16384 // sightings
	maxRefused    = 256   // libraries that cannot be probed and are told of
	maxSaid       = 20    // lines of log about those, until what is remembered is cleared
	forgetAfter   = 10 * time.Minute
)

// sighting is how a mapping names a file: not one name for a file, but one file for a name, as long as it is not used anew.
type sighting struct {
	major, minor      uint32
	inode, generation uint64
	name              uint64 // hashed
}

// remembered is what is known of a sighting.
type remembered struct {
	file   fileID
	driver bool
	until  time.Time
}

// watcher owns the libraries. All of it runs in one goroutine.
type watcher struct {
	options   Options
	loaded    *loaded
	accept    func(placed) bool
	rings     []*ring
	libraries map[fileID]*library
	sightings map[sighting]remembered
	identify  identifier
	names     maphash.Seed
	queue     []int // pids still to be swept
	young     map[int]time.Time
	nextSweep time.Time
	nextPaths time.Time
	self      int
	said      int
	sayAgain  time.Time
}

func newWatcher(options Options, l *loaded, accept func(placed) bool) *watcher {
	return &watcher{
		options: options, loaded: l, accept: accept, libraries: map[fileID]*library{}, sightings: map[sighting]remembered{},
		identify: newIdentifier(l), names: maphash.MakeSeed(), young: map[int]time.Time{}, self: os.Getpid(),
	}
}

// start opens the records, then looks at everything once.
func (w *watcher) start() (recordsErr error) {
	cpus, err := onlineCPUs()
	if w.options.noRecords {
		cpus, err = nil, unix.EACCES
	}
	for _, cpu := range cpus {
		var r *ring
		if r, err = openRing(-1, cpu, ringPages); err != nil {
			break
		}
		w.rings = append(w.rings, r)
	}
	if err != nil {
		for _, r := range w.rings {
			r.close()
		}
		w.rings = nil
	}
	now := time.Now()
	w.lookAhead()
	w.fillQueue()
	w.sweep(now, time.Hour)
	return err
}

// look is one round.
func (w *watcher) look(now time.Time) {
	lost := false
	for _, r := range w.rings {
		lost = r.read(func(m mapped) { w.note(m, now) }) || lost
	}
	if lost {
		w.fillQueue()
		w.sweep(now, scanBudget)
	}
	if now.Before(w.nextSweep) {
		return
	}
	w.nextSweep = now.Add(sweepEvery)
	budget := sweepBudget
	if len(w.rings) == 0 {
		budget = scanBudget
		w.sweepYoung(now)
	}
	w.sweep(now, budget)
	if now.After(w.nextPaths) {
		w.nextPaths = now.Add(pathsEvery)
		w.lookAhead()
		w.forget(now)
	}
	w.closeUnused(now)
}

// note takes a record.
func (w *watcher) note(m mapped, now time.Time) {
	if m.pid == w.self {
		return
	}
	line := mapsLine{start: m.address, end: m.address + m.size, major: m.major, minor: m.minor, inode: m.inode, name: m.name}
	if _, err := w.sighted(m.pid, line, m.generation, now); errors.Is(err, os.ErrNotExist) {
		w.sweepProcess(m.pid, now) // mappings are merged and split: if it is still there, its maps tell
	}
}

// fillQueue lists the processes for the next sweep.
func (w *watcher) fillQueue() {
	entries, err := os.ReadDir(w.options.Proc)
	if err != nil {
		return
	}
	w.queue = w.queue[:0]
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			w.queue = append(w.queue, pid)
		}
	}
}

// sweep looks at the next processes for about so long. It ends a round, and begins the next.
func (w *watcher) sweep(now time.Time, budget time.Duration) {
	start := time.Now()
	for time.Since(start) < budget {
		if len(w.queue) == 0 {
			w.fillQueue()
			return
		}
		last := len(w.queue) - 1
		pid := w.queue[last]
		w.queue = w.queue[:last]
		w.sweepProcess(pid, now)
	}
}

// sweepYoung looks at processes that are new, while they are: a program loads its driver early or late.
func (w *watcher) sweepYoung(now time.Time) {
	entries, err := os.ReadDir(w.options.Proc)
	if err != nil {
		return
	}
	alive := map[int]time.Time{}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		first, known := w.young[pid]
		if !known {
			first = now
		}
		alive[pid] = first
		if now.Sub(first) < youngFor {
			w.sweepProcess(pid, now)
		}
	}
	w.young = alive
}

// sweepProcess looks at what one process has mapped now.
func (w *watcher) sweepProcess(pid int, now time.Time) {
	if pid == w.self {
		return
	}
	lines, err := execMappings(w.options.Proc, pid)
	if err != nil {
		return
	}
	has := map[fileID]bool{}
	for _, line := range lines {
		if known, err := w.sighted(pid, line, 0, now); err == nil && known.driver {
			has[known.file] = true
		}
	}
	for id, l := range w.libraries {
		if _, was := l.pids[pid]; was && !has[id] {
			delete(l.pids, pid)
		}
	}
}

// sighted takes that a process has a file mapped, and finds out what that is when it is new. os.ErrNotExist: the process
// or the mapping is gone.
func (w *watcher) sighted(pid int, line mapsLine, generation uint64, now time.Time) (remembered, error) {
	key := sighting{line.major, line.minor, line.inode, generation, maphash.String(w.names, line.name)}
	known, ok := w.sightings[key]
	if !ok || now.After(known.until) || known.driver && w.libraries[known.file] == nil {
		id, err := w.inspect(pid, line)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return remembered{}, os.ErrNotExist
		}
		known = remembered{file: id, driver: w.libraries[id] != nil, until: now.Add(forgetAfter)}
		w.sightings[key] = known
	}
	if known.driver {
		w.libraries[known.file].pids[pid] = line.name
	}
	return known, nil
}

// inspect looks at a mapped file, and probes it if it is a driver that is not probed yet. A file that cannot be opened is
// remembered as a driver that cannot be seen if it has a driver's name.
func (w *watcher) inspect(pid int, line mapsLine) (fileID, error) {
	byName := namedDriver(strings.TrimSuffix(line.name, deletedSuffix))
	seen := fileID{device: line.major<<20 | line.minor, inode: line.inode}
	file, err := openMapped(w.options.Proc, pid, line)
	if err != nil {
		if byName && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			w.refuse(pid, line.name, seen, err.Error())
		}
		return seen, err
	}
	defer file.Close()
	im, err := openImage(file)
	switch {
	case err != nil && byName:
		w.refuse(pid, line.name, seen, err.Error())
		return seen, nil
	case err != nil || !isDriver(im, strings.TrimSuffix(line.name, deletedSuffix)):
		return seen, nil
	}
	id, err := w.identify.identify(file)
	if err != nil {
		w.refuse(pid, line.name, seen, err.Error())
		return seen, nil
	}
	if w.libraries[id] == nil {
		w.probe(pid, line.name, id, file, im)
	}
	return id, nil
}

// forget keeps what is remembered small and not too old: numbers of files are used again.
func (w *watcher) forget(now time.Time) {
	if now.After(w.sayAgain) {
		w.said, w.sayAgain = 0, now.Add(forgetAfter)
	}
	for key, known := range w.sightings {
		if now.After(known.until) || len(w.sightings) > maxRemembered {
			delete(w.sightings, key)
		}
	}
}

func (w *watcher) close() error {
	var errs []error
	for _, l := range w.libraries {
		errs = append(errs, l.probes.Close())
	}
	for _, r := range w.rings {
		r.close()
	}
	w.libraries, w.rings = nil, nil
	return errors.Join(errs...)
}

// cgroupOf names the control groups of a process, as one string.
func cgroupOf(proc string, pid int) string {
	raw, _ := os.ReadFile(path.Join(proc, strconv.Itoa(pid), "cgroup"))
	return string(raw)
}

// onlineCPUs lists the processors.
func onlineCPUs() ([]int, error) {
	raw, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil { // no sysfs: they are numbered from 0
		all := make([]int, runtime.NumCPU())
		for i := range all {
			all[i] = i
		}
		return all, nil
	}
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(string(raw)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err := errors.Join(err1, err2); err != nil || b-a > 1<<16 {
			return nil, fmt.Errorf("read list of processors %q: %w", raw, err)
		}
		for cpu := a; cpu <= b; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
