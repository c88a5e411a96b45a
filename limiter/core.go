// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What C knows of a page, as Go values. Nothing outside this file and book.go speaks to libvgpu/core.
//
// The go command hashes the files of this directory only, and would go on using an old object after a change in
// libvgpu/core. So each file of the core has a link here, dep_*.h, that nothing includes: C headers are hashed. To add
// a file to the core, add its link, and for a .c file a core_*.c; TestCoreIsWatched says what is missing.

package limiter

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -fvisibility=hidden
#include "../libvgpu/core/line.h"
#include "../libvgpu/core/page.h"

enum { offsetof_high_water = offsetof(struct vgpu_usage_page, slot_high_water) };
*/
import "C"

import (
	"bytes"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kind is what a charge is for.
type Kind int

// The kinds that this version names.
const (
	KindDevice  Kind = C.VGPU_KIND_DEVICE  // linear and pitched memory
	KindManaged Kind = C.VGPU_KIND_MANAGED // managed memory, in full
	KindPool    Kind = C.VGPU_KIND_POOL    // what stream-ordered pools hold
)

// KindCount is the number of words per device; those without a name count too.
const KindCount = C.VGPU_KIND_COUNT

// Damage is what was done to a usage page; it is also why an allocation is frozen.
type Damage uint32

// What may have been done. All but DamageGrown may have lost what idle processes hold.
const (
	DamageNone     Damage = 0
	DamageHeader   Damage = C.VGPU_FROZEN_HEADER
	DamageCut      Damage = C.VGPU_FROZEN_CUT      // shorter than it was made
	DamageReplaced Damage = C.VGPU_FROZEN_REPLACED // removed, or no regular file
	DamageSlots    Damage = C.VGPU_FROZEN_SLOTS    // slots or sums that no process writes
	DamageGrown    Damage = 1 << 16                // longer than it was made, and whole as far as it was made
)

// String is a few words for logs and metrics.
func (d Damage) String() string {
	switch d {
	case DamageNone:
		return "none"
	case DamageHeader:
		return "usage page: header changed"
	case DamageCut:
		return "usage page: cut short"
	case DamageReplaced:
		return "usage page: replaced"
	case DamageSlots:
		return "usage page: impossible content"
	case DamageGrown:
		return "usage page: made longer"
	}
	return fmt.Sprintf("reason %d", uint32(d))
}

// ComputeMode is how the GPU time of a device is limited.
type ComputeMode uint32

// The modes.
const (
	ComputeNone    ComputeMode = C.VGPU_COMPUTE_NONE    // not at all
	ComputeHard    ComputeMode = C.VGPU_COMPUTE_HARD    // the share is a cap
	ComputeElastic ComputeMode = C.VGPU_COMPUTE_ELASTIC // the share is a promise; what others leave is lent, up to a ceiling
)

// String is the name of the mode, as options have it.
func (m ComputeMode) String() string {
	switch m {
	case ComputeNone:
		return "none"
	case ComputeHard:
		return "hard"
	case ComputeElastic:
		return "elastic"
	}
	return fmt.Sprintf("mode %d", uint32(m))
}

// PPM is the whole, in millionths: shares, rates and scales are counted in them.
const PPM = C.VGPU_PPM

// SharePPMMin is the least share there is.
const SharePPMMin = C.VGPU_SHARE_MIN_PPM

// Numbers of the ABI.
const (
	maxDevices       = C.VGPU_MAX_DEVICES
	maxUUIDBytes     = C.VGPU_UUID_BYTES - 1
	maxKeyBytes      = C.VGPU_KEY_BYTES - 1
	limitsPageBytes  = C.VGPU_LIMITS_PAGE_BYTES
	slotCount        = C.VGPU_SLOT_COUNT
	usageHeaderBytes = C.sizeof_struct_vgpu_usage_page
	usageTotalBytes  = C.sizeof_struct_vgpu_usage_device
	highWaterOffset  = C.offsetof_high_water
)

// MaxBytes is the largest limit and the largest use that a page can express (1 PiB).
const MaxBytes = uint64(C.VGPU_BYTES_MAX)

// page is private memory that is aligned for the C side.
type page []uint64

func newPage(size int) page { return make(page, (size+7)/8) }

// bytes shows the page as bytes; they share the memory.
func (p page) bytes() []byte { return unsafe.Slice((*byte)(unsafe.Pointer(&p[0])), len(p)*8) }

// version is that of the pages: an older one than today's for a container that runs on since an older agent made them.
func (l Limits) version() C.uint32_t {
	if l.NoTraffic {
		return C.VGPU_ABI_NO_TRAFFIC
	}
	return C.VGPU_ABI_VERSION
}

// usagePageBytes is the size of the usage page beside a limits page.
func usagePageBytes(l Limits) int {
	return int(C.vgpu_usage_page_bytes(C.uint32_t(len(l.Devices)), l.version()))
}

// textPointer is for a C function that reads n bytes of text; text may be empty.
func textPointer(text string) (*C.uint8_t, C.size_t) {
	return (*C.uint8_t)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text))
}

// codeError turns a core function's negative errno into an error, nil for 0 and above.
func codeError(code C.int) error {
	if code >= 0 {
		return nil
	}
	return unix.Errno(-code)
}

// buildLimits lays out a limits page, whose rates begin at now.
func buildLimits(l Limits, now time.Duration) (page, error) {
	p := newPage(limitsPageBytes)
	c := (*C.struct_vgpu_limits_page)(unsafe.Pointer(&p[0]))
	key, n := textPointer(l.Key)
	if err := codeError(C.vgpu_limits_init(c, key, n, C.uint32_t(len(l.Devices)))); err != nil {
		return nil, fmt.Errorf("lay out limits page: %w", err)
	}
	if l.Epoch != 0 {
		c.epoch = C.uint32_t(l.Epoch)
	}
	for i, d := range l.Devices {
		uuid, n := textPointer(d.UUID)
		code := C.vgpu_limits_write(c, C.uint32_t(i), uuid, n, C.uint32_t(d.SliceCount), C.uint64_t(d.MemoryLimitBytes))
		if err := codeError(code); err != nil {
			return nil, fmt.Errorf("lay out device %d of the limits page: %w", i, err)
		}
		if d.Compute.Mode == ComputeNone {
			continue
		}
		if err := setCompute(p.bytes(), i, d.Compute, now); err != nil {
			return nil, fmt.Errorf("lay out device %d of the limits page: %w", i, err)
		}
	}
	return p, nil
}

// parseLimits reads a private copy of a limits page. size is that of the file.
func parseLimits(p page, size int) (Limits, error) {
	c := (*C.struct_vgpu_limits_page)(unsafe.Pointer(&p[0]))
	if err := codeError(C.vgpu_limits_check(unsafe.Pointer(c), C.size_t(size))); err != nil {
		return Limits{}, err
	}
	l := Limits{Key: text(unsafe.Slice((*byte)(&c.allocation_key[0]), maxKeyBytes)), Epoch: uint32(c.epoch),
		Frozen: Damage(c.frozen), MemoryOnly: c.abi_version == C.VGPU_ABI_NO_COMPUTE,
		NoTraffic: c.abi_version == C.VGPU_ABI_NO_TRAFFIC}
	for i := range uint32(c.device_count) {
		var v C.struct_vgpu_limits_view
		if err := codeError(C.vgpu_limits_read(c, C.uint32_t(i), &v)); err != nil {
			return Limits{}, err
		}
		l.Devices = append(l.Devices, Device{
			UUID:             text(unsafe.Slice((*byte)(&v.uuid[0]), maxUUIDBytes)),
			SliceCount:       uint32(v.slice_count),
			MemoryLimitBytes: uint64(v.memory_limit_bytes),
			Compute: Compute{Mode: ComputeMode(v.compute.mode), SharePPM: uint32(v.compute.share_ppm),
				CeilingPPM: uint32(v.compute.ceiling_ppm)},
		})
	}
	return l, nil
}

// text is what stands before the first NUL.
func text(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return string(b)
}

// setMemory changes a mapped limits page.
func setMemory(mapped []byte, device int, limit uint64) error {
	c := (*C.struct_vgpu_limits_page)(unsafe.Pointer(&mapped[0]))
	return codeError(C.vgpu_limits_set_memory(c, C.uint32_t(device), C.uint64_t(limit)))
}

// hideBeat takes the heartbeat out of a private copy of a limits page.
func hideBeat(limits page) {
	(*C.struct_vgpu_limits_page)(unsafe.Pointer(&limits[0])).heartbeat = 0
}

// raiseEpoch changes a mapped limits page and returns the new epoch.
func raiseEpoch(mapped []byte) uint32 {
	return uint32(C.vgpu_limits_raise_epoch((*C.struct_vgpu_limits_page)(unsafe.Pointer(&mapped[0]))))
}

// freeze changes a mapped limits page.
func freeze(mapped []byte, why Damage) {
	C.vgpu_limits_freeze((*C.struct_vgpu_limits_page)(unsafe.Pointer(&mapped[0])), C.uint32_t(why))
}

// buildUsage lays out an empty usage page.
func buildUsage(l Limits) page {
	p := newPage(usagePageBytes(l))
	repairUsage(p, l)
	return p
}

// repairUsage puts the header of a private copy of a usage page right.
func repairUsage(p page, l Limits) {
	C.vgpu_usage_repair(unsafe.Pointer(&p[0]), C.uint32_t(len(l.Devices)), l.version())
}

// isUsageHead tells whether the header in a private copy of a usage page's head holds.
func isUsageHead(head page, l Limits) bool {
	return C.vgpu_usage_check(unsafe.Pointer(&head[0]), C.size_t(usagePageBytes(l)), C.uint32_t(len(l.Devices)),
		l.version()) == 0
}

// parseUsage reads a private copy of a usage page beside one of its limits page. Every byte of it is hostile.
func parseUsage(p, limits page, l Limits, now time.Duration) (Usage, error) {
	c := (*C.struct_vgpu_usage_page)(unsafe.Pointer(&p[0]))
	if C.vgpu_usage_check(unsafe.Pointer(c), C.size_t(len(p)*8), C.uint32_t(len(l.Devices)), l.version()) != 0 {
		return Usage{}, &TamperError{DamageHeader, "the header of the usage page is not the one it was created with"}
	}
	return parseBooks(p, limits, l, now, slotCount)
}

// parseBooks is parseUsage of a page whose header holds; p may end with the slots, and those from slots on are known to be
// empty.
func parseBooks(p, limits page, l Limits, now time.Duration, slots int) (Usage, error) {
	c := (*C.struct_vgpu_usage_page)(unsafe.Pointer(&p[0]))
	var u Usage
	for i, d := range l.Devices {
		var v C.struct_vgpu_usage_view
		if C.vgpu_usage_read_device(c, C.uint32_t(i), C.uint32_t(l.Epoch), &v) != 0 {
			return Usage{}, &TamperError{DamageSlots, fmt.Sprintf("the sums of device %d are beyond belief", i)}
		}
		row := DeviceUsage{UUID: d.UUID, UsedBytes: uint64(v.used_bytes),
			Allocations: uint64(v.allocations), Frees: uint64(v.frees), Refusals: uint64(v.refusals),
			Compute: parseCompute(p, limits, i, now)}
		for k := range row.ByKind {
			row.ByKind[k] = uint64(v.charged_bytes[k])
		}
		u.Devices = append(u.Devices, row)
	}
	return u, parseProcesses(c, l, &u, slots)
}

func parseProcesses(c *C.struct_vgpu_usage_page, l Limits, u *Usage, slots int) error {
	for slot := range C.uint32_t(slots) {
		var v C.struct_vgpu_usage_process
		switch C.vgpu_usage_read_process(c, slot, C.uint32_t(l.Epoch), &v) {
		case 0:
			continue
		case 1:
		default:
			return &TamperError{DamageSlots, fmt.Sprintf("slot %d is as no process leaves it", slot)}
		}
		p := Process{PID: int(v.pid), PIDNamespace: uint64(v.pid_namespace), StartTime: uint64(v.start_time),
			UsedBytes: make([]uint64, len(l.Devices))}
		for i := range p.UsedBytes {
			var w C.struct_vgpu_usage_view
			if C.vgpu_usage_read_slot(c, slot, C.uint32_t(i), &w) != 0 {
				return &TamperError{DamageSlots, fmt.Sprintf("the sums of slot %d are beyond belief", slot)}
			}
			p.UsedBytes[i] = uint64(w.used_bytes)
		}
		u.Processes = append(u.Processes, p)
	}
	return nil
}
