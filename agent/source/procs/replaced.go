// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/source"
)

// File is one file of ours that is mounted into a container.
type File struct {
	ContainerPath string // where it is mounted
	HostPath      string // as we see it
}

// seen is a file as its file system knows it.
type seen struct {
	device uint64
	inode  uint64
	mount  uint64 // number of the mount through which it was seen
	mode   uint16
}

func look(directory int, path string, flags int) (seen, error) {
	var stat unix.Statx_t
	const mask = unix.STATX_TYPE | unix.STATX_INO | unix.STATX_MNT_ID
	if err := unix.Statx(directory, path, flags|unix.AT_STATX_DONT_SYNC, mask, &stat); err != nil {
		return seen{}, err
	}
	return seen{device: unix.Mkdev(stat.Dev_major, stat.Dev_minor), inode: stat.Ino, mount: stat.Mnt_id, mode: stat.Mode}, nil
}

// resolveCached is RESOLVE_CACHED of linux/openat2.h: answer from memory or not at all.
const resolveCached = 0x20

// Why a file could not be looked at.
var (
	errForeign = errors.New("lies on a file system that is not looked into")
	errUnknown = errors.New("could not be looked at")
)

// replaced compares what a process sees where files were mounted with these files. A file of ours that was removed since, or
// made anew beside the running container, is still ours. What cannot be told is not reported.
func (t *Table) replaced(pid int, files []File, own *directories) []source.Replaced {
	root, err := unix.Open(t.path(pid, "root"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(root)
	view := &view{table: t, pid: pid, root: root}
	var found []source.Replaced
	for _, file := range files {
		there, err := view.open(file.ContainerPath)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
			found = append(found, source.Replaced{Path: file.ContainerPath, Reason: "there is no file"})
			continue
		case errors.Is(err, errForeign):
			found = append(found, source.Replaced{Path: file.ContainerPath, Reason: err.Error()})
			continue
		case err != nil:
			continue
		}
		ours, err := look(unix.AT_FDCWD, file.HostPath, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && ours.device == there.device && ours.inode == there.inode {
			continue
		}
		if reason := view.stranger(there, file, own); reason != "" {
			found = append(found, source.Replaced{Path: file.ContainerPath, Reason: reason})
		}
	}
	return found
}

// isOutside says whether a process has our files mounted below the root that it is to move into, and not where they are to be:
// runtimes mount first, then run hooks, which may take seconds, and move in last.
func (t *Table) isOutside(pid int, files []File, own *directories) (outside bool) {
	lines, err := t.mountLines(strconv.Itoa(pid))
	if err != nil || own.read() != nil {
		return false
	}
	for _, file := range files {
		home := own.locate(filepath.Dir(file.HostPath))
		root := filepath.Join(home.root, filepath.Base(file.HostPath))
		for _, line := range lines {
			if line.device != home.device || line.root != root {
				continue
			}
			if line.point == file.ContainerPath {
				return false
			}
			outside = outside || strings.HasSuffix(line.point, file.ContainerPath)
		}
	}
	return outside
}

// view is the file tree as one process sees it.
type view struct {
	table  *Table
	pid    int
	root   int
	mounts []mountLine // nil: not read yet
}

// open looks at a path in the process' view, without being led out of it, and without opening anything. A container can make
// a file system that never answers, so what the kernel does not know yet is looked up on local ones alone.
func (v *view) open(path string) (seen, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | resolveCached}
	relative := strings.TrimPrefix(filepath.Clean(path), "/")
	fd, err := unix.Openat2(v.root, relative, &how)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINVAL) { // not known yet, or a kernel before 5.12
		lines, readErr := v.lines()
		if readErr != nil {
			return seen{}, errUnknown
		}
		if slices.ContainsFunc(lines, func(m mountLine) bool { return below(path, m.point) && !isLocal(m.kind) }) {
			return seen{}, errForeign
		}
		how.Resolve &^= resolveCached
		fd, err = unix.Openat2(v.root, relative, &how)
	}
	if err != nil {
		return seen{}, err
	}
	defer unix.Close(fd)
	return look(fd, "", unix.AT_EMPTY_PATH)
}

// isLocal names the file systems of images, nodes and memory, whose lookups always return.
func isLocal(kind string) bool {
	switch kind {
	case "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay", "tmpfs", "ramfs", "squashfs", "erofs", "proc", "sysfs",
		"devtmpfs", "devpts", "mqueue", "cgroup", "cgroup2":
		return true
	}
	return false
}

// stranger says what is seen in the place of a file of ours; "" if that is ours after all, or cannot be told.
func (v *view) stranger(there seen, file File, own *directories) string {
	lines, err := v.lines()
	if err != nil || own.read() != nil {
		return ""
	}
	at := slices.IndexFunc(lines, func(m mountLine) bool { return m.id == there.mount })
	if at < 0 {
		return "" // the mounts have changed meanwhile
	}
	line := lines[at]
	home := own.locate(filepath.Dir(file.HostPath))
	name := filepath.Base(file.HostPath)
	if home != (location{}) && line.device == home.device &&
		(line.root == filepath.Join(home.root, name) || line.root == filepath.Join(home.root, name)+"//deleted" || line.root == "/"+name && home.root == "") {
		return ""
	}
	what := "another file"
	if there.mode&unix.S_IFMT == unix.S_IFDIR {
		what = "a directory"
	}
	const longest = 200
	return fmt.Sprintf("%s, inode %d of a file system of type %.20q, by a mount of %.*q", what, there.inode, line.kind, longest, line.root)
}

// mountLine is what is needed of a line of mountinfo.
type mountLine struct {
	mount
	id   uint64
	kind string // of the file system
}

func (v *view) lines() ([]mountLine, error) {
	if v.mounts != nil {
		return v.mounts, nil
	}
	lines, err := v.table.mountLines(strconv.Itoa(v.pid))
	v.mounts = lines
	return lines, err
}
