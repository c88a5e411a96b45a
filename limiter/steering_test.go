// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Grants of GPU time, rates and meters, seen from the agent's side.

package limiter_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/limiter"
)

// newComputePages makes pages for one device whose GPU time is limited, and returns their directory.
func newComputePages(t testing.TB, compute limiter.Compute) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "key")
	err := limiter.Create(dir, limiter.Limits{Key: "key", Devices: []limiter.Device{
		{UUID: testUUID, SliceCount: 1, MemoryLimitBytes: 1000, Compute: compute}}})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func hard(ppm uint32) limiter.Compute {
	return limiter.Compute{Mode: limiter.ComputeHard, SharePPM: ppm, CeilingPPM: ppm}
}

func elastic(ppm uint32) limiter.Compute {
	return limiter.Compute{Mode: limiter.ComputeElastic, SharePPM: ppm, CeilingPPM: limiter.PPM}
}

func openSteering(t testing.TB, dir string) *limiter.Steering {
	t.Helper()
	s, err := limiter.OpenSteering(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newPacer(t testing.TB, dir string) *limiter.Pacer {
	t.Helper()
	p := limiter.NewPacer(openBook(t, dir), 0)
	t.Cleanup(p.Close)
	return p
}

// launch asks once for a launch that cannot be measured, of a function of unknown cost: it costs 1 ms.
func launch(p *limiter.Pacer, now time.Duration) time.Duration {
	return p.Ask(1, 1, 1, now, 0, limiter.PatienceMax, &limiter.Ticket{Blind: true})
}

// use launches as much as can be launched at now, and returns how much GPU time that is.
func use(p *limiter.Pacer, now time.Duration) (sum time.Duration) {
	for ; launch(p, now) == 0; sum += time.Millisecond {
	}
	return sum
}

func TestComputeGrants(t *testing.T) {
	for _, compute := range []limiter.Compute{{}, hard(10000), hard(limiter.PPM), elastic(250000),
		{Mode: limiter.ComputeElastic, SharePPM: 250000, CeilingPPM: 500000}} {
		dir := newComputePages(t, compute)
		l, err := limiter.ReadLimits(dir)
		if err != nil || l.Devices[0].Compute != compute {
			t.Errorf("%+v reads as %+v, %v", compute, l.Devices[0].Compute, err)
		}
	}
	for name, compute := range map[string]limiter.Compute{
		"no share":          {Mode: limiter.ComputeHard},
		"below one percent": hard(9999),
		"above the whole":   hard(limiter.PPM + 1),
		"low ceiling":       {Mode: limiter.ComputeElastic, SharePPM: 500000, CeilingPPM: 400000},
		"high ceiling":      {Mode: limiter.ComputeElastic, SharePPM: 500000, CeilingPPM: limiter.PPM + 1},
		"hard and lent":     {Mode: limiter.ComputeHard, SharePPM: 500000, CeilingPPM: 600000},
		"share of nothing":  {SharePPM: 500000},
		"unknown mode":      {Mode: 3, SharePPM: 500000, CeilingPPM: 500000},
	} {
		dir := filepath.Join(t.TempDir(), "k")
		if err := limiter.Create(dir, limiter.Limits{Key: "k", Devices: []limiter.Device{{UUID: "GPU-a", Compute: compute}}}); err == nil {
			t.Errorf("%s: created", name)
		}
		if err := limiter.SetCompute(newComputePages(t, hard(500000)), testUUID, compute); err == nil {
			t.Errorf("%s: set", name)
		}
		if err := openSteering(t, newComputePages(t, hard(500000))).SetCompute(0, compute, 0); err == nil {
			t.Errorf("%s: set through a handle", name)
		}
	}
	for mode, want := range map[limiter.ComputeMode]string{0: "none", 1: "hard", 2: "elastic", 9: "mode 9"} {
		if got := mode.String(); got != want {
			t.Errorf("mode %d is %q, want %q", mode, got, want)
		}
	}
}

// TestSetCompute: a new grant holds at once, for processes that run already, without an agent.
func TestSetCompute(t *testing.T) {
	dir := newComputePages(t, hard(500000))
	p, now := newPacer(t, dir), limiter.MonotonicNow()+time.Second
	if got := use(p, now); got != 11*time.Millisecond {
		t.Errorf("%v used at once at one half, want the burst of 10ms and one kernel", got)
	}
	if err := limiter.SetCompute(dir, testUUID, elastic(100000)); err != nil {
		t.Fatal(err)
	}
	if l, err := limiter.ReadLimits(dir); err != nil || l.Devices[0].Compute != elastic(100000) {
		t.Errorf("reads as %+v, %v", l.Devices, err)
	}
	if got := use(p, now+10*time.Second); got != 3*time.Millisecond {
		t.Errorf("%v used at once at a tenth, want the burst of 2ms and one kernel", got)
	}
	if err := limiter.SetCompute(dir, testUUID, limiter.Compute{}); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if wait := launch(p, now+10*time.Second); wait != 0 {
			t.Fatalf("waits %v without a limit", wait)
		}
	}
	if err := limiter.SetCompute(dir, "GPU-other", hard(500000)); err == nil {
		t.Error("set the share of a device that is not there")
	}
}

// TestSteering: what is published is in force, continues the line, and changes nothing when it is nothing new.
func TestSteering(t *testing.T) {
	dir := newComputePages(t, elastic(250000))
	s := openSteering(t, dir)
	if got, want := s.Rate(0), (limiter.Rate{PPM: 250000, ScalePPM: limiter.PPM}); got != want {
		t.Errorf("rate %+v at first, want %+v", got, want)
	}
	if got := s.Limits(); got.Key != "key" || got.Devices[0].Compute != elastic(250000) {
		t.Errorf("limits %+v", got)
	}
	p, now := newPacer(t, dir), limiter.MonotonicNow()+time.Second
	use(p, now)
	rate := limiter.Rate{PPM: 1010000, ScalePPM: 2 * limiter.PPM, Alone: true}
	page := func() string {
		b, err := os.ReadFile(filepath.Join(dir, limiter.LimitsFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if err := s.Publish(0, rate, now+time.Second); err != nil || s.Rate(0) != rate {
		t.Errorf("publish: %v, rate %+v", err, s.Rate(0))
	}
	before := page()
	if err := s.Publish(0, rate, now+2*time.Second); err != nil || page() != before {
		t.Errorf("publish the same: %v; the page changed: %v", err, page() != before)
	}
	if got := use(p, now+10*time.Second); got != 11*time.Millisecond {
		t.Errorf("%v used at once at 1.01 and twice the cost, want a burst of 10.1ms and one kernel", got)
	}
	if err := s.Publish(1, rate, now); err == nil {
		t.Error("published for a device that is not there")
	}
	s.Beat()
	if page() == before {
		t.Error("a beat changed nothing")
	}
	if l := s.Limits(); l.Devices[0].Compute != elastic(250000) {
		t.Errorf("the grant is %+v after a publication", l.Devices[0].Compute)
	}
}

// TestPublishAfterReboot: a line of another boot begins anew where the spending is, so nobody is in debt for it.
func TestPublishAfterReboot(t *testing.T) {
	dir := newComputePages(t, hard(500000))
	s, p := openSteering(t, dir), newPacer(t, dir)
	use(p, limiter.MonotonicNow()+1000*time.Second)
	now := limiter.MonotonicNow() / 1000 // of the next boot
	if err := s.Publish(0, s.Rate(0), now); err != nil {
		t.Fatal(err)
	}
	if debt := p.Debt(now); debt != 0 {
		t.Errorf("debt of %v after a reboot", debt)
	}
	if got := use(p, now+time.Second); got != 11*time.Millisecond {
		t.Errorf("%v used at once, want 11ms", got)
	}
}

// TestPublishWakes: who waits for GPU time looks again when the rate changes.
func TestPublishWakes(t *testing.T) {
	dir := newComputePages(t, elastic(250000))
	s := openSteering(t, dir)
	file, err := os.Open(filepath.Join(dir, limiter.LimitsFile))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	word := (*uint32)(unsafe.Pointer(&mapped[128+92]))
	const futexWait = 0
	done := make(chan unix.Errno, 1)
	go func() {
		timeout := unix.Timespec{Sec: 20}
		_, _, code := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait,
			uintptr(atomic.LoadUint32(word)), uintptr(unsafe.Pointer(&timeout)), 0, 0)
		done <- code
	}()
	for ppm := uint32(300000); ; ppm++ { // until the waiter has begun to wait, and is woken
		if err := s.Publish(0, limiter.Rate{PPM: ppm, ScalePPM: limiter.PPM}, limiter.MonotonicNow()); err != nil {
			t.Fatal(err)
		}
		select {
		case code := <-done:
			if code != 0 && code != unix.EAGAIN {
				t.Errorf("waited for a rate: %v", code)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestMeter: what processes did, debt included, also after the page was replaced; and errors as ReadUsage has them.
func TestMeter(t *testing.T) {
	dir := newComputePages(t, hard(500000))
	s, p, now := openSteering(t, dir), newPacer(t, dir), limiter.MonotonicNow()+time.Second
	if got, err := s.Meter(now); err != nil || !cmp.Equal(got, []limiter.ComputeUsage{{}}) {
		t.Errorf("at first %+v, %v", got, err)
	}
	use(p, now)
	p.Waiting(now, now+time.Millisecond, 0)
	p.Waited(now+time.Millisecond, time.Millisecond)
	got, err := s.Meter(now)
	if err != nil {
		t.Fatal(err)
	}
	if debt := got[0].Debt; debt <= 0 || debt > time.Millisecond {
		t.Errorf("debt %v, want some, at most one kernel", debt)
	}
	if later, err := s.Meter(now + 10*time.Millisecond); err != nil || later[0].Debt != 0 {
		t.Errorf("later: %+v, %v, want no debt", later, err)
	}
	spent := got[0].Spent
	got[0].Spent, got[0].Debt, got[0].Degraded = 0, 0, 0
	want := []limiter.ComputeUsage{{Charged: 11 * time.Millisecond, Wanted: now, Waited: now, Throttled: time.Millisecond, Launches: 11}}
	if diff := cmp.Diff(want, got); diff != "" || spent <= 0 {
		t.Errorf("spent %v, meter (-want +got):\n%s", spent, diff)
	}
	if u := readUsage(t, dir); u.Devices[0].Compute.Launches != 11 || u.Devices[0].Compute.Charged != 11*time.Millisecond {
		t.Errorf("ReadUsage: %+v", u.Devices[0].Compute)
	}

	path := filepath.Join(dir, limiter.UsageFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Meter(now); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v, want fs.ErrNotExist", err)
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Meter(now); err != nil || !cmp.Equal(got, []limiter.ComputeUsage{{}}) {
		t.Errorf("made anew: %+v, %v", got, err)
	}
	pokeUint64(t, path, 8, 0)
	if _, err := s.Meter(now); !errors.Is(err, limiter.ErrTampered) {
		t.Errorf("another header: %v, want ErrTampered", err)
	}
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Meter(now); !errors.Is(err, limiter.ErrTampered) {
		t.Errorf("cut: %v, want ErrTampered", err)
	}
}

// TestMeterBelievesNothing: every word of the compute book as its worst.
func TestMeterBelievesNothing(t *testing.T) {
	dir := newComputePages(t, hard(500000))
	s, path := openSteering(t, dir), filepath.Join(dir, limiter.UsageFile)
	for offset := int64(64); offset < 320; offset += 8 {
		pokeUint64(t, path, offset, math.MaxUint64)
	}
	pokeUint64(t, path, 64, 0) // what ReadUsage refuses: sums of the memory book
	pokeUint64(t, path, 72, 0)
	pokeUint64(t, path, 80, 0)
	got, err := s.Meter(limiter.MonotonicNow())
	if err != nil {
		t.Fatal(err)
	}
	u := got[0]
	for _, d := range []time.Duration{u.Spent, u.Charged, u.Wanted, u.Waited, u.Throttled, u.Degraded} {
		if d < 0 || d > 1<<60 {
			t.Errorf("absurd %+v", u)
		}
	}
	if u.Debt != 0 || u.Launches > 1<<60 {
		t.Errorf("absurd %+v", u)
	}
	readUsage(t, dir)
}

// FuzzLimitsCompute: any bytes as the compute group of a limits page. Reading never fails for them, and a process is
// never unlimited.
func FuzzLimitsCompute(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add([]byte(strings.Repeat("\xff", 112)), uint8(0))
	f.Add(make([]byte, 112), uint8(0))
	f.Add(binary.LittleEndian.AppendUint64(nil, 2), uint8(8))
	f.Add(binary.LittleEndian.AppendUint64(nil, math.MaxUint64), uint8(12))
	f.Fuzz(func(t *testing.T, patch []byte, offset uint8) {
		dir := newComputePages(t, hard(500000))
		path := filepath.Join(dir, limiter.LimitsFile)
		tamper(t, path, patch[:min(len(patch), 112)], 128+80+int64(offset)%112, 0)
		l, err := limiter.ReadLimits(dir)
		if err != nil {
			if !errors.Is(err, limiter.ErrTampered) {
				t.Errorf("ReadLimits: %v", err)
			}
			return
		}
		c := l.Devices[0].Compute
		if c.Mode == limiter.ComputeNone {
			if c != (limiter.Compute{}) {
				t.Errorf("not limited, and %+v", c)
			}
			return
		}
		if c.SharePPM < limiter.SharePPMMin || c.SharePPM > c.CeilingPPM || c.CeilingPPM > limiter.PPM {
			t.Errorf("absurd %+v", c)
		}
		s := openSteering(t, dir)
		if r := s.Rate(0); r.PPM < limiter.SharePPMMin || r.PPM > 1050000 || r.ScalePPM < 100000 || r.ScalePPM > 10000000 {
			t.Errorf("absurd %+v", r)
		}
		p, now := newPacer(t, dir), limiter.MonotonicNow()
		for range 3 {
			now += time.Second
			if got := use(p, now); got > 11*time.Second {
				t.Errorf("%v used within a second", got)
			}
		}
		if err := s.Publish(0, limiter.Rate{PPM: 500000, ScalePPM: limiter.PPM}, now); err != nil {
			t.Error(err)
		}
	})
}
