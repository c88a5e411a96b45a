// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// users.go tells whether processes run in a slice of vgpud exec. In doubt they do: a directory that stays too
// long costs some space, one that goes too early lets the next program run without a limit.

package standalone

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// scanPasses is how often the process table is read before it counts as too restless to tell.
const scanPasses = 20

// scanQuiet is how many passes in a row must meet no process that has ended, other than those of earlier passes. Such a
// one may have left a child behind that is not in the list.
const scanQuiet = 2

// userScan looks for the processes of a slice.
type userScan struct {
	proc string // the proc file system
	key  string // of the slice: what is searched for in environment and mappings
	uid  int    // whose processes can be in the slice
	// since is the start time (clock ticks, field 22 of /proc/PID/stat) from which on a process can be in the slice.
	// One that started earlier and cannot be looked into is not taken for one.
	since uint64
}

// inUse says whether a process of the slice runs. A program has the library mapped, one that is linked statically has
// the key in its environment and hands it on; one that cannot be looked into counts when it is the user's own.
func (s userScan) inUse() bool {
	judged := map[int]bool{}
	quiet := 0
	for range scanPasses {
		pids, err := s.list()
		if err != nil {
			return true
		}
		quiet++
		for _, pid := range pids {
			if judged[pid] {
				continue
			}
			judged[pid] = true
			uses, err := s.uses(pid)
			if err == nil && uses {
				return true
			}
			if err != nil {
				quiet = 0
			}
		}
		if quiet == scanQuiet {
			return false
		}
	}
	return true
}

func (s userScan) list() ([]int, error) {
	directory, err := os.Open(s.proc)
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	names, err := directory.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// uses judges one process; its error means that the process is gone, or has ended and waits for its parent.
func (s userScan) uses(pid int) (bool, error) {
	hidden := false
	for _, name := range []string{"environ", "maps"} {
		text, err := os.ReadFile(s.path(pid, name))
		switch {
		case err == nil && bytes.Contains(text, []byte(s.key)):
			return true, nil
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
			return false, err
		case err != nil:
			hidden = true
		}
	}
	if !hidden {
		return false, nil
	}
	own, err := s.isOwn(pid)
	if err != nil || !own {
		return false, err
	}
	start, err := s.startTime(pid)
	return start >= s.since, err
}

// isOwn says whether a process has the user's id in any of its roles. The owner of /proc/PID would not tell: it is root
// for a process that cannot be looked into.
func (s userScan) isOwn(pid int) (bool, error) {
	text, err := os.ReadFile(s.path(pid, "status"))
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(text)) {
		ids, found := strings.CutPrefix(line, "Uid:")
		if !found {
			continue
		}
		for id := range strings.FieldsSeq(ids) {
			if id == strconv.Itoa(s.uid) {
				return true, nil
			}
		}
	}
	return false, nil
}

func (s userScan) startTime(pid int) (uint64, error) {
	text, err := os.ReadFile(s.path(pid, "stat"))
	if err != nil {
		return 0, err
	}
	const fieldsAfterName = 19 // field 22, counted from the one behind the name
	_, behindName, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	fields := strings.Fields(behindName)
	if len(fields) <= fieldsAfterName {
		return 0, fmt.Errorf("read start time of process %d: the line is short", pid)
	}
	return strconv.ParseUint(fields[fieldsAfterName], 10, 64)
}

// birth is when a process started: clock ticks, as its time namespace counts them.
type birth struct {
	start     uint64
	namespace string // of time; empty: the kernel has none
}

// String is the form that readBirth reads.
func (b birth) String() string { return fmt.Sprintf("%d %s\n", b.start, b.namespace) }

func ownBirth() (birth, error) {
	start, err := userScan{proc: "/proc"}.startTime(os.Getpid())
	if err != nil {
		return birth{}, fmt.Errorf("look up own start time: %w", err)
	}
	namespace, err := os.Readlink("/proc/self/ns/time")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return birth{}, fmt.Errorf("look up own time namespace: %w", err)
	}
	return birth{start, namespace}, nil
}

// readBirth returns the start time that a vgpud exec wrote, 0 if it says nothing to us.
func readBirth(file *os.File) uint64 {
	text, err := io.ReadAll(io.LimitReader(file, 256))
	if err != nil {
		return 0
	}
	start, namespace, _ := strings.Cut(strings.TrimSuffix(string(text), "\n"), " ")
	ticks, err := strconv.ParseUint(start, 10, 64)
	own, ownErr := ownBirth()
	if err != nil || ownErr != nil || own.namespace != namespace {
		return 0
	}
	return ticks
}

func (s userScan) path(pid int, name string) string {
	return s.proc + "/" + strconv.Itoa(pid) + "/" + name
}
