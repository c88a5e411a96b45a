// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A usage page that its container has made longer, and the file system that it fills.

package limiter

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ShrinkUsage cuts what a container has put behind the end of the usage page in dir, and tells whether there was
// something. Nothing else is touched or judged: it is for the moment in which the file system is full, and RestoreUsage
// follows. Processes do not notice: they map the page only as long as it was made. Errors as RestoreUsage.
func ShrinkUsage(dir string) (bool, error) {
	shrunk, err := shrinkUsage(dir)
	if err != nil {
		return false, fmt.Errorf("shrink usage page in %s: %w", dir, err)
	}
	return shrunk, nil
}

func shrinkUsage(dir string) (bool, error) {
	handle, err := openDirectory(dir)
	if err != nil {
		return false, err
	}
	defer handle.Close()
	l, err := readLimits(handle)
	if err != nil {
		return false, err
	}
	file, err := openFile(handle, UsageFile, unix.O_WRONLY)
	if err != nil {
		return false, err
	}
	defer file.Close()
	want := int64(usagePageBytes(l))
	size, err := fileSize(file)
	if err != nil || size <= want {
		return false, err
	}
	return true, file.Truncate(want)
}
