// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// groups.go reads in which control groups a process is.

package procs

import (
	"io"
	"iter"
	"os"
	"path/filepath"
	"strings"
)

// maxGroupsBytes bounds what is read of one cgroup file. v1 has a dozen lines, of which a container may make some long.
const maxGroupsBytes = 64 << 10

// Group is where a process is in one hierarchy.
type Group struct {
	Hierarchy   string // a number; "0": the one of v2
	Controllers string // of v1, separated by commas; a hierarchy without any has "name=" and its name
	Path        string // within the hierarchy; what a container made below its own group has any bytes
}

// ReadGroups reads root/proc/pid/cgroup, for Groups; pid may be "self". fs.ErrNotExist or ESRCH: the process is gone.
func ReadGroups(root, pid string) (string, error) {
	return readGroups(filepath.Join(root, "proc", pid, "cgroup"))
}

func readGroups(path string) (string, error) {
	var room [8 << 10]byte
	text, err := readSmall(path, room[:])
	if err != nil || len(text) < len(room) {
		return string(text), err
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err = io.ReadAll(io.LimitReader(file, maxGroupsBytes))
	return string(text), err
}

// Groups are the lines of a cgroup file, in its order. Lines that are none are left out.
func Groups(text string) iter.Seq[Group] {
	return func(yield func(Group) bool) {
		for line := range strings.Lines(text) {
			hierarchy, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			controllers, path, found := strings.Cut(rest, ":")
			if found && !yield(Group{hierarchy, controllers, path}) {
				return
			}
		}
	}
}
