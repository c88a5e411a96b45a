// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Looking at files that are open, and in memory, several times a second for each allocation. Such calls take a microsecond
// or two; told of each, Go's scheduler would wake its monitor, whose sleeping and waking costs more than they do.

package limiter

import (
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// readNow fills buffer from a file on a tmpfs. io.EOF: the file is shorter.
func readNow(file *os.File, buffer []byte, offset int64) error {
	for {
		n, _, code := unix.RawSyscall6(unix.SYS_PREAD64, file.Fd(), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), uintptr(offset), 0, 0)
		switch {
		case code == unix.EINTR:
			continue
		case code != 0:
			return code
		case int(n) < len(buffer):
			return io.EOF
		}
		return nil
	}
}

// The names of both files, as the kernel takes them.
var (
	limitsName = [8]byte([]byte(LimitsFile + "\x00\x00"))
	usageName  = [8]byte([]byte(UsageFile + "\x00\x00\x00"))
)

// fileID is a file as its file system knows it.
type fileID struct{ device, inode uint64 }

func idOf(stat *unix.Stat_t) fileID { return fileID{uint64(stat.Dev), stat.Ino} }

// lookNow tells of which file a name in a directory is, and how many bytes that has.
func lookNow(directory *os.File, name *[8]byte) (id fileID, size uint64, err error) {
	var found unix.Statx_t
	_, _, code := unix.RawSyscall6(unix.SYS_STATX, directory.Fd(), uintptr(unsafe.Pointer(name)), unix.AT_SYMLINK_NOFOLLOW,
		unix.STATX_INO|unix.STATX_SIZE, uintptr(unsafe.Pointer(&found)), 0)
	if code != 0 {
		return fileID{}, 0, code
	}
	return fileID{unix.Mkdev(found.Dev_major, found.Dev_minor), found.Ino}, found.Size, nil
}
