// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Finding libraries: who maps a file to execute is told by the kernel's records (perf_ring.go), looked at four times a
// second; a slow sweep of all processes' maps, every few seconds, finds what records missed and what is mapped no longer.
// Where records are not to be had the sweep is all there is, and gets more time. A file is looked at once, whoever maps it.
// What containers can make of that is bounded: sweeps, and looks at new files, take a hundredth of a core each at most.

package bpf

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lookEvery   = 250 * time.Millisecond
	sweepEvery  = time.Second            // without records, or when something is to be caught up with
	sweepSeldom = 5 * time.Second        // beside records
	sweepBudget = 500 * time.Microsecond // of each sweep, beside records: 0.01 % of a core
	scanBudget  = 10 * time.Millisecond  // of each sweep, without records, or when records were lost
	startBudget = 10 * time.Second       // of the first, which is to find all there is
	youngFor    = 20 * time.Second       // without records, new processes are looked at in each sweep for so long
	pathsEvery  = 10 * time.Second       // libraries that are probed ahead, and device nodes
	keepUnused  = 30 * time.Second       // a library that nobody maps

	// Looking at files that are new gets a hundredth of a core, and at once what was not used of that of late: a program may
	// start with some hundred files, and a container can make any number.
	workShare = 0.01
	workBurst = 500 * time.Millisecond

	maxLibraries  = 256   // that are probed at a time
	maxByGroup    = 16    // of them first found in one control group: a container cannot take them all
	maxRemembered = 16384 // sightings
	maxRefused    = 256   // libraries that cannot be probed and are told of
	maxUsers      = 256   // processes that are known to have one library mapped
	usersByLook   = 64    // of them that are asked whether they are still there
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
	never     map[fileID]bool
	ahead     map[string]ahead // by path
	sightings map[sighting]remembered
	identify  identifier
	names     maphash.Seed
	queue     []int         // pids still to be swept
	began     time.Time     // when they were listed
	swept     time.Time     // when those were listed that have all been looked at
	hurry     bool          // a round of sweeps is waited for
	behind    bool          // something was left to the sweeps of a whole round
	missed    bool          // in this round too
	debt      time.Duration // by which sweeps have taken longer than they may
	work      allowance     // for files that are new
	youngNext int           // which of the young processes comes first
	young     map[int]time.Time
	nextSweep time.Time
	nextRest  time.Time
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
	w.work = allowance{left: startBudget, at: now}
	w.sweep(now, startBudget)
	w.work, w.debt = allowance{left: workBurst, at: now}, 0
	return err
}

// look is one round.
func (w *watcher) look(now time.Time) {
	w.work.refill(now)
	lost := false
	for _, r := range w.rings {
		lost = r.read(func(m mapped) { w.note(m, now) }) || lost
	}
	if lost {
		w.leave()
	}
	w.dropRewritten()
	w.restBusy(now)
	if soon := now.Add(sweepEvery); w.behind && soon.Before(w.nextSweep) {
		w.nextSweep = soon
	}
	if now.Before(w.nextSweep) {
		return
	}
	w.closeUnused(now)
	every, budget := sweepSeldom, sweepBudget
	if len(w.rings) == 0 || w.behind || w.hurry {
		every, budget = sweepEvery, scanBudget
	}
	w.nextSweep = now.Add(every)
	if len(w.rings) == 0 {
		w.sweepYoung(now)
	}
	w.sweep(now, budget)
	if now.After(w.nextPaths) {
		w.nextPaths = now.Add(pathsEvery)
		w.lookAhead()
		w.forget(now)
	}
}

// leave leaves something to the sweeps: to a whole round that begins later.
func (w *watcher) leave() { w.behind, w.missed = true, true }

// note takes a record. What there is no time for is left to the next round of sweeps.
func (w *watcher) note(m mapped, now time.Time) {
	if m.pid == w.self {
		return
	}
	line := mapsLine{start: m.address, end: m.address + m.size, major: m.major, minor: m.minor, inode: m.inode, name: m.name}
	_, err := w.sighted(m.pid, line, m.generation, now)
	if errors.Is(err, os.ErrNotExist) && w.work.left > 0 {
		start, before := time.Now(), w.work.left
		if w.sweepProcess(m.pid, now) { // mappings are merged and split: if it is still there, its maps tell
			err = nil
		}
		w.work.left = before - time.Since(start)
	}
	if err != nil {
		w.leave()
	}
}

// errNoTime says that a file is new and cannot be looked at now.
var errNoTime = errors.New("the time for new files is used up")

// sighted takes that a process has a file mapped, and finds out what that is when it is new. os.ErrNotExist: the process
// or the mapping is gone. Or the error is errNoTime.
func (w *watcher) sighted(pid int, line mapsLine, generation uint64, now time.Time) (remembered, error) {
	key := sighting{line.major, line.minor, line.inode, generation, maphash.String(w.names, line.name)}
	known, ok := w.sightings[key]
	if !ok || now.After(known.until) || known.driver && w.libraries[known.file] == nil {
		if w.work.left <= 0 {
			return remembered{}, errNoTime
		}
		start := time.Now()
		id, err := w.inspect(pid, line)
		w.work.left -= time.Since(start)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return remembered{}, os.ErrNotExist
		}
		known = remembered{file: id, driver: w.libraries[id] != nil, until: now.Add(forgetAfter)}
		w.remember(key, known)
	}
	if known.driver {
		w.libraries[known.file].use(pid, line.name)
	}
	return known, nil
}

// remember keeps a sighting; where there are too many, one goes for it.
func (w *watcher) remember(key sighting, known remembered) {
	if _, there := w.sightings[key]; !there && len(w.sightings) >= maxRemembered {
		for other := range w.sightings {
			delete(w.sightings, other)
			break
		}
	}
	w.sightings[key] = known
}

// allowance is time that may be spent: workShare of what has gone by, workBurst at most.
type allowance struct {
	left time.Duration // less than 0: the last thing took longer
	at   time.Time
}

func (a *allowance) refill(now time.Time) {
	a.left = min(workBurst, a.left+time.Duration(workShare*float64(max(0, now.Sub(a.at)))))
	a.at = now
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
	if w.libraries[id] == nil && !w.never[id] {
		w.probe(pid, line.name, id, file, im)
	}
	return id, nil
}

// forget drops what is too old: numbers of files are used again.
func (w *watcher) forget(now time.Time) {
	if now.After(w.sayAgain) {
		w.said, w.sayAgain = 0, now.Add(forgetAfter)
	}
	for key, known := range w.sightings {
		if now.After(known.until) {
			delete(w.sightings, key)
		}
	}
}

func (w *watcher) close() error {
	err := closeAll(slices.Collect(maps.Values(w.libraries)))
	for _, r := range w.rings {
		r.close()
	}
	w.libraries, w.rings = nil, nil
	return err
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
