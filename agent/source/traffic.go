// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What containers say of their own traffic, through their usage pages: exact counts of what they copied, how long they
// waited, and how long samples of their operations took on the card. All of it is the container's own claim.

package source

import "time"

// Direction is where a copy goes.
type Direction int

// The directions.
const (
	HostToDevice Direction = iota
	DeviceToHost
	DeviceToDevice // within a card
	PeerToPeer     // between two cards
	Directions     // how many there are
)

// Count is how often something happened, ever, and how much of it there was.
type Count struct {
	Calls uint64
	Bytes uint64        // of copies and allocations
	Time  time.Duration // of waits: how long the calls took
}

// OperationKind is what kind of work a class of operations is.
type OperationKind uint32

// The kinds, in the numbers of package limiter.
const (
	OperationKernel       OperationKind = 1
	OperationGraph        OperationKind = 2
	OperationHostToDevice OperationKind = 3
	OperationDeviceToHost OperationKind = 4
	OperationDeviceCopy   OperationKind = 5
)

// Class is one class of operations of an allocation on a GPU: launches of one function with about the same grid, or copies
// of about the same size in one direction. What a class costs undisturbed is not known, only how long samples of it took.
type Class struct {
	ID         uint64 // stable while the class is kept; 0 never
	Kind       OperationKind
	Samples    uint64          // measured ever
	Operations uint64          // that the samples stand for, ever
	Bytes      uint64          // of the sampled copies, ever
	Time       time.Duration   // what the samples took together, ever
	Recent     []time.Duration // what the newest samples took, oldest first; fewer than Samples
}

// Traffic is what an allocation says of its use of one GPU. Counters begin at 0 when its pages are made.
type Traffic struct {
	Key, GPUUUID string
	Known        bool // the usage page could be read; else all below is 0
	Copies       [Directions]Count
	Stalls       Count // calls that waited for the GPU (…Synchronize), and how long
	Classes      []Class
}

// Traffics reads the traffic of the named allocations.
type Traffics interface {
	Traffic(keys []string) ([]Traffic, error)
}
