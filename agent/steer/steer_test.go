// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of steering: whose pages it has open, what it writes into them, what it says. decide has the tests of what it
// decides, limiter those of the lines in the pages.

package steer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/steer/steertest"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
)

// steerBench is a ledger, pages and a Loop on them, without an agent.
type steerBench struct {
	t     *testing.T
	books *ledger.Ledger
	store *store.Pages
	pages string // its directory
	steer *Loop
	log   *bytes.Buffer
}

func newSteerBench(t *testing.T, policy ledger.ComputePolicy, gpus ...string) *steerBench {
	t.Helper()
	directory := t.TempDir()
	books, err := ledger.Open(filepath.Join(directory, "records"))
	if err != nil {
		t.Fatal(err)
	}
	books.SetCompute(policy)
	var cards []ledger.GPU
	for _, uuid := range gpus {
		cards = append(cards, ledger.GPU{UUID: uuid, UsableBytes: 80 << 30, Slices: 10})
	}
	books.SetGPUs(cards)
	b := &steerBench{t: t, books: books, pages: filepath.Join(directory, "pages"), log: &bytes.Buffer{}}
	b.store = store.NewPages(b.pages, store.MakePagesDir, slog.New(slog.DiscardHandler))
	b.restart()
	t.Cleanup(func() { b.steer.close() })
	return b
}

// restart is another agent on the same pages.
func (b *steerBench) restart() {
	if b.steer != nil {
		b.steer.close()
	}
	b.steer = New(b.books, b.store, nil, logtest.Timeless(b.log))
}

// grant makes an allocation as the plugin does.
func (b *steerBench) grant(ids ...string) ledger.Record {
	b.t.Helper()
	record, err := b.books.Hold("nvidia.com/gpu", ids, ledger.Library{BuildID: "abcd", ContainerDir: "/usr/local/vgpud"}, b.pages, time.Now())
	if err == nil {
		err = errors.Join(b.store.Create(record), b.books.Commit(record.Key))
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return record
}

// heartbeat reads the word that the library watches.
func (b *steerBench) heartbeat(record ledger.Record) uint32 {
	b.t.Helper()
	const offset = 68 // vgpu_limits_page.heartbeat
	page, err := os.ReadFile(filepath.Join(store.Directory(record), limiter.LimitsFile))
	if err != nil {
		b.t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(page[offset:])
}

// openPages counts the files below the pages directory that this process has open.
func (b *steerBench) openPages() int {
	b.t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		b.t.Fatal(err)
	}
	count := 0
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && strings.HasPrefix(target, b.pages+"/") {
			count++
		}
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		b.t.Fatal(err)
	}
	return count + bytes.Count(maps, []byte(b.pages+"/"))
}

var elastic = ledger.ComputePolicy{Mode: ledger.ComputeElastic, CeilingPPM: ledger.WholePPM}

// An allocation is steered in the first round after its grant, without a tick, and let go of in the first after its release.
func TestSteerFollowsTheBooks(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA, gpuB)
	b.steer.round()
	record := b.grant(ledger.SliceID(gpuA, 0), ledger.SliceID(gpuA, 1), ledger.SliceID(gpuB, 4))
	if beat := b.heartbeat(record); beat != 0 {
		t.Errorf("heartbeat %d before anybody steers", beat)
	}
	if next := b.steer.round(); next > beatEvery {
		t.Errorf("the next round is in %v", next)
	}
	if b.heartbeat(record) == 0 {
		t.Error("no heartbeat after a round")
	}
	verdicts := b.steer.View().Verdicts
	if len(verdicts) != 2 || verdicts[0].Granted != 0.2 || verdicts[1].Granted != 0.1 {
		t.Errorf("verdicts %+v", verdicts)
	}
	if b.openPages() == 0 {
		t.Error("no page is open")
	}
	if err := errors.Join(b.books.Release(record.Key), b.store.Remove(record)); err != nil {
		t.Fatal(err)
	}
	b.steer.round()
	if view := b.steer.View(); len(view.Verdicts) != 0 || len(view.Seen.Tenants) != 0 || view.Rounds != 3 {
		t.Errorf("after the release: %+v", view)
	}
	if open := b.openPages(); open != 0 {
		t.Errorf("%d pages of a released allocation are open", open)
	}
	if b.log.Len() != 0 {
		t.Errorf("log:\n%s", b.log)
	}
}

// What is not limited is not steered.
func TestSteerLeavesUnlimitedAlone(t *testing.T) {
	b := newSteerBench(t, ledger.ComputePolicy{Mode: ledger.ComputeNone}, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	b.steer.round()
	if beat := b.heartbeat(record); beat != 0 || len(b.steer.View().Verdicts) != 0 || b.openPages() != 0 {
		t.Errorf("heartbeat %d, %+v, %d pages open", beat, b.steer.View(), b.openPages())
	}
	if IsSteered(record) {
		t.Error("it counts as steered")
	}
}

// The heartbeat changes at least twice a second, and is not written in every round.
func TestSteerBeats(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	now := limiter.MonotonicNow()
	b.steer.now = func() time.Duration { return now }
	b.steer.round()
	changes, last := 0, b.heartbeat(record)
	for range 100 { // 2 s
		now += 20 * time.Millisecond
		b.steer.round()
		if beat := b.heartbeat(record); beat != last {
			changes, last = changes+1, beat
		}
	}
	if changes < 4 || changes > 20 {
		t.Errorf("%d changes of the heartbeat in 2 s", changes)
	}
}

// A share that is changed while it is in use is the new one by the next heartbeat but one.
func TestSteerFollowsSharesThatChange(t *testing.T) {
	b := newSteerBench(t, ledger.ComputePolicy{Mode: ledger.ComputeHard}, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	now := limiter.MonotonicNow()
	b.steer.now = func() time.Duration { return now }
	b.steer.round()
	changed := limiter.Compute{Mode: limiter.ComputeHard, SharePPM: 600_000, CeilingPPM: 600_000}
	if err := limiter.SetCompute(store.Directory(record), gpuA, changed); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		now += beatEvery
		b.steer.round()
	}
	verdicts := b.steer.View().Verdicts
	if len(verdicts) != 1 || verdicts[0].Granted != 0.6 || verdicts[0].Rate != 0.6 {
		t.Errorf("verdicts %+v", verdicts)
	}
}

// Pages that are made anew are steered on: nobody writes into the old ones.
func TestSteerFollowsPagesThatAreMadeAnew(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	b.steer.round()
	before := b.openPages()
	if err := errors.Join(os.Remove(filepath.Join(store.Directory(record), limiter.UsageFile)), b.store.Restore(record)); err != nil {
		t.Fatal(err)
	}
	if beat := b.heartbeat(record); beat != 0 {
		t.Fatalf("new pages have the heartbeat %d", beat)
	}
	b.steer.round()
	if b.heartbeat(record) == 0 {
		t.Error("the new pages have no heartbeat")
	}
	if after := b.openPages(); after != before {
		t.Errorf("%d pages open, %d before", after, before)
	}
}

// Pages that are not there are one fault, said once, and no fault of the others.
func TestSteerWithoutPages(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	gone, there := b.grant(ledger.SliceID(gpuA, 0)), b.grant(ledger.SliceID(gpuA, 1))
	if err := b.store.Remove(gone); err != nil {
		t.Fatal(err)
	}
	now := limiter.MonotonicNow()
	b.steer.now = func() time.Duration { return now }
	for range 10 {
		b.steer.round()
		now += retryEvery / 4
	}
	if b.heartbeat(there) == 0 {
		t.Error("the other allocation is not steered")
	}
	if got := strings.Count(b.log.String(), "is not steered"); got != 1 || !strings.Contains(b.log.String(), gone.Key) {
		t.Errorf("said %d times:\n%s", got, b.log)
	}
	// Somebody puts them back without our store, as a mount that comes back does.
	other := store.NewPages(b.pages, store.MakePagesDir, slog.New(slog.DiscardHandler))
	if err := other.Create(gone); err != nil {
		t.Fatal(err)
	}
	now += 2 * retryEvery
	b.steer.round()
	if b.heartbeat(gone) == 0 || !strings.Contains(b.log.String(), "is steered") {
		t.Errorf("not steered again:\n%s", b.log)
	}
}

// Another agent goes on where the one before it left off: rates, and the line of what the allocation is entitled to.
func TestSteerContinuesAfterARestart(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	b.steer.round()
	lent := limiter.Rate{PPM: 700_000, ScalePPM: 800_000}
	if err := b.steer.tenants[record.Key].handle.Publish(0, lent, limiter.MonotonicNow()); err != nil {
		t.Fatal(err)
	}
	beat := b.heartbeat(record)
	b.restart()
	b.steer.follow(b.steer.now())
	if got := b.steer.tenants[record.Key].handle.Rate(0); got.PPM != lent.PPM || got.ScalePPM != lent.ScalePPM {
		t.Errorf("the new agent starts with %+v, %+v was in force", got, lent)
	}
	b.steer.round()
	if b.heartbeat(record) == beat {
		t.Error("the heartbeat stands still")
	}
}

// A usage page that is cut, or gone, makes no fault of steering: the tick tells and mends it. That it is cut is seen at once,
// that it is gone, which no container can do, within verifyEvery.
func TestSteerOnDamagedUsage(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	now := limiter.MonotonicNow()
	b.steer.now = func() time.Duration { return now }
	b.steer.round()
	usage := filepath.Join(store.Directory(record), limiter.UsageFile)
	for _, damage := range []struct {
		do   func() error
		seen time.Duration // after so long
	}{{func() error { return os.Truncate(usage, 10) }, 0}, {func() error { return os.Remove(usage) }, verifyEvery}} {
		if err := damage.do(); err != nil {
			t.Fatal(err)
		}
		now += damage.seen
		b.steer.round()
		if tenants := b.steer.View().Seen.Tenants; len(tenants) != 1 || tenants[0].Known || tenants[0].SharePPM != 100_000 {
			t.Errorf("%+v", tenants)
		}
		if err := b.store.RestoreUsage(record); err != nil {
			t.Fatal(err)
		}
		b.steer.round()
		if tenants := b.steer.View().Seen.Tenants; len(tenants) != 1 || !tenants[0].Known {
			t.Errorf("mended: %+v", tenants)
		}
	}
	if _, err := os.Stat(usage); errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// Whose share binds, who takes more and who is not measured is said once, with the container and the figures.
func TestSteerSays(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	record := b.grant(ledger.SliceID(gpuA, 0))
	if err := b.books.Identify(record.Key, ledger.Identity{PodUID: "uid", Namespace: "md", Pod: "benchmem-01", Container: "gmx"}); err != nil {
		t.Fatal(err)
	}
	b.steer.round()
	verdict := steering.Verdict{Key: record.Key, GPUUUID: gpuA, Granted: 0.1, Rate: 0.1}
	for used := range 5 {
		verdict.OverShare, verdict.Used, verdict.UsedKnown, verdict.Reason = true, 0.2+float64(used)/100, true, fmt.Sprint("evidence ", used)
		verdict.Held = used >= 2
		b.steer.report(steering.Result{Verdicts: []steering.Verdict{verdict}}, nil, time.Duration(used)*time.Second)
	}
	verdict.OverShare, verdict.Held, verdict.UsedKnown, verdict.Reason = false, false, false, ""
	for second := range 30 {
		b.steer.report(steering.Result{Verdicts: []steering.Verdict{verdict}}, errors.New("no driver"), 5+time.Duration(second)*time.Second)
	}
	verdict.UsedKnown = true
	b.steer.report(steering.Result{Verdicts: []steering.Verdict{verdict}}, nil, time.Minute)
	rest := " allocation=" + record.Key + " gpu=" + gpuA + " namespace=md pod=benchmem-01 container=gmx granted_percent=10 rate_percent=10"
	want := []string{
		`level=WARN msg="container uses more GPU time than it may" component=steer stage=share` + rest + ` used_percent=20 reason="evidence 0"`,
		`level=INFO msg="container waits for GPU time most of the time: its share binds" component=steer stage=cap` + rest + ` used_percent=22 reason="evidence 2"`,
		`level=WARN msg="source not readable" component=steer stage=observe source=utilization error="no driver"`,
		`level=INFO msg="container uses no more GPU time than it may" component=steer stage=share` + rest,
		`level=INFO msg="container no longer waits for GPU time most of the time" component=steer stage=cap` + rest,
		`level=WARN msg="use of GPU time is not measured: the driver has no samples; the containers' own measurements hold" component=steer stage=measure gpu=` + gpuA,
		`level=INFO msg="source is readable" component=steer stage=observe source=utilization`,
		`level=INFO msg="use of GPU time is measured" component=steer stage=measure gpu=` + gpuA,
	}
	if got := strings.Split(strings.TrimSpace(b.log.String()), "\n"); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// BenchmarkSteerRound is what steering costs: a node with 50 allocations on 8 GPUs, nothing of which is in use, and all.
func BenchmarkSteerRound(b *testing.B) {
	for _, busy := range []bool{false, true} {
		b.Run(fmt.Sprintf("busy=%t", busy), func(b *testing.B) { benchmarkRounds(b, busy) })
	}
}

func benchmarkRounds(b *testing.B, busy bool) {
	const gpus, allocations = 8, 50
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	directory := b.TempDir()
	books, err := ledger.Open(filepath.Join(directory, "records"))
	if err != nil {
		b.Fatal(err)
	}
	books.SetCompute(elastic)
	var cards []ledger.GPU
	for i := range gpus {
		cards = append(cards, ledger.GPU{UUID: fmt.Sprintf("GPU-%08d", i), UsableBytes: 80 << 30, Slices: 10})
	}
	books.SetGPUs(cards)
	pagesDir := filepath.Join(directory, "pages")
	pages := store.NewPages(pagesDir, store.MakePagesDir, slog.New(slog.DiscardHandler))
	s := New(books, pages, nil, slog.New(slog.DiscardHandler))
	defer s.close()
	now := limiter.MonotonicNow()
	s.now = func() time.Duration { return now }
	var pacers []*limiter.Pacer
	for i := range allocations {
		id := ledger.SliceID(cards[i%gpus].UUID, i/gpus)
		record, err := books.Hold("nvidia.com/gpu", []string{id}, ledger.Library{BuildID: "abcd", ContainerDir: "/usr/local/vgpud"}, pagesDir, time.Now())
		if err == nil {
			err = errors.Join(pages.Create(record), books.Commit(record.Key))
		}
		if err != nil {
			b.Fatal(err)
		}
		book, err := limiter.OpenBook(store.Directory(record))
		if err != nil {
			b.Fatal(err)
		}
		defer book.Close()
		pacer := limiter.NewPacer(book, 0)
		defer pacer.Close()
		pacers = append(pacers, pacer)
	}
	rest := s.round()
	var virtual, spent time.Duration
	for b.Loop() {
		now += rest
		virtual += rest
		if busy {
			b.StopTimer()
			for _, pacer := range pacers { // more than its share: some work, and somebody who waits
				steertest.Launch(pacer, now, rest/2)
			}
			b.StartTimer()
		}
		began := threadTime(b)
		rest = s.round()
		spent += threadTime(b) - began
	}
	b.ReportMetric(100*spent.Seconds()/virtual.Seconds(), "%core")
	b.ReportMetric(rest.Seconds()*1000, "ms/pause")
}

// threadTime is what the calling thread has used of the CPU: other programs on the machine do not count.
func threadTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// While nobody has wanted anything for a second rounds cost a glance, after ten a glance with each heartbeat; the heart beats
// on, and the first round after something happened is a whole one again.
func TestSteerRests(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	record, other := b.grant(ledger.SliceID(gpuA, 0)), b.grant(ledger.SliceID(gpuA, 1))
	now := limiter.MonotonicNow()
	b.steer.now = func() time.Duration { return now }
	rounds := func(forHow time.Duration) (whole uint64, beats int) {
		before, beat := b.steer.View().Rounds, b.heartbeat(record)
		for end := now + forHow; now < end; {
			now += b.steer.round()
			if at := b.heartbeat(record); at != beat {
				beats, beat = beats+1, at
			}
		}
		return b.steer.View().Rounds - before, beats
	}
	if whole, _ := rounds(2 * restsAfter); whole < 10 {
		t.Errorf("%d whole rounds in the first seconds: it rests at once", whole)
	}
	if whole, beats := rounds(5 * time.Second); whole < 4 || whole > 7 || beats < 10 {
		t.Errorf("at rest: %d whole rounds and %d beats in 5 s, want one a second and at least two beats", whole, beats)
	}
	rounds(5 * time.Second)
	if whole, beats := rounds(20 * time.Second); whole < 3 || whole > 5 || beats < 40 {
		t.Errorf("asleep: %d whole rounds and %d beats in 20 s, want one in five seconds and at least two beats a second", whole, beats)
	}
	if next := b.steer.round(); next != longestRest || next > 2*beatEvery {
		t.Errorf("asleep: the next glance is in %s", next)
	}
	book, err := limiter.OpenBook(store.Directory(other))
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	pacer := limiter.NewPacer(book, 0)
	defer pacer.Close()
	steertest.Launch(pacer, now, 10*time.Millisecond)
	before := b.steer.View().Rounds
	if next := b.steer.round(); next != b.steer.policy.Round || b.steer.View().Rounds != before+1 {
		t.Errorf("somebody launched: the next round is in %s, %d whole rounds", next, b.steer.View().Rounds-before)
	}
	if whole, _ := rounds(time.Second / 2); whole < 5 {
		t.Errorf("after the launch: %d whole rounds in half a second", whole)
	}
	// A page that cannot be read is no rest.
	rounds(5 * time.Second)
	if err := os.Truncate(filepath.Join(store.Directory(record), limiter.UsageFile), 10); err != nil {
		t.Fatal(err)
	}
	before = b.steer.View().Rounds
	b.steer.round()
	if tenants := b.steer.View().Seen.Tenants; b.steer.View().Rounds != before+1 || tenants[0].Known && tenants[1].Known {
		t.Errorf("a page was cut: %+v", tenants)
	}
}

// Use that only the driver tells of is a reason for a whole round, and so is a driver that begins to fail, or answers again.
func TestSteerRestsUntilTheDriverTells(t *testing.T) {
	b := newSteerBench(t, elastic, gpuA)
	b.grant(ledger.SliceID(gpuA, 0))
	b.steer.samples = NewSampler(nil, nil)
	now := limiter.MonotonicNow()
	b.steer.now = func() time.Duration { return now }
	for end := now + 2*sleepsAfter; now < end; {
		now += b.steer.round()
	}
	for ; now < b.steer.fullAt; now += b.steer.round() {
	}
	now += b.steer.round()
	wholeAfter := func(tell func(*Sampler)) bool {
		b.steer.samples.mu.Lock()
		tell(b.steer.samples)
		b.steer.samples.mu.Unlock()
		before := b.steer.View().Rounds
		now += b.steer.round()
		return b.steer.View().Rounds > before
	}
	for _, step := range []struct {
		name string
		tell func(*Sampler)
		want bool
	}{
		{"nothing", func(*Sampler) {}, false},
		{"no use", func(s *Sampler) { s.pending = []source.ProcessUtilization{{GPUUUID: gpuA, PID: 7}} }, false},
		{"use", func(s *Sampler) { s.pending = []source.ProcessUtilization{{GPUUUID: gpuA, PID: 7, Busy: 0.1}} }, true},
		{"a fault", func(s *Sampler) { s.err = errors.New("no driver") }, true},
		{"the same fault", func(*Sampler) {}, false},
		{"no fault", func(s *Sampler) { s.err = nil }, true},
	} {
		if got := wholeAfter(step.tell); got != step.want {
			t.Errorf("%s: a whole round: %t, want %t", step.name, got, step.want)
		}
	}
}
