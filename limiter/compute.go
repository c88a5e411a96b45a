// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What C knows of the compute book of a page, as Go values: the line of the rate, and what was bought.

package limiter

/*
#include "../libvgpu/core/line.h"
#include "../libvgpu/core/page.h"
#include "../libvgpu/core/rate.h"
*/
import "C"

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MonotonicNow is the time by which rates and compute books are kept: CLOCK_MONOTONIC, of the node's first time
// namespace as long as this process is in it.
func MonotonicNow() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // every Linux has it
	return time.Duration(ts.Nano())
}

// Rate is what an allocation may use of one GPU's time now, what it was lent included.
type Rate struct {
	PPM      uint32 // of the GPU's time; SharePPMMin to 1.05 times PPM
	ScalePPM uint32 // GPU time that is really used per unit of estimated cost; a tenth of PPM to 10 times PPM
	Alone    bool   // nobody else has used the GPU of late
}

// ComputeUsage is the compute book of one device: what the container's processes say of the GPU time that they use. Times
// are bounded, and not true for that; Wanted and Waited are by MonotonicNow's clock.
type ComputeUsage struct {
	Spent     time.Duration // GPU time bought ever, scale included
	Charged   time.Duration // estimated cost of all launches ever
	Wanted    time.Duration // when GPU time was last asked for
	Waited    time.Duration // when a thread last was kept waiting
	Throttled time.Duration // how long threads were kept waiting, summed over threads
	Degraded  time.Duration // how long launches went on although nobody steered
	Debt      time.Duration // what was bought beyond what the allocation was entitled to by now
	Launches  uint64        // kernels and graphs
}

func limitsDevice(limits []byte, device int) *C.struct_vgpu_limits_device {
	c := (*C.struct_vgpu_limits_page)(unsafe.Pointer(&limits[0]))
	return &c.devices[device]
}

// setCompute changes a mapped limits page.
func setCompute(mapped []byte, device int, compute Compute, now time.Duration) error {
	c := C.struct_vgpu_compute{mode: C.uint32_t(compute.Mode), share_ppm: C.uint32_t(compute.SharePPM),
		ceiling_ppm: C.uint32_t(compute.CeilingPPM)}
	return codeError(C.vgpu_limits_set_compute((*C.struct_vgpu_limits_page)(unsafe.Pointer(&mapped[0])),
		C.uint32_t(device), &c, C.uint64_t(now)))
}

// readLine is the line in force.
func readLine(limits []byte, device int) C.struct_vgpu_line {
	var line C.struct_vgpu_line
	C.vgpu_line_read(limitsDevice(limits, device), &line)
	return line
}

func rateOf(line C.struct_vgpu_line) Rate {
	return Rate{PPM: uint32(line.rate_ppm), ScalePPM: uint32(line.scale_ppm), Alone: line.flags&C.VGPU_RATE_ALONE != 0}
}

// publishRate continues the line of a mapped limits page with another rate. A line of another boot begins anew, with
// what was spent, so that nobody is in debt for time that no clock counted.
func publishRate(mapped []byte, device int, rate Rate, now time.Duration, spent func() time.Duration) error {
	line := readLine(mapped, device)
	foreign := bool(C.vgpu_line_is_foreign(&line, C.uint64_t(now)))
	if rateOf(line) == rate && !foreign {
		return nil
	}
	if foreign {
		line.entitled_ns = C.uint64_t(spent())
	}
	C.vgpu_line_continue(&line, C.uint64_t(now))
	line.rate_ppm, line.scale_ppm, line.flags = C.uint32_t(rate.PPM), C.uint32_t(rate.ScalePPM), 0
	if rate.Alone {
		line.flags = C.VGPU_RATE_ALONE
	}
	C.vgpu_line_publish(limitsDevice(mapped, device), &line)
	return wakeWaiters(mapped, device)
}

// wakeWaiters wakes the threads that wait for GPU time, so that they look at the new rate.
func wakeWaiters(mapped []byte, device int) error {
	const futexWake, all = 1, 1<<31 - 1
	word := uintptr(unsafe.Pointer(&limitsDevice(mapped, device).rate_generation))
	if _, _, code := unix.Syscall6(unix.SYS_FUTEX, word, futexWake, all, 0, 0, 0); code != 0 {
		return fmt.Errorf("wake those who wait for GPU time: %w", code)
	}
	return nil
}

// beat lets the heartbeat of a mapped limits page change; it is never 0 again.
func beat(mapped []byte) {
	C.vgpu_limits_beat((*C.struct_vgpu_limits_page)(unsafe.Pointer(&mapped[0])))
}

// parseCompute reads the compute book of one device from a private copy of a usage page, or of its head. Every byte of
// it is hostile.
func parseCompute(usage page, limits page, device int, now time.Duration) ComputeUsage {
	return parseComputeBeside(usage, limits.bytes(), device, now)
}

func parseComputeBeside(usage page, limits []byte, device int, now time.Duration) ComputeUsage {
	var v C.struct_vgpu_compute_view
	C.vgpu_usage_read_compute((*C.struct_vgpu_usage_page)(unsafe.Pointer(&usage[0])), C.uint32_t(device), &v)
	u := ComputeUsage{Spent: time.Duration(v.spent_ns), Charged: time.Duration(v.charged_ns),
		Wanted: time.Duration(v.wanted_ns), Waited: time.Duration(v.waited_ns), Throttled: time.Duration(v.throttled_ns),
		Degraded: time.Duration(v.degraded_ns), Launches: uint64(v.launches)}
	line := readLine(limits, device)
	debt := u.Spent - time.Duration(C.vgpu_line_at(&line, C.uint64_t(now)))
	if debt > 0 && debt <= C.VGPU_DEBT_BELIEVED_NS { // more is damage, and nobody waits for it
		u.Debt = debt
	}
	return u
}
