// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package procs tells which pods have processes, and which processes have ended. The pod comes from /proc/PID/cgroup:
// the kubelet puts its UID into the path. Cgroup v1 and v2, the systemd and the cgroupfs layout, and the spellings of
// containerd, CRI-O and Docker are known. Text from /proc is bounded and never trusted.
package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/vgpud/vgpud/agent/source"
)

// podPattern finds the pod's UID: kubepods-besteffort-pod0123_4567.slice or kubepods/burstable/pod0123-4567. Static
// pods have a UID of 32 digits without dashes.
var podPattern = regexp.MustCompile(
	`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(\.slice)?$`)

// Table reads the process table under a root, "/" outside tests. It is for one goroutine at a time.
type Table struct {
	root    string
	tracker tracker
	lines   lifelines
}

var _ source.Procs = (*Table)(nil)

// New returns the table of the proc file system at root/proc. The caller closes it.
func New(root string) *Table { return &Table{root: root} }

// podOf looks one process up; empty for a process of the host, fs.ErrNotExist when it is gone.
func (t *Table) podOf(pid int) (string, error) {
	text, err := readGroups(t.path(pid, "cgroup"))
	if err != nil {
		return "", fmt.Errorf("find pod of process %d: %w", pid, err)
	}
	return parseCgroup(text), nil
}

// Pods implements source.Procs: one pass over the process table.
func (t *Table) Pods() (map[string]int, error) {
	names, err := t.list()
	if err != nil {
		return nil, err
	}
	pods := map[string]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		uid, err := t.podOf(pid)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
			continue // it ended in between
		case err != nil:
			return nil, err
		}
		if uid != "" {
			pods[uid]++
		}
	}
	return pods, nil
}

// list returns the names in the proc file system; processes are those that are numbers.
func (t *Table) list() ([]string, error) {
	directory, err := os.Open(filepath.Join(t.root, "proc"))
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	defer directory.Close()
	names, err := directory.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read process table: %w", err)
	}
	return names, nil
}

// parseCgroup takes the first group that names a pod.
func parseCgroup(text string) string {
	for group := range Groups(text) {
		if uid := parsePath(group.Path); uid != "" {
			return uid
		}
	}
	return ""
}

// parsePath reads a cgroup path from the root down, so that what a container makes below its own group is not
// taken for the kubelet's word.
func parsePath(path string) string {
	for component := range strings.SplitSeq(path, "/") {
		// containerd's cgroupfs driver under systemd writes slice:prefix:id in one component.
		slice, _, _ := strings.Cut(component, ":")
		if match := podPattern.FindStringSubmatch(slice); match != nil {
			return strings.ReplaceAll(match[1], "_", "-")
		}
	}
	return ""
}
