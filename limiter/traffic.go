// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The traffic books of an allocation, read several times a second: what its processes say that they copied, how long they
// waited, and how long samples of their operations took.

package limiter

/*
#include "../libvgpu/core/traffic.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Direction is where a copy goes.
type Direction int

// The directions.
const (
	HostToDevice   Direction = C.VGPU_HOST_TO_DEVICE
	DeviceToHost   Direction = C.VGPU_DEVICE_TO_HOST
	WithinDevice   Direction = C.VGPU_WITHIN_DEVICE
	BetweenDevices Direction = C.VGPU_BETWEEN_DEVICES // counted on both
)

const trafficBytes = C.sizeof_struct_vgpu_usage_traffic

// Directions is how many there are.
const Directions = C.VGPU_DIRECTION_COUNT

// ClassKind is what kind of work a class of operations is.
type ClassKind uint32

// The kinds.
const (
	ClassKernel       ClassKind = C.VGPU_CLASS_KERNEL
	ClassGraph        ClassKind = C.VGPU_CLASS_GRAPH
	ClassHostToDevice ClassKind = C.VGPU_CLASS_HOST_TO_DEVICE
	ClassDeviceToHost ClassKind = C.VGPU_CLASS_DEVICE_TO_HOST
	ClassDeviceCopy   ClassKind = C.VGPU_CLASS_DEVICE_COPY
)

// Count is how often something happened, ever, and how much of it there was in bytes.
type Count struct{ Calls, Bytes uint64 }

// TrafficClass is one class of operations that the container keeps. A class that comes back under its ID has begun anew.
type TrafficClass struct {
	ID         uint64 // not 0, and once in a book
	Kind       ClassKind
	Samples    uint64        // measured since the class is kept; at least 1
	Operations uint64        // that they stand for; at least Samples
	Bytes      uint64        // of sampled copies
	Time       time.Duration // what the samples took
	Recent     []time.Duration
}

// Traffic is the traffic book of one device. Its figures are the container's claims: bounded (counts to 2^60, times to 2^60
// ns), and not true for that. They go back only if somebody tampers, or the page was made anew.
type Traffic struct {
	UUID    string
	Copies  [Directions]Count // by Direction
	Stalls  uint64            // calls that waited for the GPU
	Stalled time.Duration     // and for how long
	Classes []TrafficClass
}

// TrafficReader is the handle of one allocation's traffic books. Its methods are not for use from several goroutines at
// once.
type TrafficReader struct {
	handle *os.File // of the directory
	usage  *os.File // nil: to be opened
	id     fileID
	limits Limits
	books  page // private copy
	view   *C.struct_vgpu_traffic_view
}

// OpenTraffic opens the traffic books of the pages in dir. Errors as ReadLimits; ErrVersion also for pages that have none, of
// a container that was made by an older agent. The caller closes the handle.
func OpenTraffic(dir string) (*TrafficReader, error) {
	r := &TrafficReader{view: new(C.struct_vgpu_traffic_view)}
	err := r.open(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open traffic books in %s: %w", dir, err), r.Close())
	}
	return r, nil
}

func (r *TrafficReader) open(dir string) (err error) {
	if r.handle, err = openDirectory(dir); err != nil {
		return err
	}
	if r.limits, err = readLimits(r.handle); err != nil {
		return err
	}
	if r.limits.MemoryOnly || r.limits.NoTraffic {
		return ErrVersion
	}
	r.books = newPage(len(r.limits.Devices) * trafficBytes)
	return nil
}

// Read reads the books of all devices, in the order of the limits page, with one read of the file. Errors: fs.ErrNotExist,
// ErrTampered. Of a usage page that was replaced, the new one is read. The slices in the result are the caller's.
func (r *TrafficReader) Read() ([]Traffic, error) {
	if err := r.read(); err != nil {
		return nil, fmt.Errorf("read traffic books: %w", err)
	}
	books := make([]Traffic, len(r.limits.Devices))
	for i, d := range r.limits.Devices {
		books[i] = r.parse(i, d.UUID)
	}
	return books, nil
}

func (r *TrafficReader) read() error {
	there, _, err := lookNow(r.handle, &usageName)
	if err != nil {
		return &fs.PathError{Op: "stat", Path: UsageFile, Err: err}
	}
	if r.usage != nil && r.id != there {
		r.usage.Close()
		r.usage = nil
	}
	if r.usage == nil {
		file, err := openFile(r.handle, UsageFile, unix.O_RDONLY)
		if err != nil {
			return err
		}
		r.usage, r.id = file, there
	}
	offset := C.vgpu_usage_traffic_offset(C.uint32_t(len(r.limits.Devices)), 0)
	err = readNow(r.usage, r.books.bytes(), int64(offset))
	if errors.Is(err, io.EOF) {
		return &TamperError{DamageCut, UsageFile + " is shorter than its traffic books"}
	}
	return err
}

// parse reads one book of the private copy. Every byte of it is hostile.
func (r *TrafficReader) parse(device int, uuid string) Traffic {
	book := unsafe.Pointer(&r.books.bytes()[device*trafficBytes])
	C.vgpu_traffic_read((*C.struct_vgpu_usage_traffic)(book), r.view)
	t := Traffic{UUID: uuid, Stalls: uint64(r.view.stalls), Stalled: time.Duration(r.view.stalled_ns),
		Classes: make([]TrafficClass, r.view.class_count)}
	for i := range t.Copies {
		t.Copies[i] = Count{Calls: uint64(r.view.calls[i]), Bytes: uint64(r.view.bytes[i])}
	}
	for i := range t.Classes {
		v := &r.view.classes[i]
		t.Classes[i] = TrafficClass{ID: uint64(v.id), Kind: ClassKind(v.kind), Samples: uint64(v.samples),
			Operations: uint64(v.operations), Bytes: uint64(v.bytes), Time: time.Duration(v.time_ns),
			Recent: make([]time.Duration, v.recent_count)}
		for j := range t.Classes[i].Recent {
			t.Classes[i].Recent[j] = time.Duration(v.recent_ns[j])
		}
	}
	return t
}

// Close closes the handle.
func (r *TrafficReader) Close() error {
	var errs []error
	for _, file := range []*os.File{r.usage, r.handle} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	r.usage, r.handle = nil, nil
	return errors.Join(errs...)
}
