// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package pages

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
)

func TestUsage(t *testing.T) {
	directory := t.TempDir()
	for _, key := range []string{"good", "cut", "gone", "foreign"} {
		if err := limiter.Create(filepath.Join(directory, key), limiter.Limits{Key: key,
			Devices: []limiter.Device{{UUID: "GPU-a", SliceCount: 1, MemoryLimitBytes: 100}}}); err != nil {
			t.Fatal(err)
		}
	}
	book, err := limiter.OpenBook(filepath.Join(directory, "good"))
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if err := book.Reserve(0, limiter.KindDevice, 60); err != nil {
		t.Fatal(err)
	}
	if err := book.Reserve(0, limiter.KindDevice, 60); !errors.Is(err, limiter.ErrOverLimit) {
		t.Fatal(err)
	}
	usage := func(key string) string { return filepath.Join(directory, key, limiter.UsageFile) }
	if err := errors.Join(os.Truncate(usage("cut"), 10), os.Remove(usage("gone")), os.Remove(usage("foreign")), os.Mkdir(usage("foreign"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := limiter.Freeze(filepath.Join(directory, "cut"), limiter.DamageCut); err != nil {
		t.Fatal(err)
	}
	reader := New(func(key string) string { return filepath.Join(directory, key) })
	defer reader.Close()
	if _, err := reader.Usage([]string{"good", "cut"}); err != nil { // what is kept from now on changes nothing
		t.Fatal(err)
	}
	usages, err := reader.Usage([]string{"gone", "good", "cut", "never", "foreign"})
	if err != nil {
		t.Fatal(err)
	}
	var states []source.PagesState
	var damage []limiter.Damage
	for _, read := range usages {
		states = append(states, read.State)
		damage = append(damage, limiter.Damage(read.Damage))
		if (read.Epoch == 0) != (read.Key == "never") || (read.Frozen != 0) != (read.Key == "cut") {
			t.Errorf("%s: epoch %d, frozen %d", read.Key, read.Epoch, read.Frozen)
		}
		if (read.Reason == "") != (read.State == source.PagesReadable) {
			t.Errorf("%s is %s for the reason %q", read.Key, read.State, read.Reason)
		}
	}
	want := []source.PagesState{source.PagesMissing, source.PagesReadable, source.PagesTampered, source.PagesMissing, source.PagesTampered}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Error(diff)
	}
	wantDamage := []limiter.Damage{limiter.DamageReplaced, limiter.DamageNone, limiter.DamageCut, limiter.DamageNone, limiter.DamageReplaced}
	if diff := cmp.Diff(wantDamage, damage); diff != "" {
		t.Error(diff)
	}
	if err := os.Truncate(usage("good"), 1<<20); err != nil {
		t.Fatal(err)
	}
	if grown, err := reader.Usage([]string{"good"}); err != nil || grown[0].State != source.PagesTampered || grown[0].Damage != source.DamageGrown {
		t.Errorf("a page that grew: %+v, %v", grown, err)
	}
	if diff := cmp.Diff([]source.DeviceUsage{{GPUUUID: "GPU-a", UsedBytes: 60, Allocations: 1, Refusals: 1}}, usages[1].Devices); diff != "" {
		t.Error(diff)
	}
	if processes := usages[1].Processes; len(processes) != 1 || processes[0].ID.PID != os.Getpid() || processes[0].UsedBytes[0] != 60 {
		t.Errorf("%+v", processes)
	}
}

// What is told of pages that do not change costs nothing anew, and what changes is told at once, whichever page it is in.
func TestToldAnewWhenSomethingChanges(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "k")
	if err := limiter.Create(dir, limiter.Limits{Key: "k", Devices: []limiter.Device{{UUID: "GPU-a", SliceCount: 1, MemoryLimitBytes: 1000}}}); err != nil {
		t.Fatal(err)
	}
	reader := New(func(key string) string { return filepath.Join(parent, key) })
	defer reader.Close()
	read := func() source.PageUsage {
		usages, err := reader.Usage([]string{"k"})
		if err != nil {
			t.Fatal(err)
		}
		return usages[0]
	}
	for range 3 {
		if got := read(); got.State != source.PagesReadable || len(got.Processes) != 0 {
			t.Fatalf("at first: %+v", got)
		}
	}
	if allocations := testing.AllocsPerRun(5, func() { read() }); allocations > 10 {
		t.Errorf("what has not changed costs %.0f allocations", allocations)
	}
	epoch := read().Epoch
	if raised, err := limiter.RaiseEpoch(dir); err != nil || read().Epoch != raised || raised == epoch {
		t.Errorf("epoch %d was raised to %d, and %d is told; %v", epoch, raised, read().Epoch, err)
	}
	book, err := limiter.OpenBook(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if err := book.Reserve(0, limiter.KindDevice, 600); err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got.Processes) != 1 || got.Devices[0].UsedBytes != 600 {
		t.Errorf("600 bytes are held: %+v", got)
	}
	if err := limiter.Freeze(dir, limiter.DamageCut); err != nil {
		t.Fatal(err)
	}
	if got := read(); got.Frozen != source.Damage(limiter.DamageCut) {
		t.Errorf("frozen: %+v", got)
	}
	if err := os.Truncate(filepath.Join(dir, limiter.UsageFile), 10); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := read(); got.State != source.PagesTampered || got.Damage != source.Damage(limiter.DamageCut) {
			t.Errorf("cut: %+v", got)
		}
	}
}
