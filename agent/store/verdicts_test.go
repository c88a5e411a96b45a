// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/health"
)

// A record is written when something moved and once a minute while there is something to keep; links are not followed.
func TestHealthRecord(t *testing.T) {
	path, now := filepath.Join(t.TempDir(), HealthFile), time.Unix(1000, 0)
	record := NewVerdicts(path, func() time.Time { return now })
	if err := record.Keep(health.State{}, time.Minute, true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty record was written")
	}
	state := health.Restore(health.Record{GPUs: []health.GPURecord{{UUID: gpuA, Contended: true, Hold: time.Hour, Repeats: 2}}}, 0, time.Hour)
	if err := record.Keep(state, time.Hour, true); err != nil {
		t.Fatal(err)
	}
	now = now.Add(30 * time.Minute)
	again := NewVerdicts(path, func() time.Time { return now })
	got, err := again.Read(10 * time.Minute) // after a boot
	if err != nil {
		t.Fatal(err)
	}
	kept := got.Record(10 * time.Minute).GPUs
	if len(kept) != 1 || !kept[0].Contended || kept[0].Repeats != 2 || kept[0].ChangedAgo != 30*time.Minute {
		t.Errorf("%+v", kept)
	}
	now = now.Add(time.Hour)
	if got, err := again.Read(time.Minute); err != nil || len(got.Record(time.Minute).GPUs) != 1 || got.Record(time.Minute).GPUs[0].Contended {
		t.Errorf("a verdict whose hold is over: %+v, %v", got.Record(time.Minute), err)
	}
	if err := again.Keep(health.State{}, time.Minute, false); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), gpuA) {
		t.Errorf("what is over is still there: %s, %v", text, err)
	}
	target := path + ".target"
	if err := errors.Join(os.WriteFile(target, []byte("{}"), 0o600), os.Remove(path), os.Symlink(target, path)); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Read(time.Minute); err == nil {
		t.Error("a link was followed")
	}
}
