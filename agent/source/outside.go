// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What is seen of containers from outside, without their help: calls of the driver's library that the kernel counted by
// control group, memory that the driver says processes hold, and which files a process really sees.

package source

import (
	"context"
	"time"
)

// Calls are the calls of the driver's library by the processes of one control group, ever, as probes counted them. Calls
// over the probes' rate cap are counted as Missed alone.
type Calls struct {
	CgroupID     uint64 // inode of its directory: of version 2 where that is all there is, else of the memory controller's
	Copies       [Directions]Count
	UntoldCopies Count // between unified addresses: the call does not tell which way
	Allocations  Count
	Stalls       Count // synchronisations
	Contexts     uint64
	Ioctls       uint64 // on the driver's device nodes
	Exits        uint64 // processes that ended
	Missed       uint64
}

// ProbeMode is how much the probes see.
type ProbeMode string

// The modes.
const (
	ProbesFull    ProbeMode = "full"
	ProbesSampled ProbeMode = "sampled" // one call in some, or some calls alone: probes are dear here, or the kernel is old
	ProbesOff     ProbeMode = "off"
)

// ProbeStatus says what the probes can see, and what they cost.
type ProbeStatus struct {
	Mode         ProbeMode
	Reason       string        // why not full, for people; names the capability, setting or kernel version that lacks
	HitCost      time.Duration // measured, of one hit
	Libraries    int           // distinct files that are probed
	Unobservable []Unobservable
}

// Unobservable is a library that processes have mapped and that cannot be probed, or not all of it. There is one for a file.
type Unobservable struct {
	Path      string // as the process of PID sees it
	PID       int    // one of those that have it mapped
	Processes int    // that have; counted up to some hundreds
	Partial   bool   // it is probed, but some of its functions cannot be
	Reason    string
}

// Probes counts calls from outside.
type Probes interface {
	// Calls returns the counts of every control group that has any.
	Calls(ctx context.Context) ([]Calls, ProbeStatus, error)
}

// ProcessMemory is what the driver says that one process holds on one GPU.
type ProcessMemory struct {
	GPUUUID   string
	PID       int // as the agent sees it
	UsedBytes uint64
}

// ProcessMemories lists processes by GPU; at most once a second.
type ProcessMemories interface {
	ProcessMemory(ctx context.Context) ([]ProcessMemory, error)
}

// Container is where a process lives.
type Container struct {
	CgroupID  uint64
	PodUID    string // "": not a pod's
	ID        string // of the container, by the runtime; "": not a container
	Namespace string // of the pod; empty, as Pod is, where that could not be learnt
	Pod       string
}

// Replaced is a file of ours that a process does not see where it was put.
type Replaced struct {
	Path   string // as the container sees it
	Reason string // what is there instead
}

// Residence is what is known of one process from outside.
type Residence struct {
	PID       int
	StartTime uint64 // clock ticks after boot: tells a pid that was used again
	Command   string // first word of its command line; any bytes
	Container Container
	Keys      []string // allocations whose pages are mounted where it lives
	Replaced  []Replaced
	Devices   bool      // it has a device node of the driver open
	Library   bool      // it has a library of the driver mapped; not known, and true, for one whose Devices was not looked at
	ID        ProcessID // how it would register on a usage page; zero where that could not be told
	OtherTime bool      // it lives in another time namespace, so that ID.StartTime is not what it would say
}

// Residents finds the processes that matter to the witness: those named, and all that have a library or a device node of
// the driver.
type Residents interface {
	Residents(ctx context.Context, pids []int) ([]Residence, error)
}
