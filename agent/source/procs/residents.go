// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// residents.go finds the processes that the witness is about. A node has thousands, and is looked at every two seconds; so
// one that was seen is remembered by pid and start time, one of the host costs nothing more than its name in the list, and
// what is looked at more closely is bounded for each look.

package procs

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Bounds of one look, and how often things are looked at again.
const (
	maxResidents   = 1 << 12 // that are told of
	maxByContainer = 1 << 8  // of one container, beside those that are named: the oldest, so that it hides nobody else's
	metByLook      = 1 << 11 // processes that are seen for the first time, and those named
	settledByLook  = 1 << 9  // processes of containers whose namespaces are read, and those named
	verifiedByLook = 16      // processes whose start time is read although they do not matter, one after the other
	scannedByLook  = 8       // processes whose descriptors are looked at, one after the other,
	newByLook      = 32      // and new ones
	maxCommand     = 256     // bytes
	filesEvery     = 3 * time.Second
	settlesIn      = 10 * time.Second // a container's mounts are made while its first process runs already
	keysEvery      = time.Minute
	movesInBy      = time.Minute      // a runtime has mounted everything, run its hooks and moved into the container's root
	commandEvery   = 30 * time.Second // after that: a process seldom becomes another program later
)

// eitherPage is pageMount for both pages: one of them may have something else mounted over it.
var eitherPage = regexp.MustCompile(`^(.*)/([0-9A-Za-z_-]{1,39})/(?:limits|usage)(//deleted)?$`)

// Residents implements source.Residents. It is for one goroutine at a time.
type Residents struct {
	table  *Table
	files  func(key string) []File
	path   func(key string) string
	now    func() time.Duration
	groups *cgroups
	names  podNames

	known    map[int]*resident
	spaces   map[spaceID]*space
	reads    map[string]reads // of this look, by container
	missed   int              // processes that were not looked at, in this look
	met      int              // how far in the list of pids new ones were met, where there were too many
	settled  int              // and namespaces read
	verified int              // how far start times were
	scanned  int              // how far descriptors were
}

var _ source.Residents = (*Residents)(nil)

// resident is a process that was looked at.
type resident struct {
	start     uint64
	container source.Container // zero ID: the host's
	id        source.ProcessID
	otherTime bool
	chrooted  bool
	space     spaceID
	named     bool // by the caller, in this look
	devices   bool
	next      int64 // where the next look at its descriptors begins
	library   bool
	first     time.Duration // when it was first seen
	command   string
	commanded time.Duration // when command was read; 0: never
}

// spaceID is a mount namespace of one container, or of the host.
type spaceID struct {
	inode     uint64
	container string
}

// space is what is known of a mount namespace.
type space struct {
	keys     []string
	first    time.Duration // when it was first seen
	looked   time.Duration // when keys was read
	checked  time.Duration // when replaced was
	ever     bool          // it was
	replaced []source.Replaced
	used     bool // by a process of this look
}

// NewResidents returns the residents of the processes of root/proc. path tells in which directory an allocation's pages are, by
// the names that we see them under; files lists what is mounted into its container, nothing for an allocation that is not
// known. now is CLOCK_MONOTONIC.
func NewResidents(root string, path func(key string) string, files func(key string) []File, now func() time.Duration) *Residents {
	return &Residents{table: New(root), path: path, files: files, now: now, groups: newCgroups(root),
		names: podNames{directory: filepath.Join(root, "var/log/pods")}, known: map[int]*resident{}, spaces: map[spaceID]*space{}}
}

// Close gives back what is kept open.
func (r *Residents) Close() { r.table.Close() }

// Residents implements source.Residents. Beside those named it returns the processes of containers that hold an allocation.
func (r *Residents) Residents(ctx context.Context, pids []int) ([]source.Residence, error) {
	now := r.now()
	names, err := r.table.list()
	if err != nil {
		return nil, err
	}
	own := &directories{table: r.table}
	all := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			all = append(all, pid)
		}
	}
	slices.Sort(all)
	r.follow(all, pids, now)
	r.verify(all)
	matter, err := r.lookAt(all, own, now)
	if err = cmp.Or(err, ctx.Err()); err != nil {
		return nil, fmt.Errorf("look at processes: %w", err)
	}
	r.scan(matter, now)
	told := r.tell(matter, own, now)
	if r.missed > 0 { // nothing may be concluded from the absence of a process
		return told, fmt.Errorf("look at processes: %d were left out, as there are too many", r.missed)
	}
	return told, nil
}

// follow forgets who is gone and looks at who is new.
func (r *Residents) follow(all, named []int, now time.Duration) {
	for pid, process := range r.known {
		process.named = false
		if _, there := slices.BinarySearch(all, pid); !there {
			delete(r.known, pid)
		}
	}
	meet := func(pid int) {
		if process := r.meet(pid, now); process != nil {
			r.known[pid] = process
		}
	}
	for _, pid := range named {
		if _, there := slices.BinarySearch(all, pid); there && r.known[pid] == nil {
			meet(pid)
		}
	}
	r.missed = r.inTurn(all, &r.met, metByLook, func(pid int) bool { return r.known[pid] == nil }, meet)
	for _, pid := range named {
		if process := r.known[pid]; process != nil {
			process.named = true
		}
	}
}

// inTurn does something for those processes that need it, so many at most; the next time it begins with the first that was
// left out. It returns how many were.
func (r *Residents) inTurn(all []int, from *int, most int, needed func(int) bool, do func(int)) (left int) {
	begin, done := *from, 0
	for i := range all {
		at := (begin + i) % len(all)
		switch {
		case !needed(all[at]):
		case done < most:
			done++
			do(all[at])
		default:
			if left == 0 {
				*from = at
			}
			left++
		}
	}
	return left
}

// meet looks at a process for the first time; nil: it has ended meanwhile, or is not to be seen.
func (r *Residents) meet(pid int, now time.Duration) *resident {
	start, err := r.table.startTime(pid)
	if err != nil {
		return nil
	}
	container, err := r.table.containerOf(pid, r.groups)
	if err != nil {
		return nil
	}
	return &resident{start: start, container: container, library: true, first: now}
}

// verify reads whether some processes are still those that had their pids: pids are given away anew only after all others.
func (r *Residents) verify(all []int) {
	for range min(verifiedByLook, len(all)) {
		r.verified = (r.verified + 1) % len(all)
		r.still(all[r.verified])
	}
}

// still forgets a process whose pid is another's by now.
func (r *Residents) still(pid int) bool {
	process := r.known[pid]
	if process == nil {
		return false
	}
	if start, err := r.table.startTime(pid); err != nil || start != process.start {
		delete(r.known, pid)
		return false
	}
	return true
}

// lookAt finds the processes that matter, by what is mounted where they live, and brings what is known of them up to date.
func (r *Residents) lookAt(all []int, own *directories, now time.Duration) (matter []int, err error) {
	for _, s := range r.spaces {
		s.used = false
	}
	r.reads = map[string]reads{}
	settling := func(named bool) func(int) bool {
		return func(pid int) bool {
			process := r.known[pid]
			return process != nil && process.named == named && (named || process.container.ID != "") &&
				(process.space.inode == 0 || now-process.first < settlesIn)
		}
	}
	settle := func(pid int) { r.settle(pid, r.known[pid]) }
	r.inTurn(all, new(int), len(all), settling(true), settle)
	r.missed += r.inTurn(all, &r.settled, settledByLook, settling(false), settle)
	byContainer := map[string]int{}
	for _, pid := range all {
		process := r.known[pid]
		if process == nil || process.container.ID == "" && !process.named || process.space.inode == 0 {
			continue
		}
		s := r.spaces[process.space]
		if s == nil {
			s = &space{first: now}
			r.spaces[process.space] = s
		}
		s.used = true
		if s.due(now) && r.mayReadKeys(process.container.ID, s) {
			s.looked = now
			if s.keys, err = r.keysOf(pid, own); err != nil {
				return nil, err
			}
		}
		if !process.named {
			if len(s.keys) == 0 || byContainer[process.container.ID] >= maxByContainer {
				continue
			}
			byContainer[process.container.ID]++
		}
		matter = append(matter, pid)
	}
	for id, s := range r.spaces {
		if !s.used {
			delete(r.spaces, id)
		}
	}
	if len(matter) > maxResidents { // those that use a GPU come first
		slices.SortStableFunc(matter, func(a, b int) int { return -cmp.Compare(one(r.known[a].named), one(r.known[b].named)) })
		r.missed += len(matter) - maxResidents
		matter = matter[:maxResidents]
		slices.Sort(matter)
	}
	return matter, nil
}

func one(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// due says whether a namespace's keys are to be read: often while it is new, and never again once there are any.
func (s *space) due(now time.Duration) bool {
	if len(s.keys) > 0 {
		return false
	}
	return s.looked == 0 || now-s.first < settlesIn || now-s.looked >= keysEvery
}

// settle reads in which namespaces a process lives: a container's first process moves to others before it becomes what it is.
func (r *Residents) settle(pid int, process *resident) {
	process.space = spaceID{container: process.container.ID}
	name := strconv.Itoa(pid)
	target, err := os.Readlink(r.table.path(pid, "ns/mnt"))
	if err != nil {
		return
	}
	number, found := strings.CutPrefix(target, "mnt:[")
	if !found {
		return
	}
	inode, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
	if err != nil {
		return
	}
	process.space.inode = inode
	if id, err := r.table.identify(pid); err == nil {
		process.id = id
	}
	process.otherTime = r.table.clock(name) != r.table.clock("self")
	root, err := os.Readlink(r.table.path(pid, "root"))
	process.chrooted = err != nil || root != "/"
}

// keysOf finds the allocations whose pages are mounted where a process lives; either page tells. An error means that we
// cannot see our own mounts.
func (r *Residents) keysOf(pid int, own *directories) ([]string, error) {
	if err := own.read(); err != nil {
		return nil, err
	}
	mounts, err := r.table.mounts(strconv.Itoa(pid))
	if err != nil {
		return nil, nil // it has ended
	}
	return pagesIn(mounts, own, r.path, eitherPage), nil
}

// scan looks at the descriptors of some of the processes that the driver has not named: the newest, and then one after the
// other.
func (r *Residents) scan(matter []int, now time.Duration) {
	room := newByLook
	look := func(pid int) {
		process := r.known[pid]
		if room == 0 || process.named {
			return
		}
		room--
		process.devices, process.next = r.table.hasDevice(pid, process.next)
		process.library = !process.devices || r.table.hasLibrary(pid)
	}
	for _, pid := range matter {
		if now-r.known[pid].first < settlesIn {
			look(pid)
		}
	}
	room = min(room, scannedByLook)
	for range matter {
		r.scanned = (r.scanned + 1) % len(matter)
		if pid := matter[r.scanned]; now-r.known[pid].first >= settlesIn {
			look(pid)
		}
	}
}
