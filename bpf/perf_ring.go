// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Records of files that processes map to execute, from the kernel's perf events. They cost nothing between two such
// mappings, and need CAP_PERFMON.

package bpf

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapped is one record: a process has mapped a file to execute.
type mapped struct {
	pid           int
	address, size uint64
	major, minor  uint32 // of the file, as its file system shows it
	inode         uint64
	generation    uint64
	name          string // as the process sees it
}

// ring is an open perf event with its buffer.
type ring struct {
	fd     int
	memory []byte
}

// Parts of a buffer's first page, struct perf_event_mmap_page.
const (
	ringHead = 1024
	ringTail = 1032
)

// ringPages is how much a processor's records may take until they are read: some 500 of them.
const ringPages = 16

// openRing opens records of exec mappings of one process (0: the calling thread) or processor (-1: any).
func openRing(pid, cpu, pages int) (*ring, error) {
	attr := &unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: unix.PERF_COUNT_SW_DUMMY,
		Bits:   unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv,
	}
	fd, err := unix.PerfEventOpen(attr, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open perf event: %w", err)
	}
	memory, err := unix.Mmap(fd, 0, (1+pages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("map perf events: %w", err)
	}
	return &ring{fd: fd, memory: memory}, nil
}

func (r *ring) close() {
	_ = unix.Munmap(r.memory)
	_ = unix.Close(r.fd)
}

// read hands each new record to each, and says whether the kernel had to drop some.
func (r *ring) read(each func(mapped)) (lost bool) {
	head := atomic.LoadUint64((*uint64)(unsafe.Pointer(&r.memory[ringHead])))
	tail := (*uint64)(unsafe.Pointer(&r.memory[ringTail]))
	data := r.memory[os.Getpagesize():]
	at := atomic.LoadUint64(tail)
	for at < head {
		var header [8]byte
		copyRing(header[:], data, at)
		size := uint64(binary.LittleEndian.Uint16(header[6:]))
		if size < 8 || size > head-at {
			at = head // not a record: start anew
			lost = true
			break
		}
		record := make([]byte, size)
		copyRing(record, data, at)
		at += size
		switch binary.LittleEndian.Uint32(header[:]) {
		case unix.PERF_RECORD_MMAP2:
			if m, ok := decodeMapped(record); ok {
				each(m)
			}
		case unix.PERF_RECORD_LOST:
			lost = true
		}
	}
	atomic.StoreUint64(tail, at)
	return lost
}

// copyRing copies from a position that only ever grows.
func copyRing(to, ring []byte, at uint64) {
	at %= uint64(len(ring))
	n := copy(to, ring[at:])
	copy(to[n:], ring)
}

// decodeMapped reads a PERF_RECORD_MMAP2; false for mappings without a file.
func decodeMapped(record []byte) (mapped, bool) {
	const nameAt = 72
	if len(record) <= nameAt {
		return mapped{}, false
	}
	le := binary.LittleEndian
	name, _, _ := strings.Cut(string(record[nameAt:]), "\x00")
	m := mapped{
		pid: int(int32(le.Uint32(record[8:]))), address: le.Uint64(record[16:]), size: le.Uint64(record[24:]),
		major: le.Uint32(record[40:]), minor: le.Uint32(record[44:]),
		inode: le.Uint64(record[48:]), generation: le.Uint64(record[56:]), name: name,
	}
	return m, m.inode != 0 && m.pid > 0 && strings.HasPrefix(name, "/")
}
