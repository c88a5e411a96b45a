// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bounds of what is read of one process.
const (
	maxDescriptors = 1024
	// firstDescriptor is where descriptor 0 is in its directory: behind the directory itself and the one above.
	firstDescriptor = 2
	maxMapsBytes    = 4 << 20
)

// nvidiaMajor is the major number of the driver's device nodes, whatever they are called.
const nvidiaMajor = 195

// isGPUNode says whether a path is that of a card's node or of the memory manager's, not of the control node alone, which is
// also open in programs that only ask for versions.
func isGPUNode(path string) bool {
	rest, found := strings.CutPrefix(path, "/dev/nvidia")
	return found && (rest == "-uvm" || rest != "" && strings.Trim(rest, "0123456789") == "")
}

// controlMinor is the number of the control node, /dev/nvidiactl.
const controlMinor = 255

// hasDevice says whether a process has a device node of the driver open, among maxDescriptors from one on; next is where to go
// on, so that nobody hides one behind many others. Names of descriptors are the process' own view; so a node that was made under
// another name is told by its number.
func (t *Table) hasDevice(pid int, from int64) (has bool, next int64) {
	directory, err := os.Open(t.path(pid, "fd"))
	if err != nil {
		return false, 0
	}
	defer directory.Close()
	if _, err := directory.Seek(from, io.SeekStart); err != nil {
		return false, 0
	}
	names, err := directory.Readdirnames(maxDescriptors)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, 0
	}
	if len(names) == maxDescriptors {
		if last, err := strconv.ParseInt(names[len(names)-1], 10, 64); err == nil {
			next = last + firstDescriptor + 1
		}
	}
	for _, name := range names {
		target, err := os.Readlink(filepath.Join(directory.Name(), name))
		if err != nil || !strings.HasPrefix(target, "/") {
			continue // a socket, a pipe and the like
		}
		if isGPUNode(target) {
			return true, from
		}
		var stat unix.Statx_t
		// Without asking the file system, which may be one that never answers.
		err = unix.Statx(int(directory.Fd()), name, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &stat)
		if err == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev_major == nvidiaMajor && stat.Rdev_minor != controlMinor {
			return true, from
		}
	}
	return false, next
}

// hasLibrary says whether a library of the driver is mapped into a process. What cannot be read counts as if it were.
func (t *Table) hasLibrary(pid int) bool {
	file, err := os.Open(t.path(pid, "maps"))
	if err != nil {
		return true
	}
	defer file.Close()
	limited := &io.LimitedReader{R: file, N: maxMapsBytes}
	scanner := bufio.NewScanner(limited)
	scanner.Buffer(nil, maxMountLine)
	for scanner.Scan() {
		line := scanner.Text()
		name := line[strings.LastIndexByte(line, '/')+1:]
		if strings.HasPrefix(name, "libcuda") || strings.HasPrefix(name, "libnvidia-") || strings.HasPrefix(name, "libnvcuvid") ||
			strings.Contains(name, "_nvidia.so") {
			return true
		}
	}
	return scanner.Err() != nil || limited.N <= 0
}
