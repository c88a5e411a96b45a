// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Reading the pages of one allocation again and again, cheaply: what is open stays open, buffers stay, and what has not
// changed is not parsed again.

package limiter

/*
#include "../libvgpu/core/page.h"
*/
import "C"

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"os"

	"golang.org/x/sys/unix"
)

// UsageReaders read the pages of many allocations, one after the other. They share their buffers.
type UsageReaders struct {
	limits, usage page // private copies
	head          []byte
	seed          maphash.Seed // unknown to those who write pages: two contents of one sum are not to be found
}

// NewUsageReaders makes what readers of one goroutine share.
func NewUsageReaders() *UsageReaders {
	return &UsageReaders{limits: newPage(limitsPageBytes), seed: maphash.MakeSeed()}
}

// UsageReader reads the pages in one directory. It has no opinion of its own: whatever is not just as it was when it was
// opened is read by ReadLimits and ReadUsage, as if for the first time. Neither it nor others of the same UsageReaders may be
// used by several goroutines at once.
type UsageReader struct {
	room       *UsageReaders
	dir        string
	handle     *os.File // of the directory; nil: nothing is kept
	limitsPage []byte   // mapped: nobody but this side can write or cut it; nil while nothing is kept
	usageFile  *os.File
	limitsID   fileID
	usageID    fileID
	limits     Limits // as they were parsed last, and the sums of what they were parsed from
	usage      Usage
	limitsSum  uint64
	usageSum   uint64
	usedSum    uint64 // of the part of the usage page that is in use,
	used       int    // which is so long, in bytes
	skipped    int    // reads in a row of that part alone
	isParsed   bool

	slow, parsed, relimited uint64 // reads that took the long way, and usage and limits pages that were parsed on the short one
}

// mostSkipped is how many reads in a row look at no more than the part of a usage page that is in use: its head, and the slots
// below its mark. The others, a hundred times as much, count for nobody; if something is there all the same, it is found late.
const mostSkipped = 8

// Open makes a reader of the pages in dir, which it opens when it is asked. The caller closes it.
func (r *UsageReaders) Open(dir string) *UsageReader { return &UsageReader{room: r, dir: dir} }

// Read reads both pages, the limits page first: faults[0] is as ReadLimits's, faults[1] as ReadUsage's. The results are shared
// with later ones: they are not to be changed. Compute books in them are of when the pages last changed.
func (r *UsageReader) Read() (limits Limits, usage Usage, faults [2]error) {
	if r.handle != nil && r.readKept() {
		return r.limits, r.usage, faults
	}
	r.slow++
	r.Close()
	limits, faults[0] = ReadLimits(r.dir)
	usage, faults[1] = ReadUsage(r.dir)
	if errors.Join(faults[:]...) == nil && r.keep() != nil {
		r.Close()
	}
	return limits, usage, faults
}

// Version changes whenever what Read tells may have.
func (r *UsageReader) Version() uint64 { return r.slow + r.parsed + r.relimited }

// keep opens what a later Read is to find.
func (r *UsageReader) keep() (err error) {
	if r.handle, err = openDirectory(r.dir); err != nil {
		return err
	}
	limits, err := openFile(r.handle, LimitsFile, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer limits.Close()
	if r.limitsPage, err = unix.Mmap(int(limits.Fd()), 0, limitsPageBytes, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return err
	}
	if r.usageFile, err = openFile(r.handle, UsageFile, unix.O_RDONLY); err != nil {
		return err
	}
	var limitsStat, usageStat unix.Stat_t
	if err := errors.Join(unix.Fstat(int(limits.Fd()), &limitsStat), unix.Fstat(int(r.usageFile.Fd()), &usageStat)); err != nil {
		return err
	}
	r.limitsID, r.usageID, r.isParsed = idOf(&limitsStat), idOf(&usageStat), false
	return nil
}

// readKept reads what is open. False: something is not as it was, or not right.
func (r *UsageReader) readKept() bool {
	if !r.isSame(&limitsName, r.limitsID, limitsPageBytes) || !r.readLimits() {
		return false
	}
	if !r.isSame(&usageName, r.usageID, usagePageBytes(r.limits)) {
		return false
	}
	if r.isParsed && r.skipped < mostSkipped {
		if r.isUsedSame() {
			r.skipped++
			return true
		}
		if !r.readUsed() {
			return false
		}
		if mark := int(markOf(r.room.usage)); usedBytesAt(len(r.limits.Devices), uint32(mark)) >= r.used { // no process lowers it
			r.skipped++
			return r.parse(mark)
		}
	}
	if !r.readUsage() {
		return false
	}
	r.skipped = 0
	sum := maphash.Bytes(r.room.seed, r.room.usage.bytes())
	if r.isParsed && sum == r.usageSum {
		return true
	}
	r.usageSum = sum
	return r.parse(slotCount)
}

// parse parses the usage page, as it was read, of which slots from some on are empty. False: something is not right.
func (r *UsageReader) parse(slots int) bool {
	if !isUsageHead(r.room.usage, r.limits) {
		return false
	}
	usage, err := parseBooks(r.room.usage, r.room.limits, r.limits, MonotonicNow(), slots)
	if err != nil {
		return false
	}
	r.used = usedBytes(r.room.usage, r.limits)
	r.usedSum = maphash.Bytes(r.room.seed, r.room.usage.bytes()[:r.used])
	r.usage, r.isParsed = usage, true
	r.parsed++
	return true
}

// isSame says whether a name is still of the file that is open, which still has its size.
func (r *UsageReader) isSame(name *[8]byte, id fileID, want int) bool {
	found, size, err := lookNow(r.handle, name)
	return err == nil && found == id && size == uint64(want)
}

// readLimits reads the limits page, which has its size. One that is being written just now takes the long way.
func (r *UsageReader) readLimits() bool {
	copy(r.room.limits.bytes(), r.limitsPage)
	hideBeat(r.room.limits) // it changes all the time, and nothing that is read from here on hangs on it
	sum := maphash.Bytes(r.room.seed, r.room.limits.bytes())
	if sum == r.limitsSum && r.isParsed {
		return true
	}
	limits, err := parseLimits(r.room.limits, limitsPageBytes)
	if err != nil || limits.MemoryOnly {
		return false
	}
	if limits.Epoch != r.limits.Epoch || len(limits.Devices) != len(r.limits.Devices) {
		r.isParsed = false // what the usage page says counts from the epoch on
	}
	r.limits, r.limitsSum = limits, sum
	r.relimited++
	return true
}

// isUsedSame reads the part of the usage page that was in use, and says whether it is as it was. Its mark is in it.
func (r *UsageReader) isUsedSame() bool {
	r.room.makeRoom(booksBytes(r.limits), 0)
	content := r.room.usage.bytes()[:r.used]
	return readNow(r.usageFile, content, 0) == nil && maphash.Bytes(r.room.seed, content) == r.usedSum
}

// readUsed reads the part of the usage page that is in use, until its head holds still, as readUsage does; the rest of the
// buffer is as if nobody had ever written there.
func (r *UsageReader) readUsed() bool {
	r.room.makeRoom(booksBytes(r.limits), usageHeaderBytes+len(r.limits.Devices)*usageTotalBytes)
	content, head := r.room.usage.bytes(), r.room.head
	for range usageReads {
		if readNow(r.usageFile, content[:len(head)], 0) != nil {
			return false
		}
		used := usedBytes(r.room.usage, r.limits)
		if errors.Join(readNow(r.usageFile, content[:used], 0), readNow(r.usageFile, head, 0)) != nil {
			return false
		}
		if bytes.Equal(head, content[:len(head)]) {
			clear(content[used:])
			return true
		}
	}
	return false
}

// markOf is the mark below which all slots are that are in use, whatever the page claims.
func markOf(p page) uint32 {
	return min(binary.NativeEndian.Uint32(p.bytes()[highWaterOffset:highWaterEnd]), slotCount)
}

// usedBytes is how much of a usage page is in use: up to its mark, whatever that claims.
func usedBytes(p page, l Limits) int {
	return usedBytesAt(len(l.Devices), markOf(p))
}

// usedBytesAt is usedBytes where the mark is so high.
func usedBytesAt(devices int, mark uint32) int {
	return int(C.vgpu_usage_slot_offset(C.uint32_t(devices), C.uint32_t(mark)))
}

// readUsage reads the usage page but for the traffic books, until its head holds still, as ReadUsage does.
func (r *UsageReader) readUsage() bool {
	devices := len(r.limits.Devices)
	r.room.makeRoom(booksBytes(r.limits), usageHeaderBytes+devices*usageTotalBytes)
	content, head := r.room.usage.bytes(), r.room.head
	for range usageReads {
		if errors.Join(readNow(r.usageFile, content, 0), readNow(r.usageFile, head, 0)) != nil {
			return false
		}
		if bytes.Equal(head, content[:len(head)]) {
			return true
		}
	}
	return false
}

// booksBytes is how much of a usage page comes before its traffic books: header, sums and slots, in whole 4096-byte pages.
func booksBytes(l Limits) int {
	return int(C.vgpu_usage_traffic_offset(C.uint32_t(len(l.Devices)), 0))
}

// makeRoom sees to it that the buffers have these sizes, in bytes; content is a multiple of 8.
func (r *UsageReaders) makeRoom(content, head int) {
	if cap(r.usage)*8 < content {
		r.usage = newPage(content)
	}
	if cap(r.head) < head {
		r.head = make([]byte, head)
	}
	r.usage, r.head = r.usage[:content/8], r.head[:head]
}

// Close closes what is open. Files that were only read do not fail to close in a way that matters. A later Read opens anew.
func (r *UsageReader) Close() {
	for _, file := range []*os.File{r.usageFile, r.handle} {
		if file != nil {
			_ = file.Close()
		}
	}
	if r.limitsPage != nil {
		_ = unix.Munmap(r.limitsPage)
	}
	r.handle, r.limitsPage, r.usageFile = nil, nil, nil
}
