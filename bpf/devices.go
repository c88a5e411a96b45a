// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The ioctls on the driver's device nodes: which numbers they have, and the tracepoint at which calls are seen.

package bpf

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// anyMinor stands for every device of a major number.
const anyMinor = 0xfffff

// driverDevices returns the numbers of the driver's devices, in the kernel's form: the majors that it has registered, and
// the nodes named after it.
func driverDevices(proc, dev string) map[uint32]bool {
	numbers := map[uint32]bool{}
	registered, _ := os.ReadFile(path.Join(proc, "devices"))
	characters, _, _ := strings.Cut(string(registered), "Block devices:")
	for line := range strings.Lines(characters) {
		if fields := strings.Fields(line); len(fields) == 2 && strings.HasPrefix(fields[1], "nvidia") {
			if major, err := strconv.ParseUint(fields[0], 10, 12); err == nil {
				numbers[uint32(major)<<20|anyMinor] = true
			}
		}
	}
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*"} {
		nodes, _ := filepath.Glob(path.Join(dev, pattern))
		for _, node := range nodes {
			var stat unix.Stat_t
			if unix.Lstat(node, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR {
				numbers[unix.Major(stat.Rdev)<<20|unix.Minor(stat.Rdev)&anyMinor] = true
			}
		}
	}
	return numbers
}

// ioctls counts them while there are devices.
type ioctls struct {
	proc, dev string
	program   *ebpf.Program
	numbers   *ebpf.Map
	known     map[uint32]bool
	event     *os.File
	link      link.Link
	err       error // of loading or attaching, which are tried once
}

// newIoctls loads the program.
func newIoctls(proc, dev string, l *loaded) *ioctls {
	i := &ioctls{proc: proc, dev: dev, numbers: l.collection.Maps[probesMapDevices]}
	i.program, i.err = l.also("ioctl")
	return i
}

// update follows the devices, and attaches when there first are some: until then, no call on the machine pays for it.
func (i *ioctls) update() error {
	if i.err != nil {
		return i.err
	}
	numbers := driverDevices(i.proc, i.dev)
	if maps.Equal(numbers, i.known) {
		return nil
	}
	for number := range i.known {
		if !numbers[number] {
			_ = i.numbers.Delete(number) // it is there, or somebody else's problem
		}
	}
	for number := range numbers {
		if err := i.numbers.Put(number, uint8(1)); err != nil {
			return fmt.Errorf("tell a device's number: %w", err)
		}
	}
	i.known = numbers
	if i.link == nil && len(numbers) > 0 {
		i.err = i.attach()
	}
	return i.err
}

func (i *ioctls) attach() error {
	id, err := tracepointID("syscalls/sys_enter_ioctl")
	if err != nil {
		return err
	}
	attr := &unix.PerfEventAttr{
		Type: unix.PERF_TYPE_TRACEPOINT, Config: id, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Sample: 1, Wakeup: 1,
	}
	fd, err := unix.PerfEventOpen(attr, -1, 0, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("open tracepoint: %w", err)
	}
	i.event = os.NewFile(uintptr(fd), "ioctls")
	i.link, err = link.AttachRawLink(link.RawLinkOptions{Target: fd, Program: i.program, Attach: ebpf.AttachPerfEvent})
	if err != nil {
		return fmt.Errorf("attach to tracepoint: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0); err != nil {
		return fmt.Errorf("enable tracepoint: %w", err)
	}
	return nil
}

func (i *ioctls) close() error {
	var errs []error
	if i.link != nil {
		errs = append(errs, i.link.Close())
	}
	if i.event != nil {
		errs = append(errs, i.event.Close())
	}
	return errors.Join(errs...)
}

// tracepointID reads a tracepoint's number, from where tracefs is mounted, or else from an instance of it that is mounted
// nowhere (which takes CAP_SYS_ADMIN and changes nothing).
func tracepointID(name string) (uint64, error) {
	for _, mount := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		if raw, err := os.ReadFile(path.Join(mount, "events", name, "id")); err == nil {
			return parseID(raw)
		}
	}
	fs, err := unix.Fsopen("tracefs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("tracefs is not mounted at /sys/kernel/tracing, and mounting it takes CAP_SYS_ADMIN: %w", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return 0, fmt.Errorf("make an instance of tracefs: %w", err)
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return 0, fmt.Errorf("make a mount of tracefs: %w", err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, path.Join("events", name, "id"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("find tracepoint %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	raw := make([]byte, 32)
	n, err := file.Read(raw)
	if err != nil {
		return 0, fmt.Errorf("read tracepoint's number: %w", err)
	}
	return parseID(raw[:n])
}

func parseID(raw []byte) (uint64, error) {
	id, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read tracepoint's number: %w", err)
	}
	return id, nil
}
