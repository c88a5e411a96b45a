// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The file behind a mapping of another process: found through that process's own maps, opened without being led astray.
// A path is only a name, and a container chooses what its names stand for; so a file is opened either through the mapping
// itself (/proc/PID/map_files), or by name within the process's own root and then only if it is the mapped file.

package bpf

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapsLine is a file that a process has mapped to execute, as /proc/PID/maps tells.
type mapsLine struct {
	start, end   uint64
	major, minor uint32 // what maps says: an overlay's own on kernels since 6.8
	inode        uint64
	name         string
}

// Bounds of what is read of one process' maps. The kernel lets a process have 65 530 mappings unless it is told otherwise.
const (
	maxMapLines = 1 << 16
	maxMapBytes = 16 << 20
	maxMapped   = 1 << 12 // files mapped to execute
)

// errManyMappings comes with the mappings that were read, when there are more.
var errManyMappings = errors.New("the process has more mappings than are looked at")

// execMappings reads which files a process has mapped to execute.
func execMappings(proc string, pid int) ([]mapsLine, error) {
	f, err := os.Open(path.Join(proc, strconv.Itoa(pid), "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMaps(f)
}

func parseMaps(r io.Reader) ([]mapsLine, error) {
	var lines []mapsLine
	limited := &io.LimitedReader{R: r, N: maxMapBytes}
	scanner := bufio.NewScanner(limited)
	scanner.Buffer(make([]byte, 0, 4096), 64<<10)
	for read := 1; scanner.Scan(); read++ {
		if read > maxMapLines || len(lines) >= maxMapped || limited.N <= 0 {
			return lines, errManyMappings
		}
		line := scanner.Bytes()
		// "7f00-7f01 r-xp 00000000 fe:01 1234   /usr/lib/x": where it is not executable, nothing more is read of it.
		if space := strings.IndexByte(string(line[:min(len(line), 40)]), ' '); space < 0 || len(line) < space+4 || line[space+3] != 'x' {
			continue
		}
		if m, ok := parseMapsLine(string(line)); ok {
			lines = append(lines, m)
		}
	}
	return lines, scanner.Err()
}

func parseMapsLine(line string) (mapsLine, bool) {
	var m mapsLine
	fields := strings.SplitN(line, " ", 6)
	if len(fields) < 6 {
		return m, false
	}
	start, end, ok := strings.Cut(fields[0], "-")
	major, minor, ok2 := strings.Cut(fields[3], ":")
	var errs [5]error
	m.start, errs[0] = strconv.ParseUint(start, 16, 64)
	m.end, errs[1] = strconv.ParseUint(end, 16, 64)
	wide, err := strconv.ParseUint(major, 16, 32)
	m.major, errs[2] = uint32(wide), err
	wide, err = strconv.ParseUint(minor, 16, 32)
	m.minor, errs[3] = uint32(wide), err
	m.inode, errs[4] = strconv.ParseUint(fields[4], 10, 64)
	m.name = strings.TrimLeft(fields[5], " ")
	return m, ok && ok2 && errors.Join(errs[:]...) == nil && m.inode != 0 && strings.HasPrefix(m.name, "/")
}

const deletedSuffix = " (deleted)"

// openMapped opens the file of a mapping for reading. It never opens what is not a regular file, nor one on a file system
// that another program or machine answers for, which could keep us waiting for ever.
func openMapped(proc string, pid int, m mapsLine) (*os.File, error) {
	if m.major == 0 { // not a disk's
		kind, err := fileSystem(proc, pid, m.major, m.minor)
		switch {
		case err != nil:
			return nil, err
		case answersLate(kind):
			return nil, fmt.Errorf("it lies on a file system of type %s, which is not opened", kind)
		}
	}
	base := path.Join(proc, strconv.Itoa(pid))
	handle, err := unix.Open(fmt.Sprintf("%s/map_files/%x-%x", base, m.start, m.end), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		handle, err = openInRoot(base, m, err)
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(handle)
	var stat unix.Stat_t
	if err := unix.Fstat(handle, &stat); err != nil {
		return nil, fmt.Errorf("look at file: %w", err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is not a regular file")
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", handle), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("open file: %w", err)
	}
	return os.NewFile(uintptr(fd), m.name), nil
}

// answersLate names the file systems for which another program or machine answers, when it likes: a pod can bring both.
func answersLate(kind string) bool {
	if strings.HasPrefix(kind, "fuse") {
		return true
	}
	switch kind {
	case "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre",
		"beegfs", "gpfs", "orangefs", "ocfs2", "gfs2", "coda", "autofs":
		return true
	}
	return false
}

// openInRoot opens a mapping's file by its name, below the process's root and never above it, and only if it is the file
// that is mapped. refused is why the mapping itself could not be opened.
func openInRoot(base string, m mapsLine, refused error) (int, error) {
	if !errors.Is(refused, unix.EPERM) && !errors.Is(refused, unix.EACCES) {
		return -1, fmt.Errorf("open mapping: %w", refused)
	}
	if strings.HasSuffix(m.name, deletedSuffix) {
		return -1, fmt.Errorf("it has no name any more, and opening it through the mapping takes CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN: %w", refused)
	}
	root, err := unix.Open(base+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open the process's root: %w", err)
	}
	defer unix.Close(root)
	handle, err := unix.Openat2(root, m.name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("open in the process's root: %w", err)
	}
	var stat unix.Stat_t
	err = unix.Fstat(handle, &stat)
	device := unix.Major(stat.Dev) == m.major && unix.Minor(stat.Dev) == m.minor
	if err != nil || stat.Ino != m.inode || !device && !onOverlay(handle) { // an overlay has device numbers of several kinds
		_ = unix.Close(handle)
		return -1, errors.New("its name stands for another file by now, and opening it through the mapping takes CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN")
	}
	return handle, nil
}

// Bounds of what is read of mounts: a container can make a hundred thousand, of 16 KiB of text each.
const (
	maxMountBytes    = 1 << 20  // of another process,
	maxOwnMountBytes = 16 << 20 // and of ours, where those of all containers are
	maxMountLine     = 64 << 10
)

var errManyMounts = errors.New("the process has more mounts than are looked at, so that it is not known on what file system it lies")

// fileSystem names the type of the file system with that device number, as the process or we have it mounted; "" if
// neither has. errManyMounts: it is not among those that were read.
func fileSystem(proc string, pid int, major, minor uint32) (kind string, err error) {
	device := fmt.Sprintf("%d:%d", major, minor)
	if kind, err = mountedAs(path.Join(proc, strconv.Itoa(pid), "mountinfo"), device, maxMountBytes); kind != "" {
		return kind, nil
	}
	kind, ownErr := mountedAs(path.Join(proc, "self/mountinfo"), device, maxOwnMountBytes)
	if kind != "" {
		return kind, nil
	}
	return "", cmp.Or(err, ownErr)
}

// mountedAs finds a device in a list of mounts, of which it reads no more than so many bytes, a line at a time.
func mountedAs(name, device string, most int64) (kind string, err error) {
	file, err := os.Open(name)
	if err != nil {
		return "", nil // it has ended
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: most}
	scanner := bufio.NewScanner(limited)
	scanner.Buffer(nil, maxMountLine)
	for scanner.Scan() {
		fields := strings.SplitN(scanner.Text(), " ", 4) // number, parent, device, more
		if len(fields) < 4 || fields[2] != device {
			continue
		}
		if _, after, ok := strings.Cut(fields[3], " - "); ok {
			kind, _, _ := strings.Cut(after, " ")
			return kind, nil
		}
	}
	if scanner.Err() != nil || limited.N <= 0 {
		return "", errManyMounts
	}
	return "", nil
}
