// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The layout of ABI versions 2 and 3, written down a second time as plain numbers, and a pair of pages of each on disk:
// today's code has to read what the code of that version wrote. A change that fails here needs a new version.

package limiter_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/limiter"
)

var update = flag.Bool("update", false, "write the golden pages anew (only for a new ABI version)")

// put is a word of a page at its offset.
type put struct {
	offset, size int
	value        uint64
}

func lay(size int, puts []put, texts map[int]string) []byte {
	p := make([]byte, size)
	for _, w := range puts {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], w.value)
		copy(p[w.offset:w.offset+w.size], word[:w.size])
	}
	for offset, text := range texts {
		copy(p[offset:], text)
	}
	return p
}

// limitsV2 is a limits page with two devices: the first one hard, not steered yet, the second one elastic, in its fourth
// rate.
func limitsV2() []byte {
	const first, second, rates = 128, 320, 128
	return lay(4096, []put{
		{0, 8, 0x314d494c55504756}, {8, 4, 2}, {12, 4, 4096}, {16, 4, 2}, {20, 4, 5}, {64, 4, 2}, {68, 4, 77},
		{first + 64, 4, 4}, {first + 68, 4, 1}, {first + 72, 8, 8000 * mib},
		{first + 80, 4, 250000}, {first + 84, 4, 250000}, {first + 88, 4, 1}, {first + 92, 4, 1},
		{first + rates + 32, 8, 1000}, {first + rates + 48, 4, 250000}, {first + rates + 52, 4, 1000000},
		{second + 64, 4, 4}, {second + 68, 4, 3}, {second + 72, 8, 24000 * mib},
		{second + 80, 4, 750000}, {second + 84, 4, 900000}, {second + 88, 4, 2}, {second + 92, 4, 4},
		{second + rates, 8, 5000000000}, {second + rates + 8, 8, 3000000000}, {second + rates + 16, 4, 800000},
		{second + rates + 20, 4, 1500000}, {second + rates + 24, 4, 1},
		{second + rates + 32, 8, 99}, {second + rates + 40, 8, 99}, {second + rates + 48, 4, 99}, // not in force
	}, map[int]string{24: "a1b2c3d4", first: "GPU-one", second: "MIG-two"})
}

// usageV2 is the usage page beside it: slots 0 and 2 are processes of epoch 5, slot 1 one of epoch 4, slot 3 is being
// taken, slot 4 is free again.
func usageV2() []byte {
	const slots, slotBytes, deviceBytes = 64 + 2*256, 64 + 2*256, 256
	puts := []put{
		{0, 8, 0x3147535555504756}, {8, 4, 2}, {12, 4, 151552}, {16, 4, 2}, {20, 4, 256}, {24, 4, 5},
		{64, 8, 100}, {72, 8, 90}, {80, 8, 7}, // processes that are gone, first device
		{320 + 64, 8, 6000000000}, {320 + 72, 8, 4000000000}, {320 + 80, 8, 9000000000}, {320 + 88, 8, 8000000000},
		{320 + 96, 8, 700}, {320 + 104, 8, 600}, {320 + 112, 8, 500}, // the compute book of the second one
	}
	slot := func(index int, owner, ready, epoch uint64, first, second [3]uint64) {
		at := slots + index*slotBytes
		puts = append(puts, put{at, 8, owner}, put{at + 8, 8, ready}, put{at + 16, 8, 4711}, put{at + 24, 8, 4026531836},
			put{at + 32, 4, epoch}, put{at + 40, 8, 0x7ffc00000000}, put{at + 48, 8, 75<<22 | 3})
		for device, charges := range [][3]uint64{first, second} {
			at := at + 64 + device*deviceBytes
			puts = append(puts, put{at, 8, charges[0]}, put{at + 8, 8, charges[1]}, put{at + 16, 8, charges[2]},
				put{at + 64, 8, 12345}, put{at + 72, 8, 10}, put{at + 80, 8, 4}, put{at + 88, 8, 2},
				put{at + 96, 8, 11}, put{at + 104, 8, 12}, put{at + 112, 8, 13}, put{at + 120, 8, 14})
		}
	}
	slot(0, 77<<22|1, 77<<22|1, 5, [3]uint64{1, 20, 300}, [3]uint64{4000, 0, 0})
	slot(1, 83<<22|2, 83<<22|2, 4, [3]uint64{9, 9, 9}, [3]uint64{9, 9, 9})
	slot(2, 79<<22|4194303, 79<<22|4194303, 5, [3]uint64{50000, 0, 0}, [3]uint64{})
	slot(3, 85<<22|4, 83<<22|2, 5, [3]uint64{9, 9, 9}, [3]uint64{9, 9, 9})
	slot(4, 0, 81<<22|5, 5, [3]uint64{9, 9, 9}, [3]uint64{9, 9, 9})
	return lay(151552, puts, nil)
}

// limitsV3 is the same of version 3.
func limitsV3() []byte {
	p := limitsV2()
	p[8] = 3
	return p
}

// usageV3 is that of version 2 with traffic books behind it: the second device has copied, waited, and keeps a class of
// kernels that has just begun; a class of copies that has gone round its ring; one that is being replaced; and one of a
// kind that nobody knows.
func usageV3() []byte {
	const second, classes, classBytes = 151552 + 5120, 151552 + 5120 + 384, 192
	p := lay(163840, []put{
		{second, 8, 3}, {second + 8, 8, 3 << 20}, {second + 64, 8, 4}, {second + 72, 8, 4 << 20}, {second + 128, 8, 5},
		{second + 136, 8, 5 << 20}, {second + 192, 8, 6}, {second + 200, 8, 6 << 20}, {second + 256, 8, 7}, {second + 264, 8, 7000},
		{classes, 8, 11}, {classes + 16, 8, 99}, {classes + 24, 8, 98}, {classes + 32, 4, 1}, {classes + 40, 8, 2},
		{classes + 48, 8, 32}, {classes + 64, 8, 4000}, {classes + 72, 4, 100}, {classes + 76, 4, 150}, {classes + 184, 8, 11},
		{classes + classBytes, 8, 12}, {classes + classBytes + 32, 4, 3}, {classes + classBytes + 40, 8, 29},
		{classes + classBytes + 48, 8, 30}, {classes + classBytes + 56, 8, 29 << 20}, {classes + classBytes + 64, 8, 29000},
		{classes + classBytes + 184, 8, 12},
		{classes + 2*classBytes, 8, 13}, {classes + 2*classBytes + 32, 4, 1}, {classes + 2*classBytes + 40, 8, 9},
		{classes + 2*classBytes + 184, 8, 14},
		{classes + 3*classBytes, 8, 15}, {classes + 3*classBytes + 32, 4, 6}, {classes + 3*classBytes + 40, 8, 9},
		{classes + 3*classBytes + 184, 8, 15},
	}, nil)
	copy(p, usageV2())
	binary.LittleEndian.PutUint32(p[8:], 3)
	binary.LittleEndian.PutUint32(p[12:], 163840)
	for i := range uint32(28) {
		binary.LittleEndian.PutUint32(p[classes+classBytes+72+4*i:], 1000+i)
	}
	return p
}

func TestTrafficOfGoldenPages(t *testing.T) {
	reader, err := limiter.OpenTraffic(filepath.Join("testdata", "pages", "v3"))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	got, err := reader.Read()
	if err != nil {
		t.Fatal(err)
	}
	var ring []time.Duration
	for i := range 28 {
		ring = append(ring, time.Duration(1000+(i+1)%28)*16)
	}
	want := []limiter.Traffic{{UUID: "GPU-one", Classes: []limiter.TrafficClass{}}, {UUID: "MIG-two",
		Copies: [limiter.Directions]limiter.Count{{Calls: 3, Bytes: 3 << 20}, {Calls: 4, Bytes: 4 << 20},
			{Calls: 5, Bytes: 5 << 20}, {Calls: 6, Bytes: 6 << 20}},
		Stalls: 7, Stalled: 7000,
		Classes: []limiter.TrafficClass{
			{ID: 11, Kind: limiter.ClassKernel, Samples: 2, Operations: 32, Time: 4000, Recent: []time.Duration{1600, 2400}},
			{ID: 12, Kind: limiter.ClassHostToDevice, Samples: 29, Operations: 30, Bytes: 29 << 20, Time: 29000, Recent: ring},
		}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
}

// TestGoldenPages: pages of version 2, of a container that has run on since an older agent made them, say the same as those
// of today, but for the traffic books, which are not there.
func TestGoldenPages(t *testing.T) {
	t.Run("v2", func(t *testing.T) { checkGolden(t, "v2", limitsV2(), usageV2()) })
	t.Run("v3", func(t *testing.T) { checkGolden(t, "v3", limitsV3(), usageV3()) })
}

func checkGolden(t *testing.T, version string, limitsPage, usagePage []byte) {
	golden := filepath.Join("testdata", "pages", version)
	for name, want := range map[string][]byte{limiter.LimitsFile: limitsPage, limiter.UsageFile: usagePage} {
		path := filepath.Join(golden, name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s is not the page that this test lays out: %v", path, err)
		}
	}
	limits, err := limiter.ReadLimits(golden)
	if err != nil {
		t.Fatal(err)
	}
	wantLimits := limiter.Limits{Key: "a1b2c3d4", Epoch: 5, Frozen: limiter.DamageCut, NoTraffic: version == "v2", Devices: []limiter.Device{
		{UUID: "GPU-one", SliceCount: 1, MemoryLimitBytes: 8000 * mib,
			Compute: limiter.Compute{Mode: limiter.ComputeHard, SharePPM: 250000, CeilingPPM: 250000}},
		{UUID: "MIG-two", SliceCount: 3, MemoryLimitBytes: 24000 * mib,
			Compute: limiter.Compute{Mode: limiter.ComputeElastic, SharePPM: 750000, CeilingPPM: 900000}}}}
	if diff := cmp.Diff(wantLimits, limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	want := limiter.Usage{
		Devices: []limiter.DeviceUsage{
			{UUID: "GPU-one", UsedBytes: 50321, ByKind: [limiter.KindCount]uint64{50001, 20, 300}, Allocations: 130, Frees: 102, Refusals: 13},
			{UUID: "MIG-two", UsedBytes: 4000, ByKind: [limiter.KindCount]uint64{4000}, Allocations: 30, Frees: 12, Refusals: 6,
				Compute: limiter.ComputeUsage{Spent: 6 * time.Second, Charged: 4 * time.Second, Wanted: 9 * time.Second,
					Waited: 8 * time.Second, Throttled: 700, Degraded: 600, Launches: 500}}},
		Processes: []limiter.Process{
			{PID: 1, PIDNamespace: 4026531836, StartTime: 4711, UsedBytes: []uint64{321, 4000}},
			{PID: 4194303, PIDNamespace: 4026531836, StartTime: 4711, UsedBytes: []uint64{50000, 0}}},
	}
	if diff := cmp.Diff(want, readUsage(t, golden)); diff != "" {
		t.Errorf("usage (-want +got):\n%s", diff)
	}
}

// TestPagesAsWritten: what today's code writes is what version 3 says.
func TestPagesAsWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pages")
	limits, err := limiter.ReadLimits(filepath.Join("testdata", "pages", "v2")) // new pages are of the newest version
	if err != nil {
		t.Fatal(err)
	}
	if err := limiter.Create(dir, limits); err != nil {
		t.Fatal(err)
	}
	book := openBook(t, dir)
	if err := book.Reserve(1, limiter.KindPool, 4242); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, limiter.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	want := limitsV3()
	want[64], want[68] = 0, 0 // new pages are neither frozen nor steered
	copy(want[128+128+32:], got[128+128+32:128+128+40])
	copy(want[320+128:], make([]byte, 64)) // the rate begins at the share, now
	copy(want[320+128+32:], lay(32, []put{{16, 4, 750000}, {20, 4, 1000000}}, nil))
	copy(want[320+128+32:], got[320+128+32:320+128+40])
	want[320+92] = 1
	if !bytes.Equal(got, want) {
		t.Error("the limits page differs from that of version 3")
	}
	usage, err := os.ReadFile(filepath.Join(dir, limiter.UsageFile))
	if err != nil {
		t.Fatal(err)
	}
	header := usageV3()[:64]
	header[24] = 1 // slot_high_water
	if !bytes.Equal(usage[:64], header) {
		t.Errorf("header of the usage page: % x", usage[:64])
	}
	word := func(offset int) uint64 { return binary.LittleEndian.Uint64(usage[offset:]) }
	const slot = 64 + 2*256
	if owner := word(slot); owner&(1<<22-1) != uint64(os.Getpid()) || word(slot+8) != owner || word(slot+32) != 5|1<<32 {
		t.Errorf("slot 0: owner %x, ready %x, epoch and life_lock %x", owner, word(slot+8), word(slot+32))
	}
	if charge, claim := word(slot+64+256+16), word(slot+64+256+64); charge != 4242 || claim != 0 {
		t.Errorf("slot 0: pool charge %d, claim %d, want 4242 and 0", charge, claim)
	}
}

// TestCoreIsWatched: every file of the core has its link here (see core.go), and every source is compiled.
func TestCoreIsWatched(t *testing.T) {
	files, err := filepath.Glob("../libvgpu/core/*.[ch]")
	if err != nil || len(files) < 5 {
		t.Fatalf("files of the core: %v, %v", files, err)
	}
	for _, file := range append(files, "../libvgpu/include/vgpu_abi.h") {
		name := filepath.Base(file)
		link := "dep_" + strings.ReplaceAll(name, ".", "_") + ".h"
		if target, err := os.Readlink(link); err != nil || target != file {
			t.Errorf("%s: is %q, %v, want a link to %s", link, target, err, file)
		}
		if !strings.HasSuffix(name, ".c") {
			continue
		}
		text, err := os.ReadFile("core_" + name)
		if err != nil || !bytes.Contains(text, []byte(`#include "`+file+`"`)) {
			t.Errorf("core_%s does not compile %s: %v", name, file, err)
		}
	}
}

// TestPagesWithoutTrafficBooks: a container that was made before there were traffic books is measured, steered, restored and
// frozen as ever, in pages that stay as its library knows them; of its traffic nothing is known.
func TestPagesWithoutTrafficBooks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "pages", "v2"))); err != nil {
		t.Fatal(err)
	}
	if _, err := limiter.OpenTraffic(dir); !errors.Is(err, limiter.ErrVersion) {
		t.Errorf("%v, want ErrVersion", err)
	}
	steering, err := limiter.OpenSteering(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer steering.Close()
	meters, err := steering.Meter(0)
	if err != nil || meters[1].Launches != 500 {
		t.Errorf("%+v, %v", meters, err)
	}
	rate := limiter.Rate{PPM: 600_000, ScalePPM: limiter.PPM}
	if err := steering.Publish(1, rate, limiter.MonotonicNow()); err != nil || steering.Rate(1) != rate {
		t.Errorf("%+v, %v", steering.Rate(1), err)
	}
	usage := filepath.Join(dir, limiter.UsageFile)
	if err := os.Truncate(usage, 100); err != nil {
		t.Fatal(err)
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	if size := fileSize(t, usage); size != 151552 {
		t.Errorf("restored to %d bytes", size)
	}
	if _, err := limiter.ReadUsage(dir); err != nil {
		t.Error(err)
	}
	if err := os.Remove(usage); err != nil {
		t.Fatal(err)
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	if made, err := os.ReadFile(usage); err != nil || len(made) != 151552 || made[8] != 2 {
		t.Errorf("made anew: %d bytes of version %d, %v", len(made), made[8], err)
	}
	book := openBook(t, dir)
	if err := book.Reserve(0, limiter.KindDevice, 9000*mib); !errors.Is(err, limiter.ErrTampered) { // frozen, as it came
		t.Errorf("reserve in a frozen allocation: %v", err)
	}
	if _, err := limiter.RaiseEpoch(dir); err != nil {
		t.Fatal(err)
	}
	if err := book.Reserve(0, limiter.KindDevice, 1000*mib); err != nil {
		t.Error(err)
	}
	if err := book.Reserve(0, limiter.KindDevice, 7001*mib); !errors.Is(err, limiter.ErrOverLimit) {
		t.Errorf("beyond the limit: %v", err)
	}
}

// TestPagesWithoutComputeBook: containers that were made before there was a compute book start again, keep their memory limit,
// and are not taken for limited in what their library does not limit.
func TestPagesWithoutComputeBook(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	if err := os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "pages", "v1"))); err != nil {
		t.Fatal(err)
	}
	before, err := limiter.ReadLimits(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range before.Devices {
		if !before.MemoryOnly || device.MemoryLimitBytes == 0 || device.Compute != (limiter.Compute{}) {
			t.Errorf("%+v", before)
		}
	}
	uuid := before.Devices[0].UUID
	epoch, err := limiter.RaiseEpoch(dir)
	if err != nil || epoch != before.Epoch+1 {
		t.Errorf("epoch %d after %d: %v", epoch, before.Epoch, err)
	}
	if err := limiter.SetMemoryLimit(dir, uuid, 4096); err != nil {
		t.Error(err)
	}
	if err := limiter.Freeze(dir, limiter.DamageCut); err != nil {
		t.Error(err)
	}
	after, err := limiter.ReadLimits(dir)
	if err != nil || after.Devices[0].MemoryLimitBytes != 4096 || after.Frozen != limiter.DamageCut {
		t.Errorf("%+v, %v", after, err)
	}
	_, usageErr := limiter.ReadUsage(dir)
	_, steeringErr := limiter.OpenSteering(dir)
	for _, err := range []error{usageErr, steeringErr, limiter.RestoreUsage(dir),
		limiter.SetCompute(dir, uuid, limiter.Compute{Mode: limiter.ComputeHard, SharePPM: 300_000, CeilingPPM: 300_000})} {
		if !errors.Is(err, limiter.ErrVersion) {
			t.Errorf("%v, want ErrVersion", err)
		}
	}
}
