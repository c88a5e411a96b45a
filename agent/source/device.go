// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a card's own counters say of its traffic. Each figure carries the period that it is a mean over, as the driver
// takes it, not as often as it is asked. Times are CLOCK_MONOTONIC of the node's first time namespace.

package source

import (
	"context"
	"time"
)

// Figure is one number of a card's counters.
type Figure struct {
	Value  float64
	Period time.Duration // that it is a mean over; 0: of an instant
	Known  bool          // the card has it, and it could be read
}

// Sharing is how the processes of several containers share a card.
type Sharing string

// The ways of sharing.
const (
	SharingUnknown    Sharing = ""            // could not be told
	SharingTimeSliced Sharing = "time-sliced" // contexts take turns: kernels of two containers never overlap, kernels and copies do
	SharingMPS        Sharing = "mps"         // kernels of several processes run at once
	SharingExclusive  Sharing = "exclusive"   // one process alone
	SharingMIG        Sharing = "mig"         // split in hardware
)

// Throttle is a set of reasons for which a card runs slower than it could.
type Throttle uint32

// Reasons for throttling, in our own numbers.
const (
	ThrottlePower    Throttle = 1 << iota // power cap, in software
	ThrottleThermal                       // temperature, in software or hardware
	ThrottleHardware                      // power brake, or another slowdown by hardware
	ThrottleSync                          // kept level with other cards
	ThrottleSetting                       // clocks that somebody set
)

// DeviceSample is what the driver says of one card's traffic.
type DeviceSample struct {
	GPUUUID string
	At      time.Duration // when it was read; the periods end shortly before
	Err     error         // why the card could not be read; all figures are unknown then

	Busy       Figure // part of the time in which a kernel ran, 0 to 1
	MemoryBusy Figure // part of the time in which DRAM was accessed at all, 0 to 1: not a bandwidth
	DRAM       Figure // part of the DRAM's peak bandwidth, 0 to 1 (GPM)
	PCIeRX     Figure // bytes per second from the host to the card
	PCIeTX     Figure // and back
	NVLinkRX   Figure
	NVLinkTX   Figure

	SMClockMHz, SMClockMaxMHz         uint32 // 0: not known
	MemoryClockMHz, MemoryClockMaxMHz uint32
	Throttle                          Throttle
	LinkGeneration, LinkGenerationMax uint32 // of PCIe; 0: not known
	LinkWidth, LinkWidthMax           uint32 // lanes
	Sharing                           Sharing
}

// Devices reads the counters of cards.
type Devices interface {
	// Devices reads all cards, or with `quick` only Busy, DRAM, PCIe and NVLink of those named, which may be done up to ten
	// times a second. An error means that no card can be read.
	Devices(ctx context.Context, quick []string) ([]DeviceSample, error)
}
