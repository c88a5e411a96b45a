// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The usage page, as something that a hostile hand wrote.

package limiter

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// DeviceUsage sums one device over the processes of an allocation.
type DeviceUsage struct {
	UUID        string
	UsedBytes   uint64            // sum of ByKind
	ByKind      [KindCount]uint64 // bytes, by Kind
	Allocations uint64            // admitted ever, processes that are gone included
	Frees       uint64
	Refusals    uint64
	Compute     ComputeUsage
}

// Process is one process that has registered since the epoch was last raised. It may be gone already: a slot is
// taken back when another process of the container needs room, and its bytes count until then. A reader that sees
// the container's processes can tell by PIDNamespace, PID and StartTime, and subtract UsedBytes.
type Process struct {
	PID          int      // in its own pid namespace
	PIDNamespace uint64   // inode of its /proc/PID/ns/pid; 0: unknown
	StartTime    uint64   // /proc/PID/stat field 22, clock ticks after boot; 0: unknown
	UsedBytes    []uint64 // by device, in the order of Usage.Devices
}

// Usage is what a usage page claims. The numbers are the container's own, bounded (no sum is above MaxBytes) but not
// true for that.
type Usage struct {
	Devices   []DeviceUsage // in the order of the limits page
	Processes []Process
}

// usageReads is how often the counters of processes that are gone are compared, so that a process whose counters move
// there while we read is counted once.
const usageReads = 5

// ReadUsage reads the usage page in dir. Errors: fs.ErrNotExist (a page is not there), ErrTampered (with a
// *TamperError that has the reason), ErrVersion. No content makes it panic, wait or return an absurd sum.
func ReadUsage(dir string) (Usage, error) {
	handle, err := openDirectory(dir)
	if err != nil {
		return Usage{}, fmt.Errorf("read usage page: %w", err)
	}
	defer handle.Close()
	u, err := readUsage(handle)
	if err != nil {
		return Usage{}, fmt.Errorf("read usage page in %s: %w", dir, err)
	}
	return u, nil
}

func readUsage(handle *os.File) (Usage, error) {
	limits, l, err := readLimitsPage(handle)
	if err != nil {
		return Usage{}, err
	}
	if l.MemoryOnly { // the usage page beside it is laid out otherwise
		return Usage{}, ErrVersion
	}
	file, err := openFile(handle, UsageFile, unix.O_RDONLY)
	if err != nil {
		return Usage{}, err
	}
	defer file.Close()
	p := newPage(usagePageBytes(l))
	head := p.bytes()[:usageHeaderBytes+len(l.Devices)*usageTotalBytes]
	again := make([]byte, len(head))
	var grown *TamperError
	for range usageReads {
		err := readWhole(file, p.bytes())
		if err != nil && (!errors.As(err, &grown) || grown.Damage != DamageGrown) {
			return Usage{}, err
		}
		if _, err := file.ReadAt(again, 0); err != nil {
			return Usage{}, &TamperError{DamageCut, UsageFile + " became shorter while it was read"}
		}
		if bytes.Equal(again, head) {
			break
		}
	}
	// A slot that became ready while we read is below the mark of now, not of then.
	copy(head[highWaterOffset:highWaterEnd], again[highWaterOffset:highWaterEnd])
	u, err := parseUsage(p, limits, l, MonotonicNow())
	if err == nil && grown != nil {
		return Usage{}, grown
	}
	return u, err
}

// highWaterEnd is where slot_high_water ends.
const highWaterEnd = highWaterOffset + 4

// usageTemp is the name that a new usage page has before it is renamed.
const usageTemp = UsageFile + ".new"

// RestoreUsage puts the usage page in dir right: size, mode and header, in place, so that the processes that have it
// mapped go on; slots within its size are kept. A process whose slot is gone registers again, with all that it holds.
// A page that is missing, or is not a regular file, is made anew; processes keep the old one.
func RestoreUsage(dir string) error {
	if err := restoreUsage(dir); err != nil {
		return fmt.Errorf("restore usage page in %s: %w", dir, err)
	}
	return nil
}

func restoreUsage(dir string) error {
	handle, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	l, err := readLimits(handle)
	if err != nil {
		return err
	}
	if l.MemoryOnly {
		return ErrVersion
	}
	file, err := openFile(handle, UsageFile, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrTampered) {
		return replaceUsage(handle, l)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	return repairFile(file, l)
}

// replaceUsage puts a new page where there is none, or none that can be one.
func replaceUsage(handle *os.File, l Limits) error {
	fd := int(handle.Fd())
	for _, name := range []string{usageTemp, UsageFile} {
		err := unix.Unlinkat(fd, name, 0)
		if errors.Is(err, unix.EISDIR) {
			err = unix.Unlinkat(fd, name, unix.AT_REMOVEDIR)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return &fs.PathError{Op: "unlink", Path: name, Err: err}
		}
	}
	if err := createFile(handle, usageTemp, 0o666, buildUsage(l).bytes()); err != nil {
		return err
	}
	if err := unix.Renameat(fd, usageTemp, fd, UsageFile); err != nil {
		return &fs.PathError{Op: "rename", Path: usageTemp, Err: err}
	}
	return syncDirectory(handle.Name())
}

// repairFile puts size, mode and header right. It writes slot_high_water only where that cannot hold: processes raise
// it at any time, and an older value written over theirs would hide a slot.
func repairFile(file *os.File, l Limits) error {
	p := newPage(usagePageBytes(l))
	size, err := fileSize(file)
	if err != nil {
		return err
	}
	if size != int64(len(p.bytes())) {
		if err := file.Truncate(int64(len(p.bytes()))); err != nil {
			return err
		}
	}
	if err := allocate(file, len(p.bytes())); err != nil {
		return err
	}
	if err := file.Chmod(0o666); err != nil {
		return err
	}
	if err := readWhole(file, p.bytes()); err != nil {
		return err
	}
	before := bytes.Clone(p.bytes()[:usageHeaderBytes])
	repairUsage(p, l)
	after := p.bytes()[:usageHeaderBytes]
	for _, part := range [][2]int{{highWaterOffset, highWaterEnd}, {highWaterEnd, usageHeaderBytes}, {0, highWaterOffset}} {
		from, to := part[0], part[1]
		if bytes.Equal(before[from:to], after[from:to]) {
			continue
		}
		if _, err := file.WriteAt(after[from:to], int64(from)); err != nil {
			return err
		}
	}
	return file.Sync()
}
