// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Contention is what one look at the traffic of all cards saw. It is apart from the Snapshot because it is made in a loop of
// its own, from one to several times a second. Nobody changes it once it is made. Devices are sorted by GPU, streams by GPU
// and key, without duplicates.
type Contention struct {
	Now     time.Duration // CLOCK_MONOTONIC
	Devices []Device      // of the cards that were looked at
	Streams []Stream      // of every allocation with a share of one of these cards
}

// Device is what a card's counters say; see source.DeviceSample.
type Device = source.DeviceSample

// Figure is one number of a card's counters; see package source.
type Figure = source.Figure

// Count is how often something happened; see package source.
type Count = source.Count

// ThrottleReasons are the reasons for throttling, with their names.
var ThrottleReasons = []struct {
	Bit  source.Throttle
	Name string
}{{source.ThrottlePower, "power"}, {source.ThrottleThermal, "thermal"}, {source.ThrottleHardware, "hardware"},
	{source.ThrottleSync, "sync"}, {source.ThrottleSetting, "setting"}}

// Class is one class of operations; see package source.
type Class = source.Class

// OperationKind is what kind of work a class of operations is; see package source.
type OperationKind = source.OperationKind

// The kinds.
const (
	OperationKernel       = source.OperationKernel
	OperationGraph        = source.OperationGraph
	OperationHostToDevice = source.OperationHostToDevice
	OperationDeviceToHost = source.OperationDeviceToHost
	OperationDeviceCopy   = source.OperationDeviceCopy
)

// Where copies go; see package source.
const (
	HostToDevice   = source.HostToDevice
	DeviceToHost   = source.DeviceToHost
	DeviceToDevice = source.DeviceToDevice
	PeerToPeer     = source.PeerToPeer
	Directions     = source.Directions
)

// Sharing is how containers share a card; see package source.
type Sharing = source.Sharing

// The ways of sharing.
const (
	SharingUnknown    = source.SharingUnknown
	SharingTimeSliced = source.SharingTimeSliced
	SharingMPS        = source.SharingMPS
	SharingExclusive  = source.SharingExclusive
	SharingMIG        = source.SharingMIG
)

// Throttle is a set of reasons for which a card is slow; see package source.
type Throttle = source.Throttle

// Reasons for throttling.
const (
	ThrottlePower    = source.ThrottlePower
	ThrottleThermal  = source.ThrottleThermal
	ThrottleHardware = source.ThrottleHardware
	ThrottleSync     = source.ThrottleSync
	ThrottleSetting  = source.ThrottleSetting
)

// Stream is the traffic of one allocation on one GPU.
type Stream struct {
	source.Traffic
	Share   float64       // of the GPU's time that it is granted, 0 to 1; 0: not limited
	Charged time.Duration // GPU time that it used, ever: estimated cost times scale; not known (0, and Known false) without a book
	Waited  time.Duration // how long its launches were kept waiting for its share, ever, in all its threads
	Started time.Duration // when its oldest process was first seen; 0: not known
}
