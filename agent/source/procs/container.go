// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/source"
)

// containerPattern is the ID in a component of a cgroup path: plain (cgroupfs), cri-containerd-ID.scope, crio-ID.scope,
// docker-ID.scope, or slice:cri-containerd:ID. The process that watches a container of CRI-O has a group of its own, with
// "conmon" in its name, and is the host's.
var containerPattern = regexp.MustCompile(`^(?:.*[-:])?([0-9a-f]{64})(?:\.scope)?$`)

// cgroups finds the inodes of control groups. Processes are told apart by that of the memory controller's hierarchy, or of
// the one hierarchy where there is but one; so do the probes.
type cgroups struct {
	root    string // of the hierarchy
	unified bool
	inodes  map[string]uint64 // by path; emptied when it has grown
}

const mostInodes = 1 << 12

func newCgroups(root string) *cgroups {
	mount := filepath.Join(root, "sys/fs/cgroup")
	var fileSystem unix.Statfs_t
	if err := unix.Statfs(mount, &fileSystem); err == nil && fileSystem.Type == unix.CGROUP2_SUPER_MAGIC {
		return &cgroups{root: mount, unified: true, inodes: map[string]uint64{}}
	}
	return &cgroups{root: filepath.Join(mount, "memory"), inodes: map[string]uint64{}}
}

// inode of the control group that a process' cgroup file names; 0 if it cannot be told.
func (c *cgroups) inode(text string) uint64 {
	path := ""
	for group := range Groups(text) {
		if c.unified && group.Hierarchy == "0" || !c.unified && strings.Contains(","+group.Controllers+",", ",memory,") {
			path = group.Path
		}
	}
	if path == "" || strings.Contains(path, "..") {
		return 0
	}
	if inode, known := c.inodes[path]; known {
		return inode
	}
	info, err := os.Lstat(filepath.Join(c.root, path))
	if err != nil {
		return 0
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	if len(c.inodes) >= mostInodes {
		clear(c.inodes)
	}
	c.inodes[path] = stat.Ino
	return stat.Ino
}

// containerOf reads the container of a process; the zero value but for CgroupID: it is the host's.
func (t *Table) containerOf(pid int, groups *cgroups) (source.Container, error) {
	text, err := readGroups(t.path(pid, "cgroup"))
	if err != nil {
		return source.Container{}, fmt.Errorf("find container of process %d: %w", pid, err)
	}
	container := parseContainer(text)
	container.CgroupID = groups.inode(text)
	return container, nil
}

// ContainerID is the ID of the container that a process of root/proc lives in; empty: it is the host's.
func ContainerID(root string, pid int) (string, error) {
	container, err := New(root).containerOf(pid, &cgroups{})
	return container.ID, err
}

// containerIn takes the first line that names a container, from the root down, so that groups which a container makes below
// its own are not taken for the runtime's word. It returns the path of the container's group, and the container's ID.
func containerIn(text string) (path, id string) {
	for group := range Groups(text) {
		if path, id := ContainerPath(group.Path); id != "" {
			return path, id
		}
	}
	return "", ""
}

func parseContainer(text string) source.Container {
	path, id := containerIn(text)
	if id == "" {
		return source.Container{}
	}
	return source.Container{ID: id, PodUID: parsePath(path)}
}

// ContainerPath cuts a cgroup path after the first component that names a container, and returns both; empty where there is
// none.
func ContainerPath(path string) (upTo, id string) {
	if !strings.HasPrefix(path, "/") {
		return "", ""
	}
	end := 0
	for component := range strings.SplitSeq(path, "/") {
		end += len(component) + 1
		if strings.Contains(component, "conmon") {
			return "", ""
		}
		if match := containerPattern.FindStringSubmatch(component); match != nil {
			return path[:end-1], match[1]
		}
	}
	return "", ""
}
