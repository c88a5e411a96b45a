// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The shim's own memory book, driven from Go.

package limiter

/*
#include <stdlib.h>
#include "../libvgpu/core/page.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Errors of Book.Reserve.
var (
	// ErrOverLimit: the request does not fit under the limit.
	ErrOverLimit = errors.New("over the memory limit")
	// ErrNoSlot: as many processes as the page has slots hold memory already.
	ErrNoSlot = errors.New("no free process slot")
)

// Book is the memory book of one allocation as one process of its container sees it: the code that libvgpu runs, for
// tests, fuzzers and benchmarks. It maps the usage page, so it trusts the file to keep its size; the agent reads pages
// with ReadUsage instead. Methods may be called from many goroutines; Close only after the others.
type Book struct {
	book   *C.struct_vgpu_book
	limits []byte
	usage  []byte
	canary []byte // a page of its own, wiped by the kernel in a forked child
}

// OpenBook maps the pages in dir. The caller closes the book.
func OpenBook(dir string) (_ *Book, err error) {
	b := &Book{book: (*C.struct_vgpu_book)(C.calloc(1, C.sizeof_struct_vgpu_book))}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("open book in %s: %w", dir, err), b.unmap())
		}
	}()
	handle, err := openDirectory(dir)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	l, err := readLimits(handle)
	if err != nil {
		return nil, err
	}
	limitsFile, err := openFile(handle, LimitsFile, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer limitsFile.Close()
	usageFile, err := openFile(handle, UsageFile, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer usageFile.Close()
	size := usagePageBytes(l)
	if got, err := fileSize(usageFile); err != nil || got != int64(size) {
		return nil, errors.Join(err, &TamperError{damageBySize(got, size), fmt.Sprintf("usage has %d bytes, not %d", got, size)})
	}
	if b.limits, err = unix.Mmap(int(limitsFile.Fd()), 0, limitsPageBytes, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map limits page: %w", err)
	}
	if b.usage, err = unix.Mmap(int(usageFile.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map usage page: %w", err)
	}
	return b, b.open(usageFile)
}

func (b *Book) open(usageFile *os.File) error {
	code := C.vgpu_book_open(b.book, unsafe.Pointer(&b.limits[0]), C.size_t(len(b.limits)),
		unsafe.Pointer(&b.usage[0]), C.size_t(len(b.usage)))
	if code != 0 {
		return &TamperError{DamageHeader, "the usage page is not one"}
	}
	file, err := unix.FcntlInt(usageFile.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("keep usage page open: %w", err)
	}
	C.vgpu_book_use_file(b.book, C.int(file))
	canary, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map fork canary: %w", err)
	}
	b.canary = canary
	if err := unix.Madvise(canary, unix.MADV_WIPEONFORK); err == nil {
		b.book.fork_canary = (*C.uint32_t)(unsafe.Pointer(&canary[0]))
	}
	return nil
}

// Reserve asks for bytes more of the device, before the driver is asked. ErrOverLimit, ErrTampered, ErrNoSlot, or
// EINVAL for a device or kind that does not exist; nothing is reserved then.
func (b *Book) Reserve(device int, kind Kind, bytes uint64) error {
	code := C.vgpu_reserve(b.book, C.uint32_t(device), C.enum_vgpu_kind(kind), C.uint64_t(bytes))
	switch err := codeError(code); {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOMEM):
		C.vgpu_count_refusal(b.book, C.uint32_t(device))
		return ErrOverLimit
	case errors.Is(err, unix.EAGAIN):
		return ErrNoSlot
	case errors.Is(err, unix.EPROTO):
		return &TamperError{DamageHeader, "the usage page is damaged, or the allocation is frozen because it was"}
	default:
		return fmt.Errorf("reserve: %w", err)
	}
}

// Release gives bytes back that the driver has freed.
func (b *Book) Release(device int, kind Kind, bytes uint64) {
	C.vgpu_release(b.book, C.uint32_t(device), C.enum_vgpu_kind(kind), C.uint64_t(bytes))
}

// Cancel gives bytes back that were reserved and not used.
func (b *Book) Cancel(device int, kind Kind, bytes uint64) {
	C.vgpu_cancel(b.book, C.uint32_t(device), C.enum_vgpu_kind(kind), C.uint64_t(bytes))
}

// Charge books bytes that the driver took without asking, also above the limit.
func (b *Book) Charge(device int, kind Kind, bytes uint64) {
	C.vgpu_charge(b.book, C.uint32_t(device), C.enum_vgpu_kind(kind), C.uint64_t(bytes))
}

// LimitBytes is the device's limit in force.
func (b *Book) LimitBytes(device int) uint64 {
	return uint64(C.vgpu_limit_bytes(b.book, C.uint32_t(device)))
}

// UsedBytes is what all processes on the page hold of the device.
func (b *Book) UsedBytes(device int) uint64 {
	return uint64(C.vgpu_used_bytes(b.book, C.uint32_t(device)))
}

// Close gives up this process's slot and unmaps the pages. A book is closed once.
func (b *Book) Close() error {
	C.vgpu_book_close(b.book)
	return b.unmap()
}

func (b *Book) unmap() error {
	var errs []error
	for _, mapping := range [][]byte{b.limits, b.usage, b.canary} {
		if mapping != nil {
			errs = append(errs, unix.Munmap(mapping))
		}
	}
	b.limits, b.usage, b.canary = nil, nil, nil
	C.free(unsafe.Pointer(b.book))
	b.book = nil
	return errors.Join(errs...)
}
