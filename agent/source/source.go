// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package source defines what the agent can observe and the value types in which it arrives: small interfaces,
// one per source, implemented by the adapters in the subfolders and by package fake for tests. Values are
// copies: whoever receives one owns it. Sizes are bytes. Return codes of drivers and kernels become errors in
// the adapters, never above them. Package monitor asks those that answer at once; what a driver may keep waiting, the samplers of
// packages steer and watch ask.
package source

import (
	"context"
	"errors"
	"time"
)

// ErrGPULost is wrapped by GPU.Err when the driver says that the card has fallen off the bus.
var ErrGPULost = errors.New("gpu lost")

// ErrMIG is wrapped by GPU.Err when the card is split by MIG, so that the whole card cannot be used.
var ErrMIG = errors.New("gpu is in MIG mode")

// GPU is one physical card as the driver's management library describes it.
type GPU struct {
	UUID          string
	Index         int    // in the order of the management library
	Model         string // as the driver spells it; any bytes
	TotalBytes    uint64 // physical memory
	ReservedBytes uint64 // of it kept by the driver; 0 where the driver does not tell
	UsedBytes     uint64 // in use by processes
	NUMANode      int    // -1: none known
	Err           error  // why the memory could not be read; the size fields are 0 then
}

// GPUs lists the cards of the node. An error means that none can be watched.
type GPUs interface {
	GPUs(ctx context.Context) ([]GPU, error)
}

// Grant is what an allocation holds of one GPU.
type Grant struct {
	GPUUUID          string
	SliceIDs         []string
	MemoryLimitBytes uint64
	Mode             ComputeMode // how its GPU time is limited
	SharePPM         uint32      // millionths of the GPU's time; 0 with ComputeNone
	CeilingPPM       uint32      // most of it, loans included; 0 with ComputeNone
}

// Allocation is one record of the ledger.
type Allocation struct {
	Key       string
	CreatedAt time.Time
	Grants    []Grant
	Owner     Owner // zero until the container is known
	PodSeen   bool  // the owner's pod has had a directory at the kubelet
}

// Owner is the container that holds an allocation. Namespace and Pod may be empty although the pod's UID is known.
type Owner struct {
	PodUID, Namespace, Pod, Container string
}

// Known says whether the holder was found.
func (o Owner) Known() bool { return o.PodUID != "" }

// Book is the memory book of one GPU: what can be granted and what is.
type Book struct {
	GPUUUID     string
	UsableBytes uint64
	HeldBytes   uint64
}

// Ledger reads the books of what is granted.
type Ledger interface {
	Allocations() ([]Allocation, error)
	Books() ([]Book, error)
}

// PagesState says what became of the two pages of an allocation.
type PagesState string

// The states of an allocation's pages.
const (
	PagesReadable PagesState = "readable"
	PagesTampered PagesState = "tampered" // size or content is not what the agent made
	PagesMissing  PagesState = "missing"  // a page is not there
	PagesUnknown  PagesState = "unknown"  // the read failed for another reason
)

// Damage is what was done to a usage page, in the numbers of package limiter.
type Damage uint32

// Damage that decisions tell from the others, of which each may have lost what idle processes hold.
const (
	DamageNone  Damage = 0
	DamageGrown Damage = 1 << 16 // longer than it was made, and whole
)

// PageUsage is what the usage page of one allocation says. Its numbers are the container's own claims.
type PageUsage struct {
	Key       string
	State     PagesState
	Reason    string // for every state but readable
	Damage    Damage // to the usage page
	Epoch     uint32 // of the limits page; 0: it cannot be read
	Frozen    Damage // why nothing more may be allocated in this epoch
	Devices   []DeviceUsage
	Processes []PageProcess // registered since the container started; some may be gone
}

// PageProcess is one process that registered on a usage page. Its bytes are part of the sums until another process of
// the container takes its slot back, also when it has ended.
type PageProcess struct {
	ID        ProcessID
	UsedBytes []uint64 // by device, in the order of PageUsage.Devices
}

// ProcessID names a process of a container. A zero field is not known.
type ProcessID struct {
	PIDNamespace uint64 // inode
	PID          int    // in that namespace
	StartTime    uint64 // clock ticks after boot
}

// DeviceUsage are the sums over all processes of an allocation on one GPU, dead ones included in the counters.
type DeviceUsage struct {
	GPUUUID     string
	UsedBytes   uint64
	Allocations uint64
	Refusals    uint64
}

// Pages reads the pages of the named allocations, in the order of the keys.
type Pages interface {
	Usage(keys []string) ([]PageUsage, error)
}

// Procs tells which processes of containers run.
type Procs interface {
	// Pods counts the processes of every pod that has any, by pod UID.
	Pods() (map[string]int, error)
	// Gone tells which of the processes have certainly ended. What cannot be told is not gone.
	Gone(ids []ProcessID) (map[ProcessID]bool, error)
}

// Holder is a container that the kubelet remembers as the holder of an allocation.
type Holder struct {
	Key   string
	Owner Owner
}

// Holders is what the kubelet says: its record, and which pods it keeps on disk.
type Holders struct {
	List []Holder
	// Pods has the UID of every pod that has a directory at the kubelet: from shortly after its admission until it has
	// been deleted and none of its containers and volumes is left.
	Pods map[string]bool
	// PodsError says why Pods is not known; nothing may then be concluded from a pod's absence.
	PodsError error
	// Elsewhere has the UUIDs of the cards that other plugins gave, by the UID of the pod: whole, or shared in their way.
	Elsewhere map[string][]string
	// NamesError says why namespaces and names of pods could not be learnt; those known before stay known.
	NamesError error
}

// Kubelet reads the kubelet's own record of who holds what.
type Kubelet interface {
	// Holders is for one goroutine at a time. An error means that nothing may be concluded from a holder's absence.
	Holders(ctx context.Context) (Holders, error)
	// Pods is Holders.Pods alone, which needs nothing else and waits for nobody. Any goroutine may call it.
	Pods(ctx context.Context) (map[string]bool, error)
}
