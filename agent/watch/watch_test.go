// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of what a look sees. decide has those of what it concludes, the app those of what becomes of its verdicts.

package watch

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/fake"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/agent/watch/watchtest"
	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
)

// bench is a loop on a ledger, without an agent.
type bench struct {
	t       *testing.T
	books   *ledger.Ledger
	log     *bytes.Buffer
	watch   *Loop
	devices *fake.Devices
	quarrel *watchtest.Quarrel
	now     time.Duration
	moved   int
}

func newBench(t *testing.T, devices *fake.Devices) *bench {
	t.Helper()
	books, err := ledger.Open(filepath.Join(t.TempDir(), "records"))
	if err != nil {
		t.Fatal(err)
	}
	books.SetCompute(ledger.ComputePolicy{Mode: ledger.ComputeElastic, CeilingPPM: ledger.WholePPM})
	books.SetGPUs([]ledger.GPU{{UUID: gpuA, UsableBytes: 80 << 30, Slices: 10}, {UUID: gpuB, UsableBytes: 80 << 30, Slices: 10}})
	b := &bench{t: t, books: books, log: &bytes.Buffer{}, devices: devices, quarrel: &watchtest.Quarrel{}, now: limiter.MonotonicNow()}
	config := Config{Books: books, Traffics: noTraffic{}, Started: func(string) time.Duration { return 0 }, Moved: func() { b.moved++ },
		Wall: time.Now, Contend: b.quarrel.Contend, Health: health.DefaultPolicy(), Log: logtest.Timeless(b.log)}
	if devices != nil {
		config.Counters = NewSampler(devices)
		config.Counters.patience = 5 * time.Second
		go func() { _ = config.Counters.Run(t.Context()) }()
	}
	b.watch = New(config)
	b.watch.now = func() time.Duration { return b.now }
	b.watch.Restore()
	return b
}

// grant makes an allocation, as far as a look knows it.
func (b *bench) grant(ids ...string) ledger.Record {
	b.t.Helper()
	record, err := b.books.Hold("nvidia.com/gpu", ids, ledger.Library{BuildID: "abcd", ContainerDir: "/usr/local/vgpud"}, b.t.TempDir(), time.Now())
	if err == nil {
		err = b.books.Commit(record.Key)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return record
}

// noTraffic knows no pages.
type noTraffic struct{}

func (noTraffic) Traffic([]string) ([]source.Traffic, error) { return nil, nil }

// look looks after some time and returns when it wants to look again.
func (b *bench) look(after time.Duration) time.Duration {
	b.now += after
	return b.watch.look(b.t.Context())
}

// How often the loop looks: at all cards, and at those that contention.Judge asks for.
var (
	lookEvery  = contention.DefaultPolicy().Interval
	quickEvery = contention.DefaultPolicy().QuickInterval
)

// A look has every card that answers and every share of it; a quick one has the cards that were asked for, with what only a
// look at all reads as it was.
func TestLooks(t *testing.T) {
	devices := &fake.Devices{}
	devices.Set(watchtest.Counters(gpuA, gpuB)...)
	b := newBench(t, devices)
	record := b.grant(gpuA + "::1")
	if next := b.look(0); next != lookEvery {
		t.Errorf("the next look is in %s", next)
	}
	seen := b.quarrel.Last()
	if len(seen.Devices) != 2 || len(seen.Streams) != 1 || seen.Streams[0].Key != record.Key || seen.Streams[0].Share != 0.1 {
		t.Errorf("%+v", seen)
	}
	b.quarrel.Set("", "", gpuA)
	b.look(lookEvery)
	quick := watchtest.Counters(gpuA, gpuB)
	quick[0].LinkWidth, quick[0].Sharing, quick[0].PCIeRX.Value = 0, "", 7e9
	devices.Set(quick...)
	if next := b.look(quickEvery); next != quickEvery {
		t.Errorf("the next quick look is in %s", next)
	}
	seen = b.quarrel.Last()
	if len(seen.Devices) != 1 || seen.Devices[0].LinkWidth != 16 || seen.Devices[0].Sharing != source.SharingTimeSliced || seen.Devices[0].PCIeRX.Value != 7e9 {
		t.Errorf("quick: %+v", seen.Devices)
	}
	if view := b.watch.View(); len(view.Seen.Devices) != 2 || view.Seen.Devices[0].PCIeRX.Value != 7e9 || view.Seen.Devices[1].PCIeRX.Value != 1e9 {
		t.Errorf("others see %+v", view.Seen.Devices)
	}
	for range 10 {
		b.look(quickEvery)
	}
	var asked []string
	for _, cards := range devices.Asked() {
		asked = append(asked, strings.Join(cards, "+"))
	}
	all := len(asked) - len(slices.DeleteFunc(slices.Clone(asked), func(cards string) bool { return cards == "" }))
	if all != 4 {
		t.Errorf("%d looks at all cards in 3.2 s, want 4: %q", all, asked)
	}
}

// A driver that hangs costs the first look its patience and the others nothing; what is seen meanwhile says so, once.
func TestLooksWhileTheDriverHangs(t *testing.T) {
	devices := &fake.Devices{}
	devices.Set(watchtest.Counters(gpuA, gpuB)...)
	b := newBench(t, devices)
	b.grant(gpuA + "::1")
	b.look(0)
	b.watch.devices.patience = 20 * time.Millisecond
	release := devices.Hang()
	defer release()
	b.look(lookEvery)
	asked := len(devices.Asked())
	for range 5 {
		b.look(lookEvery)
	}
	if again := len(devices.Asked()); again != asked {
		t.Errorf("asked %d times more although it hangs", again-asked)
	}
	seen := b.quarrel.Last()
	if len(seen.Devices) != 1 || !errors.Is(seen.Devices[0].Err, errNoAnswer) || seen.Devices[0].Sharing != source.SharingTimeSliced || len(seen.Streams) != 1 {
		t.Errorf("%+v", seen)
	}
	if view := b.watch.View(); view.Up || view.Looks != 7 {
		t.Errorf("up %t, %d looks", view.Up, view.Looks)
	}
	if count := strings.Count(b.log.String(), "source not readable"); count != 1 {
		t.Errorf("said %d times:\n%s", count, b.log)
	}
	release()
	b.watch.devices.patience = 5 * time.Second
	deadline := time.Now().Add(10 * time.Second)
	for !b.watch.View().Up && time.Now().Before(deadline) {
		b.look(lookEvery)
	}
	if !b.watch.View().Up || !strings.Contains(b.log.String(), "source is readable") {
		t.Errorf("after the hang: %+v\n%s", b.watch.View().Seen.Devices, b.log)
	}
}

// Without counters at all there is a look all the same, and it is no fault.
func TestLooksWithoutCounters(t *testing.T) {
	b := newBench(t, nil)
	b.grant(gpuB + "::1")
	b.look(0)
	if seen := b.quarrel.Last(); len(seen.Streams) != 1 || !errors.Is(seen.Devices[0].Err, errNoCounters) {
		t.Errorf("%+v", seen)
	}
	if text := b.log.String(); strings.Contains(text, "WARN") || strings.Count(text, "without counters") != 1 {
		t.Errorf("log:\n%s", text)
	}
}

// What a card lacks is said once, as information.
func TestMissingCountersAreSaidOnce(t *testing.T) {
	devices := &fake.Devices{}
	devices.Set(source.DeviceSample{GPUUUID: gpuA})
	b := newBench(t, devices)
	for range 10 {
		b.look(lookEvery)
	}
	for _, want := range []string{"bandwidth of the GPU's memory is not measured", "PCIe traffic of the GPU is not measured", "how the GPU is shared cannot be told"} {
		if count := strings.Count(b.log.String(), want); count != 1 || strings.Contains(b.log.String(), "WARN") {
			t.Errorf("%q was said %d times:\n%s", want, count, b.log)
		}
	}
	devices.Set(watchtest.Counters(gpuA, gpuB)[0])
	b.look(lookEvery)
	if !strings.Contains(b.log.String(), "PCIe traffic of the GPU is measured") {
		t.Errorf("log:\n%s", b.log)
	}
}

// GPU time that was used is what was charged at the scale of the moment; books that begin anew or cannot be read take
// nothing back.
func TestUsedTime(t *testing.T) {
	var used usedTime
	for _, step := range []struct {
		charged time.Duration
		scale   uint32
		known   bool
		want    time.Duration
	}{
		{100 * time.Second, 1_000_000, true, 0}, // before anybody looked
		{110 * time.Second, 1_000_000, true, 10 * time.Second},
		{120 * time.Second, 500_000, true, 15 * time.Second},
		{0, 0, false, 15 * time.Second},
		{130 * time.Second, 1_000_000, true, 25 * time.Second},
		{time.Second, 1_000_000, true, 25 * time.Second}, // new pages
		{3 * time.Second, 2_000_000, true, 29 * time.Second},
	} {
		used = used.add(monitor.Tenant{Charged: step.charged, ScalePPM: step.scale, Known: step.known})
		if used.used != step.want {
			t.Errorf("%+v: %s", step, used.used)
		}
	}
}

// Rates are differences of two looks at all cards; nothing is known after one, and counters that began anew count as still.
func TestStreamRates(t *testing.T) {
	w := &Loop{rates: map[StreamID]Rates{}, at: map[StreamID]monitor.Stream{}, steering: func() steer.View { return steer.View{} }}
	look := func(now time.Duration, bytes uint64, stalled time.Duration, known bool) Rates {
		stream := monitor.Stream{Traffic: source.Traffic{Key: "k", GPUUUID: gpuA, Known: known, Stalls: source.Count{Time: stalled}}}
		stream.Copies[source.DeviceToHost].Bytes = bytes
		w.measureRates(&monitor.Contention{Now: now, Streams: []monitor.Stream{stream}})
		return w.rates[StreamID{"k", gpuA}]
	}
	if first := look(10*time.Second, 1000, 0, true); first.Known {
		t.Errorf("after one look: %+v", first)
	}
	second := look(12*time.Second, 5000, time.Second, true)
	if !second.Known || second.Copied[source.DeviceToHost] != 2000 || second.Stalled != 0.5 {
		t.Errorf("%+v", second)
	}
	if anew := look(13*time.Second, 100, 0, true); anew.Copied[source.DeviceToHost] != 0 || anew.Stalled != 0 {
		t.Errorf("counters that began anew: %+v", anew)
	}
	if gone := look(14*time.Second, 0, 0, false); gone.Known {
		t.Errorf("not readable: %+v", gone)
	}
}
