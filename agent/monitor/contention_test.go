// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/vgpud/vgpud/agent/source"
)

// Streams are those of the cards that were looked at, whether their pages could be read or not, and nothing else.
func TestCollectContention(t *testing.T) {
	broken := errors.New("no driver")
	devices := []source.DeviceSample{{GPUUUID: "GPU-b", Err: broken}, {GPUUUID: "GPU-a"}, {GPUUUID: "GPU-a", Err: broken}}
	holdings := []Holding{
		{Key: "k2", GPUUUID: "GPU-a", Share: 0.2},
		{Key: "k1", GPUUUID: "GPU-b", Share: 0.5, Charged: time.Second, Waited: time.Minute, Started: time.Hour},
		{Key: "k1", GPUUUID: "GPU-a", Share: 0.1},
		{Key: "k1", GPUUUID: "GPU-a", Share: 0.9},
		{Key: "k3", GPUUUID: "GPU-c"},
	}
	traffic := []source.Traffic{
		{Key: "k1", GPUUUID: "GPU-b", Known: true, Stalls: source.Count{Calls: 7}},
		{Key: "k1", GPUUUID: "GPU-b", Known: true, Stalls: source.Count{Calls: 8}},
		{Key: "k1", GPUUUID: "GPU-c", Known: true},  // not looked at
		{Key: "k2", GPUUUID: "GPU-b", Known: true},  // not held
		{Key: "k2", GPUUUID: "GPU-a", Known: false}, // not readable
	}
	want := &Contention{Now: time.Minute, Devices: []Device{{GPUUUID: "GPU-a"}, {GPUUUID: "GPU-b", Err: broken}}, Streams: []Stream{
		{Traffic: source.Traffic{Key: "k1", GPUUUID: "GPU-a"}, Share: 0.1},
		{Traffic: source.Traffic{Key: "k2", GPUUUID: "GPU-a"}, Share: 0.2},
		{Traffic: source.Traffic{Key: "k1", GPUUUID: "GPU-b", Known: true, Stalls: source.Count{Calls: 7}}, Share: 0.5,
			Charged: time.Second, Waited: time.Minute, Started: time.Hour},
	}}
	if diff := cmp.Diff(want, CollectContention(time.Minute, devices, holdings, traffic), cmpopts.EquateErrors()); diff != "" {
		t.Error(diff)
	}
	if devices[0].GPUUUID != "GPU-b" || holdings[0].Key != "k2" {
		t.Error("what was given was changed")
	}
	if empty := CollectContention(0, nil, holdings, traffic); len(empty.Devices) != 0 || len(empty.Streams) != 0 {
		t.Errorf("%+v", empty)
	}
}
