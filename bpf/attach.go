// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Attaching probes to one file, and detaching them.

package bpf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// attachment is what holds probes in a file: one link, or links of entries and then as many of their returns.
type attachment []io.Closer

// Close detaches. It is the kernel's work, and waits for programs that run. Returns go last: see attachMulti.
func (a attachment) Close() error {
	entries := (len(a) + 1) / 2
	return errors.Join(closeAll(a[:entries]), closeAll(a[entries:]))
}

// closeAll closes at the same time: the kernel waits for grace periods at each, tens of milliseconds, and those who wait
// together wait for the same.
func closeAll[C io.Closer](all []C) error {
	if len(all) == 1 {
		return all[0].Close()
	}
	const atOnce = 64 // each takes a thread
	errs, slots := make([]error, len(all)), make(chan struct{}, atOnce)
	var closing sync.WaitGroup
	for i, one := range all {
		slots <- struct{}{}
		closing.Go(func() {
			errs[i] = one.Close()
			<-slots
		})
	}
	closing.Wait()
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
	var entries, returns attachment
	for _, p := range places {
		options := &link.UprobeOptions{Address: p.offset, Cookie: p.cookie()}
		back, err := file.Uretprobe(p.name, l.program("return"), options)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach return of %s: %w", p.name, err), closeAll(entries), closeAll(returns))
		}
		returns = append(returns, back)
		entry, err := file.Uprobe(p.name, l.program("entry"), options)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("attach %s: %w", p.name, err), closeAll(entries), closeAll(returns))
		}
		entries = append(entries, entry)
	}
	return append(entries, returns...), nil
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
