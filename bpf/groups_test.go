// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"fmt"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// TestRowsAreAllRead: also when there are more than the room for reading holds at first.
func TestRowsAreAllRead(t *testing.T) {
	require.Root(t)
	l, err := load("", numbering())
	require.Need(t, "bpf", err == nil, fmt.Sprint(err))
	t.Cleanup(l.close)
	m := l.collection.Maps[probesMapGroups]
	var r reader
	for count := range 3000 {
		if err := m.Put(uint64(count), probesCounts{Ioctls: uint64(count)}); err != nil {
			t.Fatal(err)
		}
		if count != 0 && count != firstRoom-1 && count != firstRoom && count != 2999 {
			continue
		}
		groups, err := r.read(m)
		if err != nil || len(groups) != count+1 {
			t.Fatalf("%d rows read of %d: %v", len(groups), count+1, err)
		}
		for i, g := range groups {
			if g.CgroupID != uint64(i) || g.Ioctls != uint64(i) {
				t.Fatalf("row %d: %+v", i, g)
			}
		}
	}
}

// TestIdleRowsMakeRoom: when the map is nearly full, rows that have not changed for long go, and only those.
func TestIdleRowsMakeRoom(t *testing.T) {
	require.Root(t)
	l, err := load("", numbering())
	require.Need(t, "bpf", err == nil, fmt.Sprint(err))
	t.Cleanup(l.close)
	m := l.collection.Maps[probesMapGroups]
	const rows, busy = 3500, 100
	var r reader
	start := time.Now()
	for minute := range 12 {
		for i := range rows {
			if minute == 0 || i < busy {
				if err := m.Put(uint64(i), probesCounts{Ioctls: uint64(minute)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		groups, err := r.read(m)
		if err != nil {
			t.Fatal(err)
		}
		want := rows
		if minute > 10 {
			want = busy
		}
		if len(groups) != want {
			t.Fatalf("minute %d: %d rows, want %d", minute, len(groups), want)
		}
		if err := r.makeRoom(m, groups, start.Add(time.Duration(minute)*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
}
