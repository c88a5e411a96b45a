// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpfevents

import (
	"bytes"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/bpf"
)

// TestEveryCountIsTold: each figure of a row arrives at its own place, and none is left behind.
func TestEveryCountIsTold(t *testing.T) {
	next := uint64(0)
	count := func() bpf.Count {
		next += 3
		return bpf.Count{Calls: next, Bytes: next + 1, Time: time.Duration(next + 2)}
	}
	g := bpf.Group{
		CgroupID: 77, HostToDevice: count(), DeviceToHost: count(), DeviceToDevice: count(), PeerToPeer: count(),
		UntoldCopies: count(), Allocations: count(), Stalls: count(), Created: 100, Retained: 1000, GivenUp: 1, Failed: 2,
		Missed: 3, Ioctls: 4, Exits: 5,
	}
	want := source.Calls{
		CgroupID: 77, Contexts: 1100, Missed: 3, Ioctls: 4, Exits: 5,
		Copies:       [source.Directions]source.Count{{Calls: 3, Bytes: 4, Time: 5}, {Calls: 6, Bytes: 7, Time: 8}, {Calls: 9, Bytes: 10, Time: 11}, {Calls: 12, Bytes: 13, Time: 14}},
		UntoldCopies: source.Count{Calls: 15, Bytes: 16, Time: 17},
		Allocations:  source.Count{Calls: 18, Bytes: 19, Time: 20}, Stalls: source.Count{Calls: 21, Bytes: 22, Time: 23},
	}
	got := callsOf(g)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for v, i := reflect.ValueOf(got), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("nothing fills %s", v.Type().Field(i).Name)
		}
	}
}

// TestWithoutProbes: an agent that has none gets no error and no counts, and the reason once in its log.
func TestWithoutProbes(t *testing.T) {
	var log bytes.Buffer
	p := Open(Options{Mode: "off", Log: slog.New(slog.NewTextHandler(&log, nil))})
	calls, status, err := p.Calls(t.Context())
	if len(calls) != 0 || err != nil || status.Mode != source.ProbesOff || status.Reason == "" {
		t.Errorf("calls %v, status %+v, error %v", calls, status, err)
	}
	if log.Len() != 0 {
		t.Errorf("switched off, and said %q", log.String())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
