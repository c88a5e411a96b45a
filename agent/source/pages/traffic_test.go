// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package pages

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
)

// copyPages copies golden pages of package limiter.
func copyPages(t *testing.T, directory, key, version string) {
	t.Helper()
	golden := os.DirFS(filepath.Join("..", "..", "..", "limiter", "testdata", "pages", version))
	if err := os.CopyFS(filepath.Join(directory, key), golden); err != nil {
		t.Fatal(err)
	}
}

// TestTraffic: containers of today, of an older agent, one that is gone, and one whose page was cut and comes back.
func TestTraffic(t *testing.T) {
	directory := t.TempDir()
	copyPages(t, directory, "new", "v3")
	copyPages(t, directory, "old", "v2")
	copyPages(t, directory, "cut", "v3")
	usage := filepath.Join(directory, "cut", limiter.UsageFile)
	if err := os.Truncate(usage, 100); err != nil {
		t.Fatal(err)
	}
	reader := NewTraffic(func(key string) string { return filepath.Join(directory, key) })
	look := func(keys ...string) []source.Traffic {
		rows, err := reader.Traffic(keys)
		if err != nil {
			t.Fatal(err)
		}
		return rows
	}
	rows := look("old", "new", "never", "cut")
	var names []string
	for _, row := range rows {
		name := row.Key + " " + row.GPUUUID
		if row.Known {
			name += " known"
		}
		names = append(names, name)
	}
	want := []string{"old GPU-one", "old MIG-two", "new GPU-one known", "new MIG-two known", "cut GPU-one", "cut MIG-two"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Fatal(diff)
	}
	second := rows[3]
	wantCopies := [source.Directions]source.Count{source.HostToDevice: {Calls: 3, Bytes: 3 << 20}, source.DeviceToHost: {Calls: 4, Bytes: 4 << 20},
		source.DeviceToDevice: {Calls: 5, Bytes: 5 << 20}, source.PeerToPeer: {Calls: 6, Bytes: 6 << 20}}
	if diff := cmp.Diff(wantCopies, second.Copies); diff != "" || second.Stalls != (source.Count{Calls: 7, Time: 7000}) {
		t.Errorf("%+v\n%s", second.Stalls, diff)
	}
	kernel := source.Class{ID: 11, Kind: source.OperationKernel, Samples: 2, Operations: 32, Time: 4000,
		Recent: []time.Duration{1600, 2400}}
	if len(second.Classes) != 2 || cmp.Diff(kernel, second.Classes[0]) != "" || second.Classes[1].Kind != source.OperationHostToDevice {
		t.Errorf("%+v", second.Classes)
	}
	if err := limiter.RestoreUsage(filepath.Join(directory, "cut")); err != nil {
		t.Fatal(err)
	}
	if back := look("cut"); !back[0].Known || len(reader.open) != 1 {
		t.Errorf("%+v, %d open", back, len(reader.open))
	}
	if err := os.RemoveAll(filepath.Join(directory, "cut")); err != nil {
		t.Fatal(err)
	}
	if gone := look("cut"); len(gone) != 2 || gone[0].Known || len(look("cut")) != 0 {
		t.Errorf("an allocation that has ended: %+v", gone)
	}
	copyPages(t, directory, "cut", "v3")
	if again := look("cut"); len(again) != 2 || !again[0].Known {
		t.Errorf("another one under its key: %+v", again)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}
