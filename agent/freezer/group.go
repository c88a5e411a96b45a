// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// group.go stops, lets go on, and ends the processes of one container, by its control group: by the freezer of cgroup
// v1 where there is one, else by cgroup.freeze of v2. Groups that a container has made below its own are stopped with it.

package freezer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/source/procs"
)

// freezeGroup is the control group of a container.
type freezeGroup struct {
	// Mount is where its hierarchy is mounted below /sys/fs/cgroup; "": that is the hierarchy.
	Mount   string `json:"mount"`
	Path    string `json:"path"` // within the hierarchy
	Unified bool   `json:"unified"`
}

// groupState is whether a group's processes are stopped.
type groupState int

const (
	groupGone groupState = iota // or it has no processes
	groupThawed
	groupFrozen // or about to be
)

// Times and bounds of dealing with a group.
const (
	freezeWait   = 2 * time.Second // until all processes are stopped; one that waits for a disk takes longer
	freezePoll   = 10 * time.Millisecond
	killRounds   = 20 // a container that forks all the time
	killPause    = 10 * time.Millisecond
	mostGroups   = 1 << 10 // below a container
	mostGroupPID = 1 << 15
)

var errNoGroup = errors.New("its control group was not found")

// check refuses a group that is not a container's.
func (g freezeGroup) check() error {
	upTo, id := procs.ContainerPath(g.Path)
	if id == "" || upTo != g.Path || strings.Contains(g.Path, "..") || strings.Contains(g.Mount, "/") || strings.HasPrefix(g.Mount, ".") {
		return fmt.Errorf("%q is not the control group of a container", g.Path)
	}
	return nil
}

func (g freezeGroup) directory(root string) string {
	return filepath.Join(root, "sys/fs/cgroup", g.Mount, g.Path)
}

func (g freezeGroup) exists(root string) bool {
	_, err := os.Lstat(g.directory(root))
	return err == nil
}

// findFreezeGroup finds the group through which a container can be stopped, by one of its processes.
func findFreezeGroup(root string, pid int, start uint64, id string) (freezeGroup, error) {
	return searchGroup(root, pid, start, id, func(g freezeGroup) bool {
		_, err := os.Lstat(filepath.Join(g.directory(root), g.file()))
		return err == nil
	})
}

// findGroup finds any group of a container.
func findGroup(root string, pid int, start uint64, id string) (freezeGroup, error) {
	return searchGroup(root, pid, start, id, func(g freezeGroup) bool { return g.exists(root) })
}

// searchGroup looks at the groups that a process is in, those with a freezer of v1 first. It refuses one in which we are.
func searchGroup(root string, pid int, start uint64, id string, fits func(freezeGroup) bool) (freezeGroup, error) {
	text, err := procs.ReadGroups(root, strconv.Itoa(pid))
	if err != nil {
		return freezeGroup{}, fmt.Errorf("find control group of process %d: %w", pid, err)
	}
	if now, err := procs.New(root).StartTime(pid); err != nil || now != start {
		return freezeGroup{}, fmt.Errorf("find control group of process %d: it has ended", pid)
	}
	own, err := procs.ReadGroups(root, "self")
	if err != nil {
		return freezeGroup{}, fmt.Errorf("find own control group: %w", err)
	}
	var others []freezeGroup
	for place := range procs.Groups(text) {
		path, found := procs.ContainerPath(place.Path)
		if found != id {
			continue
		}
		for _, mount := range mountsOf(place) {
			group := freezeGroup{Mount: mount, Path: path, Unified: place.Hierarchy == "0"}
			if group.check() != nil || !fits(group) {
				continue
			}
			if group.holds(own) {
				return freezeGroup{}, errors.New("the agent itself is in its control group")
			}
			if place.Controllers == "freezer" {
				return group, nil
			}
			others = append(others, group)
		}
	}
	if len(others) == 0 {
		return freezeGroup{}, fmt.Errorf("container %s: %w, or it cannot be stopped through it", id, errNoGroup)
	}
	return others[0], nil
}

// mountsOf lists where a hierarchy is mounted below /sys/fs/cgroup.
func mountsOf(place procs.Group) []string {
	if place.Hierarchy == "0" {
		return []string{"", "unified"}
	}
	return []string{strings.TrimPrefix(place.Controllers, "name=")}
}

// holds says whether a process with these groups is in it or below it.
func (g freezeGroup) holds(groups string) bool {
	for place := range procs.Groups(groups) {
		if place.Path == g.Path || strings.HasPrefix(place.Path, g.Path+"/") {
			return true
		}
	}
	return false
}

// file is that through which the group is stopped.
func (g freezeGroup) file() string {
	if g.Unified {
		return "cgroup.freeze"
	}
	return "freezer.state"
}

// order writes what is to be.
func (g freezeGroup) order(root string, frozen bool) error {
	words := map[bool]string{true: "FROZEN", false: "THAWED"}
	if g.Unified {
		words = map[bool]string{true: "1", false: "0"}
	}
	path := filepath.Join(g.directory(root), g.file())
	file, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW, 0) // never made
	if err != nil {
		return err
	}
	_, err = file.WriteString(words[frozen])
	return errors.Join(err, file.Close())
}

// freeze stops all processes of the group. It returns when they are, or are about to be: at the time until, or after freezeWait.
func (g freezeGroup) freeze(root string, until time.Time) error {
	if err := g.check(); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	if err := g.order(root, true); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	deadline := time.Now().Add(freezeWait)
	if until.Before(deadline) {
		deadline = until
	}
	for ; !g.stopped(root) && time.Now().Before(deadline); time.Sleep(freezePoll) {
		if !g.Unified {
			_ = g.order(root, true) // v1 tries again only when told: processes that were forked meanwhile
		}
	}
	return nil
}

// stopped says whether all processes are.
func (g freezeGroup) stopped(root string) bool {
	name, want := "freezer.state", "FROZEN"
	if g.Unified {
		name, want = "cgroup.events", "frozen 1"
	}
	text, err := os.ReadFile(filepath.Join(g.directory(root), name))
	return err == nil && bytes.Contains(text, []byte(want))
}

// thaw lets them go on. A group that is gone is no fault.
func (g freezeGroup) thaw(root string) error {
	if err := g.check(); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	if err := g.order(root, false); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("thaw: %w", err)
	}
	return nil
}

// state says whether the group is to be stopped. Somebody else may have let it go on: the runtime does so when it ends a
// container.
func (g freezeGroup) state(root string) groupState {
	text, err := os.ReadFile(filepath.Join(g.directory(root), g.file()))
	if err != nil || len(g.processes(root)) == 0 {
		return groupGone
	}
	if word := strings.TrimSpace(string(text)); word == "THAWED" || word == "0" {
		return groupThawed
	}
	return groupFrozen
}

// processes lists the processes of the group and of all below it, as far as they are bounded.
func (g freezeGroup) processes(root string) (pids []int) {
	groups := 0
	_ = filepath.WalkDir(g.directory(root), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // it has gone meanwhile
		}
		if groups++; groups > mostGroups || len(pids) >= mostGroupPID {
			return filepath.SkipAll
		}
		pids = append(pids, processesIn(filepath.Join(path, "cgroup.procs"), mostGroupPID-len(pids))...)
		return nil
	})
	return pids
}

// processesIn lists the processes in a file of pids, at most so many. What cannot be read has none.
func processesIn(path string, most int) (pids []int) {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	words := bufio.NewScanner(file)
	words.Split(bufio.ScanWords)
	for len(pids) < most && words.Scan() {
		if pid, err := strconv.Atoi(words.Text()); err == nil && pid > 0 { // 0: one that we do not see
			pids = append(pids, pid)
		}
	}
	return pids
}

// pending are the signals that wait for processes of the group, by process; bit n-1 is signal n.
func (g freezeGroup) pending(root string) map[int]uint64 {
	pending := map[int]uint64{}
	for _, pid := range g.processes(root) {
		text, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "status"))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(text) {
			name, value, found := bytes.Cut(line, []byte(":"))
			if found && (string(name) == "SigPnd" || string(name) == "ShdPnd") {
				mask, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 16, 64)
				if err == nil && mask != 0 {
					pending[pid] |= mask
				}
			}
		}
	}
	return pending
}

// endSignals are those by which runtimes ask a container to end: whatever an image names as its stop signal, but those that
// processes send themselves or get from clocks and files.
var endSignals = maskOf(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGKILL, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGPWR,
	37 /* SIGRTMIN+3, of systemd */)

func maskOf(signals ...unix.Signal) (mask uint64) {
	for _, signal := range signals {
		mask |= 1 << (signal - 1)
	}
	return mask
}

// kill ends all processes of a container, and returns how many. Each is held by a descriptor while it is looked at, so that
// nobody who has its pid by then is hit. A group that is stopped is let go on, for v1 ends nobody else.
func (g freezeGroup) kill(root, id string) (killed int, err error) {
	ended := map[int]bool{}
	for range killRounds {
		pids := g.processes(root)
		if len(pids) == 0 {
			return len(ended), nil
		}
		for _, pid := range pids {
			done, killErr := killOne(root, pid, id)
			if done {
				ended[pid] = true
			}
			err = killErr
		}
		if freezer, findErr := g.freezer(root); findErr == nil {
			_ = freezer.thaw(root)
		}
		time.Sleep(killPause)
	}
	if err == nil && len(g.processes(root)) == 0 {
		return len(ended), nil
	}
	return len(ended), errors.Join(fmt.Errorf("kill container %s: processes of it are left", id), err)
}

// freezer is the group of the same path through which it would be stopped.
func (g freezeGroup) freezer(root string) (freezeGroup, error) {
	for _, other := range []freezeGroup{{"freezer", g.Path, false}, {"", g.Path, true}, {"unified", g.Path, true}} {
		if _, err := os.Lstat(filepath.Join(other.directory(root), other.file())); err == nil {
			return other, nil
		}
	}
	return freezeGroup{}, errNoGroup
}

// killOne ends a process if it is the container's. One that has ended by itself is no fault.
func killOne(root string, pid int, id string) (done bool, err error) {
	if pid == os.Getpid() {
		return false, errors.New("kill: the agent itself is in the container")
	}
	descriptor, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: not the first thread of its process
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	defer unix.Close(descriptor)
	groups, err := procs.ReadGroups(root, strconv.Itoa(pid))
	if err != nil || !isIn(groups, id) {
		return false, nil // another's by now, or nobody's
	}
	err = unix.PidfdSendSignal(descriptor, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill process %d: %w", pid, err)
	}
	return err == nil, nil
}

// isIn says whether a process with these groups is in a container.
func isIn(groups, id string) bool {
	for place := range procs.Groups(groups) {
		if _, found := procs.ContainerPath(place.Path); found == id {
			return true
		}
	}
	return false
}
