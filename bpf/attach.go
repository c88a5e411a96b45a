// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Attaching probes to one file, and detaching them.

package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachment is what holds probes in a file: one link, or two, or one for each probe.
type attachment []interface{ Close() error }

// Close detaches. It is the kernel's work, and waits for programs that run.
func (a attachment) Close() error {
	var errs []error
	for _, l := range a {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// attach puts probes at places of an open file.
func (l *loaded) attach(file *os.File, places []placed) (attachment, error) {
	name := fmt.Sprintf("/proc/self/fd/%d", file.Fd()) // the kernel follows it to the very file, whatever its name
	defer runtime.KeepAlive(file)
	offsets, cookies := make([]uint64, len(places)), make([]uint64, len(places))
	for i, p := range places {
		offsets[i], cookies[i] = p.offset, p.cookie()
	}
	switch l.mechanism {
	case MechanismSession:
		session, err := attachSession(l.program("session").FD(), name, offsets, cookies)
		if err != nil {
			return nil, err
		}
		return attachment{session}, nil
	case MechanismMulti:
		return l.attachMulti(name, &link.UprobeMultiOptions{Addresses: offsets, Cookies: cookies})
	}
	return l.attachSingle(name, places)
}

// attachMulti attaches the returns first: a call whose entry alone is seen would leave its note behind.
func (l *loaded) attachMulti(name string, options *link.UprobeMultiOptions) (attachment, error) {
	file, err := link.OpenExecutable(name)
	if err != nil {
		return nil, err
	}
	back, err := file.UretprobeMulti(nil, l.program("return"), options)
	if err != nil {
		return nil, fmt.Errorf("attach returns: %w", err)
	}
	entry, err := file.UprobeMulti(nil, l.program("entry"), options)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attach entries: %w", err), back.Close())
	}
	return attachment{entry, back}, nil
}

func (l *loaded) attachSingle(name string, places []placed) (attachment, error) {
	file, err := link.OpenExecutable(name)
	if err != nil {
		return nil, err
	}
	var done attachment
	for _, p := range places {
		options := &link.UprobeOptions{Address: p.offset, Cookie: p.cookie()}
		back, err := file.Uretprobe(p.name, l.program("return"), options)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach return of %s: %w", p.name, err), done.Close())
		}
		done = append(done, back)
		entry, err := file.Uprobe(p.name, l.program("entry"), options)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach %s: %w", p.name, err), done.Close())
		}
		done = append(done, entry)
	}
	return done, nil
}

// descriptor is a link that the library has no type for.
type descriptor int

// Close takes the link away.
func (d descriptor) Close() error { return unix.Close(int(d)) }

// attachSession makes a link of type uprobe_multi with an attach type of session; cilium/ebpf v0.22 loads such programs
// and cannot attach them. The structure is bpf_attr.link_create of include/uapi/linux/bpf.h.
func attachSession(program int, path string, offsets, cookies []uint64) (descriptor, error) {
	const (
		linkCreate    = 28
		uprobeSession = 57
	)
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return -1, err
	}
	attr := struct {
		program, target, attachType, flags uint32
		path, offsets                      unsafe.Pointer
		counters                           uint64
		cookies                            unsafe.Pointer
		count, uprobeFlags, pid, pad       uint32
	}{
		program: uint32(program), attachType: uprobeSession, path: unsafe.Pointer(name),
		offsets: unsafe.Pointer(unsafe.SliceData(offsets)), cookies: unsafe.Pointer(unsafe.SliceData(cookies)),
		count: uint32(len(offsets)),
	}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, linkCreate, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	runtime.KeepAlive(name)
	runtime.KeepAlive(offsets)
	runtime.KeepAlive(cookies)
	if errno != 0 {
		return -1, fmt.Errorf("attach session: %w", errno)
	}
	return descriptor(fd), nil
}
