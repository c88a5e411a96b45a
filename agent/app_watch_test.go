// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of watching contention: what a look sees, and what becomes of its verdicts in plugin, metrics, steering and the next
// agent. decide has the tests of what it concludes.

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/fake"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/limiter"
)

// quarrel is a conclusion that the test writes: every slice of the card is slowed by the one that is named.
type quarrel struct {
	mu         sync.Mutex
	card       string // "": nobody is slowed
	antagonist string
	quick      []string
	seen       *monitor.Contention
}

func (q *quarrel) set(card, antagonist string, quick ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.card, q.antagonist, q.quick = card, antagonist, quick
}

func (q *quarrel) last() *monitor.Contention {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.seen
}

func (q *quarrel) contend(seen *monitor.Contention, _ contention.Policy, state contention.State) (contention.Result, contention.State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = seen
	concluded := contention.Result{Next: time.Second, Period: true, Quick: q.quick}
	for _, device := range seen.Devices {
		concluded.GPUs = append(concluded.GPUs, contention.GPU{UUID: device.GPUUUID, Possible: []contention.Resource{contention.ResourcePCIeRX}})
	}
	for _, stream := range seen.Streams {
		slice := contention.Slice{Key: stream.Key, GPUUUID: stream.GPUUUID}
		strain := contention.Strain{Resource: contention.ResourcePCIeRX, Samples: 100}
		if stream.GPUUUID == q.card && stream.Key != q.antagonist {
			strain.Avg10, strain.Avg60, strain.Saturated, strain.CoActive = 0.6, 0.5, true, true
			strain.DeviceRatio, strain.Antagonist, strain.Confidence = 0.95, q.antagonist, 0.9
		}
		slice.Strain = []contention.Strain{strain}
		concluded.Slices = append(concluded.Slices, slice)
	}
	return concluded, state
}

// counters are cards that answer.
func counters() []source.DeviceSample {
	figure := source.Figure{Value: 1e9, Period: 200 * time.Millisecond, Known: true}
	var list []source.DeviceSample
	for _, uuid := range []string{gpuA, gpuB} {
		list = append(list, source.DeviceSample{GPUUUID: uuid, PCIeRX: figure, PCIeTX: figure, Sharing: source.SharingTimeSliced, LinkWidth: 16})
	}
	return list
}

// newWatchedNode is a node whose agent watches contention, with short times.
func newWatchedNode(t *testing.T) (*node, *quarrel, *fake.Devices) {
	n, q, devices := newNode(t), &quarrel{}, &fake.Devices{}
	devices.Set(counters()...)
	policy := health.DefaultPolicy()
	policy.BadFor, policy.GoodFor, policy.Hold, policy.HoldMax = 2*time.Second, 2*time.Second, 2*time.Second, time.Minute
	n.config.Contention, n.config.ContentionPreset = contentionHealth, presetDefault
	n.parts.devices, n.parts.contend, n.parts.health = devices, q.contend, &policy
	return n, q, devices
}

// A contended card's free slices go, and come back; what is allocated stays. Log and metrics tell who and why.
func TestContendedGPUWithdrawsItsFreeSlices(t *testing.T) {
	n, q, _ := newWatchedNode(t)
	agent := n.start()
	agent.allocatable(20)
	victim, devices := agent.allocate("victim", 1)
	antagonist, other := agent.allocate("antagonist", 1)
	card, _, _ := strings.Cut(devices[0], "::")
	if otherCard, _, _ := strings.Cut(other[0], "::"); otherCard != card {
		antagonist = "" // the kubelet spread them: nobody in particular then
	}
	agent.eventually("both containers are known", func() bool {
		_, known := n.value("vgpud_slice_info", "pod=antagonist")
		return known
	})
	q.set(card, antagonist)
	agent.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=contended")
	agent.shows(1, "vgpud_gpu_contended", "gpu_uuid="+card)
	agent.shows(1, "vgpud_gpu_contention_transitions_total", "gpu_uuid="+card, "kind=contended")
	agent.eventually("the victim is named", func() bool {
		_, named := n.value("vgpud_gpu_contention_info", "gpu_uuid="+card, "victim=md/victim", "resource=pcie_rx")
		return named
	})
	agent.shows(0, "vgpud_slices", "gpu_uuid="+card, "state=free")
	free, _ := n.value("vgpud_slices", "gpu_uuid="+card, "state=withdrawn")
	agent.allocatable(20 - int(free))
	if free < 8 {
		t.Errorf("%v slices withdrawn, want all that are free", free)
	}
	if log := agent.log.String(); !strings.Contains(log, "GPU is contended") || !strings.Contains(log, "victim=md/victim/gmx") {
		t.Errorf("the log does not tell who is slowed:\n%s", log)
	}
	if pages, err := limiter.ReadLimits(n.pages(victim)); err != nil || pages.Devices[0].MemoryLimitBytes != sliceSize {
		t.Errorf("the victim's pages: %+v, %v", pages, err)
	}
	q.set("", "")
	agent.shows(1, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=ok")
	agent.allocatable(20)
	if !strings.Contains(agent.log.String(), "GPU is no longer contended") {
		t.Error("the log does not tell that it is over")
	}
}

// Where contention is only reported, health stays as it is.
func TestReportedContentionWithdrawsNothing(t *testing.T) {
	n, q, _ := newWatchedNode(t)
	n.config.Contention = contentionReport
	agent := n.start()
	agent.allocatable(20)
	_, devices := agent.allocate("victim", 1)
	card, _, _ := strings.Cut(devices[0], "::")
	q.set(card, "")
	agent.shows(1, "vgpud_gpu_contended", "gpu_uuid="+card)
	agent.nextTick()
	agent.nextTick()
	agent.shows(1, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=ok")
	agent.allocatable(20)
}

// The next agent knows the verdict before it has looked, and tells nobody that the card is free.
func TestVerdictsOutliveTheAgent(t *testing.T) {
	n, q, devices := newWatchedNode(t)
	n.parts.health.Hold = time.Minute
	agent := n.start()
	agent.allocatable(20)
	_, ids := agent.allocate("victim", 1)
	card, _, _ := strings.Cut(ids[0], "::")
	q.set(card, "")
	agent.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=contended")
	agent.stop()
	q.set("", "")
	release := devices.Hang()
	again := n.start()
	again.allocatable(11)
	again.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=contended")
	release()
	again.shows(1, "vgpud_source_up", "source=counters")
	again.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=contended") // its hold is not over
	again.stop()
	// A record that says nothing is no verdict, and no reason not to start.
	if err := os.WriteFile(filepath.Join(n.config.StateDir, store.HealthFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := n.start()
	third.allocatable(20)
	if !strings.Contains(third.log.String(), "verdicts of an earlier agent could not be read") {
		t.Errorf("log:\n%s", third.log)
	}
}

// watchBench is a watcher without an agent.
type watchBench struct {
	*steerBench
	watch   *watcher
	devices *fake.Devices
	quarrel *quarrel
	now     time.Duration
	moved   int
}

func newWatchBench(t *testing.T, devices *fake.Devices) *watchBench {
	b := &watchBench{steerBench: newSteerBench(t, elastic, gpuA, gpuB), devices: devices, quarrel: &quarrel{}, now: limiter.MonotonicNow()}
	a := &app{baseLog: logtest.Timeless(b.log), books: b.books, config: Config{StateDir: t.TempDir()}, steer: b.steer,
		parts: parts{contend: b.quarrel.contend, now: time.Now}}
	if devices != nil {
		a.devices = newDeviceSampler(devices)
		a.devices.patience = 5 * time.Second
		go func() { _ = a.devices.run(t.Context()) }()
	}
	b.watch = a.newWatcher()
	b.watch.now = func() time.Duration { return b.now }
	b.watch.moved = func() { b.moved++ }
	b.watch.traffics = noTraffic{}
	b.watch.restore()
	return b
}

// noTraffic knows no pages.
type noTraffic struct{}

func (noTraffic) Traffic([]string) ([]source.Traffic, error) { return nil, nil }

// look looks after some time and returns when it wants to look again.
func (b *watchBench) look(after time.Duration) time.Duration {
	b.now += after
	return b.watch.look(b.t.Context())
}

// How often the loop looks: at all cards, and at those that decide asks for.
var (
	lookEvery  = contention.DefaultPolicy().Interval
	quickEvery = contention.DefaultPolicy().QuickInterval
)

// A look has every card that answers and every share of it; a quick one has the cards that were asked for, with what only a
// look at all reads as it was.
func TestLooks(t *testing.T) {
	devices := &fake.Devices{}
	devices.Set(counters()...)
	b := newWatchBench(t, devices)
	record := b.grant(gpuA + "::1")
	if next := b.look(0); next != lookEvery {
		t.Errorf("the next look is in %s", next)
	}
	seen := b.quarrel.last()
	if len(seen.Devices) != 2 || len(seen.Streams) != 1 || seen.Streams[0].Key != record.Key || seen.Streams[0].Share != 0.1 {
		t.Errorf("%+v", seen)
	}
	b.quarrel.set("", "", gpuA)
	b.look(lookEvery)
	quick := counters()
	quick[0].LinkWidth, quick[0].Sharing, quick[0].PCIeRX.Value = 0, "", 7e9
	devices.Set(quick...)
	if next := b.look(quickEvery); next != quickEvery {
		t.Errorf("the next quick look is in %s", next)
	}
	seen = b.quarrel.last()
	if len(seen.Devices) != 1 || seen.Devices[0].LinkWidth != 16 || seen.Devices[0].Sharing != source.SharingTimeSliced || seen.Devices[0].PCIeRX.Value != 7e9 {
		t.Errorf("quick: %+v", seen.Devices)
	}
	if view := b.watch.view(); len(view.Seen.Devices) != 2 || view.Seen.Devices[0].PCIeRX.Value != 7e9 || view.Seen.Devices[1].PCIeRX.Value != 1e9 {
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
	devices.Set(counters()...)
	b := newWatchBench(t, devices)
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
	seen := b.quarrel.last()
	if len(seen.Devices) != 1 || !errors.Is(seen.Devices[0].Err, errNoAnswer) || seen.Devices[0].Sharing != source.SharingTimeSliced || len(seen.Streams) != 1 {
		t.Errorf("%+v", seen)
	}
	if view := b.watch.view(); view.Up || view.Looks != 7 {
		t.Errorf("up %t, %d looks", view.Up, view.Looks)
	}
	if count := strings.Count(b.log.String(), "source not readable"); count != 1 {
		t.Errorf("said %d times:\n%s", count, b.log)
	}
	release()
	b.watch.devices.patience = 5 * time.Second
	deadline := time.Now().Add(10 * time.Second)
	for !b.watch.view().Up && time.Now().Before(deadline) {
		b.look(lookEvery)
	}
	if !b.watch.view().Up || !strings.Contains(b.log.String(), "source is readable") {
		t.Errorf("after the hang: %+v\n%s", b.watch.view().Seen.Devices, b.log)
	}
}

// Without counters at all there is a look all the same, and it is no fault.
func TestLooksWithoutCounters(t *testing.T) {
	b := newWatchBench(t, nil)
	b.grant(gpuB + "::1")
	b.look(0)
	if seen := b.quarrel.last(); len(seen.Streams) != 1 || !errors.Is(seen.Devices[0].Err, errNoCounters) {
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
	b := newWatchBench(t, devices)
	for range 10 {
		b.look(lookEvery)
	}
	for _, want := range []string{"bandwidth of the GPU's memory is not measured", "PCIe traffic of the GPU is not measured", "how the GPU is shared cannot be told"} {
		if count := strings.Count(b.log.String(), want); count != 1 || strings.Contains(b.log.String(), "WARN") {
			t.Errorf("%q was said %d times:\n%s", want, count, b.log)
		}
	}
	devices.Set(counters()[0])
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
	w := &watcher{rates: map[streamID]streamRates{}, at: map[streamID]monitor.Stream{}, steering: func() metrics.Steering { return metrics.Steering{} }}
	look := func(now time.Duration, bytes uint64, stalled time.Duration, known bool) streamRates {
		stream := monitor.Stream{Traffic: source.Traffic{Key: "k", GPUUUID: gpuA, Known: known, Stalls: source.Count{Time: stalled}}}
		stream.Copies[source.DeviceToHost].Bytes = bytes
		w.measureRates(&monitor.Contention{Now: now, Streams: []monitor.Stream{stream}})
		return w.rates[streamID{"k", gpuA}]
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

// Numbers of one's own, and the lever, reach decide; so does each preset.
func TestHealthPolicyOfTheConfiguration(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		change    func(*health.Policy)
	}{
		{nil, func(*health.Policy) {}},
		{[]string{"--contention-preset=fast"}, func(p *health.Policy) { *p = health.FastPolicy() }},
		{[]string{"--contention-preset=custom", "--contention-above=40", "--contention-below=20", "--contention-bad-for=20s", "--contention-good-for=40s", "--contention-hold=1m"},
			func(p *health.Policy) {
				p.Above, p.Below, p.BadFor, p.GoodFor, p.Hold = 0.4, 0.2, 20*time.Second, 40*time.Second, time.Minute
			}},
		{[]string{"--contention-lever=30", "--contention-lever-for=90s"}, func(p *health.Policy) { p.LeverFactor, p.LeverFor = 0.3, 90*time.Second }},
	} {
		config, err := load(t, test.arguments, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		want := health.DefaultPolicy()
		test.change(&want)
		got := healthPolicy(config)
		if diff := cmp.Diff(want, got); diff != "" || got.Validate() != nil {
			t.Errorf("%v: %v\n%s", test.arguments, got.Validate(), diff)
		}
	}
}
