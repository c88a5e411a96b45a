// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The counts by control group, as they come out of the kernel.

package bpf

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Count is how often something happened, ever.
type Count struct {
	Calls, Bytes uint64
	Time         time.Duration
}

// Group is what the processes of one control group did, ever.
type Group struct {
	CgroupID uint64 // by the Numbering

	// Copies that succeeded, and the time that their calls took (for asynchronous ones the call alone). UntoldCopies are
	// between unified addresses.
	HostToDevice, DeviceToHost, DeviceToDevice, PeerToPeer, UntoldCopies Count

	Allocations                Count  // that succeeded: calls and bytes asked for
	Stalls                     Count  // synchronisations: calls and time
	Created, Retained, GivenUp uint64 // contexts, and primary contexts
	Failed                     uint64 // copies, allocations and contexts that the driver refused
	Missed                     uint64 // calls over the rate cap; of those nothing else is known
	Ioctls                     uint64 // on the driver's device nodes
	Exits                      uint64 // processes that ended
	Gone                       bool   // its directory is removed; this is the last time that it is told
}

func asCount(calls, bytes, ns uint64) Count {
	return Count{Calls: calls, Bytes: bytes, Time: time.Duration(min(ns, 1<<63-1))}
}

func asGroup(id uint64, c *probesCounts) Group {
	of := func(k class) Count { return asCount(c.Classes[k].Calls, c.Classes[k].Bytes, c.Classes[k].TimeNs) }
	return Group{
		CgroupID: id, HostToDevice: of(hostToDevice), DeviceToHost: of(deviceToHost), DeviceToDevice: of(deviceToDevice),
		PeerToPeer: of(peerToPeer), UntoldCopies: of(untold), Allocations: of(allocation), Stalls: of(stall),
		Created: c.Created, Retained: c.Retained, GivenUp: c.Destroyed, Failed: c.Failed, Missed: c.Missed,
		Ioctls: c.Ioctls, Exits: c.Exits, Gone: c.Gone != 0,
	}
}

// reader reads the map of groups, many rows at a time, into room that is kept.
type reader struct {
	keys   []uint64
	values []probesCounts
	idle   map[uint64]idle // of rows, while the map is nearly full
}

// idle is since when a row has not changed.
type idle struct {
	group Group
	since time.Time
}

// idleFor is how long a row stays untouched before it may make room for others.
const idleFor = 10 * time.Minute

// makeRoom removes rows that have not changed for long, while the map is more than three quarters full. Where the kernel
// tells which groups are gone that is never so on a machine that works.
func (r *reader) makeRoom(m *ebpf.Map, groups []Group, now time.Time) error {
	if len(groups) <= int(m.MaxEntries())/4*3 {
		r.idle = nil
		return nil
	}
	before := r.idle
	r.idle = make(map[uint64]idle, len(groups))
	for _, g := range groups {
		was, known := before[g.CgroupID]
		if !known || was.group != g {
			was = idle{group: g, since: now}
		}
		if now.Sub(was.since) < idleFor {
			r.idle[g.CgroupID] = was
			continue
		}
		if err := m.Delete(g.CgroupID); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("remove idle counts: %w", err)
		}
	}
	return nil
}

const firstRoom = 256 // rows

// read returns all rows. Those of groups that are gone are removed from the map.
func (r *reader) read(m *ebpf.Map) ([]Group, error) {
	if r.keys == nil {
		r.resize(firstRoom)
	}
	var groups []Group
	var cursor ebpf.MapBatchCursor
	for seen := 0; ; {
		n, err := m.BatchLookup(&cursor, r.keys, r.values, nil)
		end := errors.Is(err, ebpf.ErrKeyNotExist)
		if errors.Is(err, unix.ENOSPC) && len(r.keys) < int(m.MaxEntries()) { // more rows in one of its buckets than there is room for
			r.resize(2 * len(r.keys))
			cursor, groups, seen = ebpf.MapBatchCursor{}, nil, 0
			continue
		}
		if err != nil && !end {
			return nil, fmt.Errorf("read counts: %w", err)
		}
		for i := range n {
			groups = append(groups, asGroup(r.keys[i], &r.values[i]))
		}
		if seen += n; end || seen > 2*int(m.MaxEntries()) {
			break
		}
	}
	for _, g := range groups {
		if g.Gone {
			if err := m.Delete(g.CgroupID); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return nil, fmt.Errorf("remove counts of a group that is gone: %w", err)
			}
		}
	}
	slices.SortFunc(groups, func(a, b Group) int {
		switch {
		case a.CgroupID < b.CgroupID:
			return -1
		case a.CgroupID > b.CgroupID:
			return 1
		}
		return 0
	})
	return groups, nil
}

func (r *reader) resize(n int) { r.keys, r.values = make([]uint64, n), make([]probesCounts, n) }

// forget removes every row.
func (l *loaded) forget() error {
	m := l.collection.Maps[probesMapGroups]
	var r reader
	groups, err := r.read(m)
	for _, g := range groups {
		if e := m.Delete(g.CgroupID); e != nil && !errors.Is(e, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
