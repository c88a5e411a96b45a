// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Reading the compute books of many allocations at once. A system call for each of them, fifty times a second or even ten,
// is most of what steering costs; so the pages are mapped, and the kernel copies out of all mappings in one call. Nobody
// here touches the mappings: where a container has cut its page, the copy ends there, and nothing faults.

package limiter

import (
	"bytes"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Heads reads the compute books of many allocations at once. It is for one goroutine at a time. The zero value is ready.
type Heads struct {
	local   []unix.Iovec
	remote  []unix.RemoteIovec
	mapped  []*Steering // whose books are asked for, in the order of local
	refused bool        // the kernel does not let us (a filter of system calls): each page is read by itself
}

// mostAtOnce is how many books one call reads (IOV_MAX).
const mostAtOnce = 1024

// Read reads the books of all handles as they are now, for Stirred and for the next Meter of each. What could not be read
// in this way is read by Meter itself, which tells why.
func (h *Heads) Read(handles []*Steering) {
	h.mapped = h.mapped[:0]
	for _, s := range handles {
		s.fresh = false
		if s.seen != nil && len(s.head) > 0 && !h.refused {
			h.mapped = append(h.mapped, s)
		}
	}
	for rest := h.mapped; len(rest) > 0; {
		part := rest[:min(mostAtOnce, len(rest))]
		whole, err := h.copy(part)
		if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
			h.refused = true
			return
		}
		for _, s := range part[:whole] {
			s.fresh = true
		}
		if whole < len(part) {
			whole++ // its page was cut
		}
		rest = rest[whole:]
	}
}

// copy reads the books of so many handles, and returns how many of them came whole; it ends before the first that is cut.
func (h *Heads) copy(handles []*Steering) (whole int, err error) {
	h.local, h.remote = h.local[:0], h.remote[:0]
	for _, s := range handles {
		if len(s.glance) != len(s.head) {
			s.glance = newPage(len(s.head.bytes()))
		}
		to := s.glance.bytes()
		h.local = append(h.local, unix.Iovec{Base: &to[0], Len: uint64(len(to))})
		h.remote = append(h.remote, unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&s.seen[0])), Len: len(to)})
	}
	// Memory is copied, nothing is waited for: the scheduler need not know, and its monitor sleeps on.
	n, _, code := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(unix.Getpid()), uintptr(unsafe.Pointer(&h.local[0])), uintptr(len(h.local)),
		uintptr(unsafe.Pointer(&h.remote[0])), uintptr(len(h.remote)), 0)
	if code != 0 {
		return 0, code
	}
	for left := int(n); whole < len(handles) && left >= h.remote[whole].Len; whole++ {
		left -= h.remote[whole].Len
	}
	return whole, nil
}

// Stirred says whether anything may have happened in the compute books between the last Meter and the last Heads.Read. It
// does not see that the usage page was replaced; see Verify.
func (s *Steering) Stirred() bool {
	return !s.fresh || !bytes.Equal(s.glance.bytes(), s.head.bytes())
}

// Verify looks whether the usage page is still the one that is open. If not, the next Meter opens the new one.
func (s *Steering) Verify() {
	if s.usage == nil {
		return
	}
	var kept unix.Stat_t
	if err := unix.Fstat(int(s.usage.Fd()), &kept); err != nil || kept.Nlink == 0 { // removed, or replaced
		_ = s.forget()
	}
}

// forget closes the usage page.
func (s *Steering) forget() error {
	var errs []error
	if s.seen != nil {
		errs = append(errs, unix.Munmap(s.seen))
	}
	if s.usage != nil {
		errs = append(errs, s.usage.Close())
	}
	s.usage, s.seen, s.fresh = nil, nil, false
	return errors.Join(errs...)
}
