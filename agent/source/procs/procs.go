// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package procs tells which pod and container a process belongs to, from /proc/PID/cgroup: the kubelet and the
// runtimes put the pod's UID and the container's ID into the path. It knows cgroup v1 and v2, the systemd and the
// cgroupfs layout, and the spellings of containerd, CRI-O and Docker. Text from /proc is bounded and never trusted.
package procs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/vgpud/vgpud/agent/source"
)

// maxCgroupBytes bounds what is read of one cgroup file; v1 has a dozen lines.
const maxCgroupBytes = 64 << 10

// podPattern finds the pod's UID: kubepods-besteffort-pod0123_4567.slice or kubepods/burstable/pod0123-4567. Static
// pods have a UID of 32 digits without dashes.
var podPattern = regexp.MustCompile(
	`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(\.slice)?$`)

// containerPattern finds the container's ID: cri-containerd-<id>.scope, crio-<id>.scope, docker-<id>.scope,
// <slice>:cri-containerd:<id>, or the bare ID.
var containerPattern = regexp.MustCompile(`(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$`)

// Table reads the process table under a root, "/" outside tests. It is for one goroutine at a time.
type Table struct {
	root    string
	tracker tracker
}

var _ source.Procs = (*Table)(nil)

// New returns the table of the proc file system at root/proc.
func New(root string) *Table { return &Table{root: root} }

// Container implements source.Procs. The zero Container is a process of the host.
func (t *Table) Container(pid int) (source.Container, error) {
	file, err := os.Open(filepath.Join(t.root, "proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return source.Container{}, fmt.Errorf("find container of process %d: %w", pid, err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxCgroupBytes))
	if err != nil {
		return source.Container{}, fmt.Errorf("find container of process %d: %w", pid, err)
	}
	return parseCgroup(string(text)), nil
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
		container, err := t.Container(pid)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
			continue // it ended in between
		case err != nil:
			return nil, err
		}
		if container.PodUID != "" {
			pods[container.PodUID]++
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

// parseCgroup looks at every line "hierarchy:controllers:path" and takes the first that names a pod.
func parseCgroup(text string) source.Container {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		if container := parsePath(fields[2]); container.PodUID != "" {
			return container
		}
	}
	return source.Container{}
}

// parsePath reads a cgroup path from the root down, so that what a container makes below its own group is not
// taken for the kubelet's word.
func parsePath(path string) source.Container {
	var container source.Container
	for component := range strings.SplitSeq(path, "/") {
		if container.PodUID == "" {
			if match := podPattern.FindStringSubmatch(component); match != nil {
				container.PodUID = strings.ReplaceAll(match[1], "_", "-")
				continue
			}
		}
		// containerd's cgroupfs driver under systemd writes slice:prefix:id in one component.
		if slice, _, found := strings.Cut(component, ":"); found && container.PodUID == "" {
			if match := podPattern.FindStringSubmatch(slice); match != nil {
				container.PodUID = strings.ReplaceAll(match[1], "_", "-")
			}
		}
		if match := containerPattern.FindStringSubmatch(component); match != nil && container.PodUID != "" {
			container.ContainerID = match[1]
			return container
		}
	}
	return container
}
