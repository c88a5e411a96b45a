// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/source"
)

// initialPIDNamespace is the inode of the kernel's first pid namespace (PROC_PID_INIT_INO of linux/proc_ns.h). Who is
// in it sees every process.
const initialPIDNamespace = 0xEFFFFFFC

// Field numbers of /proc/PID/stat after the name in parentheses, which may hold anything.
const (
	statState     = 0
	statThreads   = 17
	statStartTime = 19
)

// tracker remembers where processes of containers were found, so that a tick costs one call for all of them and the whole
// table is gone through only when an unknown one appears.
type tracker struct {
	host    map[source.ProcessID]place
	visible map[uint64]bool // pid namespaces of which a process was seen
}

// place is where a process was found: its pid and its start time as we see them. The zero value: not found when it was
// looked for.
type place struct {
	pid   int
	start uint64
}

// number is how a process is known in its pid namespace, until it ends and its pid is used again.
type number struct {
	namespace uint64
	pid       int
}

// Gone implements source.Procs.
func (t *Table) Gone(ids []source.ProcessID) (map[source.ProcessID]bool, error) {
	known := map[source.ProcessID]place{}
	visible := map[uint64]bool{}
	unknown := false
	for _, id := range ids {
		if t.tracker.visible[id.PIDNamespace] {
			visible[id.PIDNamespace] = true
		}
		at, found := t.tracker.host[id]
		if found {
			known[id] = at
		}
		unknown = unknown || !found
	}
	t.tracker = tracker{host: known, visible: visible} // what nobody asks about any more is forgotten
	if unknown {
		if err := t.find(ids); err != nil {
			return nil, err
		}
	}
	var places []place
	for _, at := range known {
		if at.pid != 0 {
			places = append(places, at)
		}
	}
	living := t.living(places)
	all := t.seesEverything()
	gone := map[source.ProcessID]bool{}
	for _, id := range ids {
		at := known[id]
		switch {
		case id.PIDNamespace == 0 || id.StartTime == 0:
			// It does not say enough about itself.
		case at.pid == 0:
			gone[id] = all || visible[id.PIDNamespace]
		default:
			gone[id] = !living[at]
		}
	}
	return gone, nil
}

// find goes through the process table once and notes where the processes of ids are. A start time is shifted by the time
// namespace of who reads it; so where a process is in another one than we, it says nothing and the pid alone counts.
func (t *Table) find(ids []source.ProcessID) error {
	names, err := t.list()
	if err != nil {
		return err
	}
	wanted := map[number][]source.ProcessID{}
	for _, id := range ids {
		by := number{id.PIDNamespace, id.PID}
		wanted[by] = append(wanted[by], id)
		if _, found := t.tracker.host[id]; !found {
			t.tracker.host[id] = place{}
		}
	}
	ownClock := t.clock("self")
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		found, err := t.identify(pid)
		if err != nil {
			continue // it ended in between, or is another user's
		}
		t.tracker.visible[found.PIDNamespace] = true
		for _, id := range wanted[number{found.PIDNamespace, found.PID}] {
			if id.StartTime == found.StartTime || t.clock(name) != ownClock {
				t.tracker.host[id] = place{pid, found.StartTime}
			}
		}
	}
	return nil
}

// clock names the time namespace of a process; empty where the kernel has none.
func (t *Table) clock(name string) string {
	target, err := os.Readlink(filepath.Join(t.root, "proc", name, "ns/time"))
	if err != nil {
		return ""
	}
	return target
}

// identify says who a process is in its own pid namespace, with the start time as we see it.
func (t *Table) identify(pid int) (source.ProcessID, error) {
	namespace, err := namespaceInode(t.path(pid, "ns/pid"))
	if err != nil {
		return source.ProcessID{}, err
	}
	status, err := os.ReadFile(t.path(pid, "status"))
	if err != nil {
		return source.ProcessID{}, err
	}
	inner := pid
	for line := range bytes.Lines(status) {
		if rest, found := bytes.CutPrefix(line, []byte("NSpid:")); found {
			fields := strings.Fields(string(rest))
			if len(fields) > 0 {
				inner, err = strconv.Atoi(fields[len(fields)-1])
			}
			break
		}
	}
	if err != nil {
		return source.ProcessID{}, fmt.Errorf("parse status of process %d: %w", pid, err)
	}
	start, err := t.startTime(pid)
	return source.ProcessID{PIDNamespace: namespace, PID: inner, StartTime: start}, err
}

// startTime reads when a process began, in clock ticks after boot. A zombie counts as ended, unless
// other threads than the first still run.
func (t *Table) startTime(pid int) (uint64, error) {
	var room [maxStatBytes]byte
	text, err := readSmall(t.path(pid, "stat"), room[:])
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= statStartTime {
		return 0, fmt.Errorf("parse stat of process %d", pid)
	}
	if state := fields[statState]; state == "X" || state == "Z" && len(fields[statThreads]) == 1 && fields[statThreads] < "2" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(fields[statStartTime], 10, 64)
}

// StartTime reads when a process began, in clock ticks after boot: with the pid it names a process for good. An error means
// that it has ended.
func (t *Table) StartTime(pid int) (uint64, error) { return t.startTime(pid) }

// seesEverything says whether no process of the machine is hidden from us.
func (t *Table) seesEverything() bool {
	inode, err := namespaceInode(filepath.Join(t.root, "proc/self/ns/pid"))
	return err == nil && inode == initialPIDNamespace
}

// maxStatBytes is more than a stat file has: some fifty numbers and a short name.
const maxStatBytes = 2048

// readSmall reads a small file of the proc file system into room, and no more than fits. It is done for every process that
// matters every few seconds, and costs a fifth of what the general way does.
func readSmall(path string, room []byte) ([]byte, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		n := 0
		for n < len(room) {
			more, err := unix.Read(fd, room[n:])
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil {
				unix.Close(fd)
				return nil, &fs.PathError{Op: "read", Path: path, Err: err}
			}
			n += more
			if more == 0 || n < len(room) {
				break // such files come in one piece
			}
		}
		unix.Close(fd)
		return room[:n], nil
	}
}

func (t *Table) path(pid int, name string) string {
	return strings.TrimSuffix(t.root, "/") + "/proc/" + strconv.Itoa(pid) + "/" + name
}

// namespaceInode parses a link of the form "pid:[4026531836]".
func namespaceInode(path string) (uint64, error) {
	target, err := os.Readlink(path)
	if err != nil {
		return 0, err
	}
	number, found := strings.CutPrefix(target, "pid:[")
	if !found {
		return 0, fmt.Errorf("parse namespace %q", target)
	}
	return strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
}
