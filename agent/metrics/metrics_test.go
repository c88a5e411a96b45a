// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the text: golden file, the official parser and linter, hostile labels, documentation.

package metrics

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/agent/watch"
	"github.com/vgpud/vgpud/internal/require"
)

var update = flag.Bool("update", false, "rewrite golden files")

// exampleView has one of everything.
func exampleView() View {
	owner := monitor.Owner{PodUID: "uid-1", Namespace: "md", Pod: "benchmem-01", Container: "gmx"}
	return View{
		Snapshot: &monitor.Snapshot{
			At: time.Unix(1700000000, 500000000),
			Sources: []monitor.SourceStatus{{Name: "nvml", Up: true}, {Name: "kubelet", Error: "no such file"},
				{Name: "procs", Absent: true}},
			GPUs: []monitor.GPU{
				{UUID: "GPU-a", Model: "NVIDIA H100 80GB HBM3", TotalBytes: 80 << 30, UsedBytes: 1 << 30, UsableBytes: 79 << 30,
					HeldBytes: 8 << 30, Health: monitor.GPUReadable},
				{UUID: "GPU-b", Index: 1, Health: monitor.GPULost, UsableBytes: 79 << 30},
			},
			Allocations: []monitor.Allocation{
				{Key: "k1", Owner: owner, GPUs: []monitor.Share{{GPUUUID: "GPU-a", SliceIDs: []string{"GPU-a::0", "GPU-a::3"},
					LimitBytes: 16 << 30, UsedBytes: 5 << 20, Allocations: 7, Refusals: 2, Measured: true,
					Mode: monitor.ComputeElastic, SharePPM: 200_000, CeilingPPM: 800_000}}},
				{Key: "k2", GPUs: []monitor.Share{{GPUUUID: "GPU-b", SliceIDs: []string{"GPU-b::1"}, LimitBytes: 8 << 30,
					Mode: monitor.ComputeHard, SharePPM: 100_000, CeilingPPM: 100_000}}},
				{Key: "k3", GPUs: []monitor.Share{{GPUUUID: "GPU-b", SliceIDs: []string{"GPU-b::2"}, LimitBytes: 8 << 30}}},
			},
		},
		Steering: steer.View{
			Rounds: 50, Sampled: true, SampleUp: true,
			Seen: &monitor.Compute{Tenants: []monitor.Tenant{
				{Key: "k1", GPUUUID: "GPU-a", Known: true, Charged: 12500 * time.Millisecond, Throttled: 3 * time.Second, Degraded: 250 * time.Millisecond, Launches: 4096},
				{Key: "k2", GPUUUID: "GPU-b", Charged: time.Second}, // its page could not be read
				{Key: "released since", GPUUUID: "GPU-a", Known: true},
			}},
			Verdicts: []steering.Verdict{
				{Key: "k1", GPUUUID: "GPU-a", Granted: 0.2, Rate: 0.8, Used: 0.79, UsedKnown: true, Held: true, Scale: 0.9},
				{Key: "k2", GPUUUID: "GPU-b", Granted: 0.1, Rate: 0.1, Scale: 1},
				{Key: "released since", GPUUUID: "GPU-a", Granted: 0.1, Rate: 0.1, Scale: 1, OverShare: true},
			},
		},
		Contention: exampleContention(),
		Outside: outside.View{On: true, Sources: []monitor.SourceStatus{{Name: "process-memory", Up: true}, {Name: "probes", Absent: true}, {Name: "nvml"}},
			Probes: outside.ProbesView{Mode: "sampled", Reason: "a hit costs 6 µs", HitCostSeconds: 6e-6, Libraries: 2, Unobservable: 1},
			Containers: []outside.ContainerCalls{{Namespace: "md", Pod: "benchmem-01", Container: "gmx",
				Calls: monitor.Calls{Copies: [4]monitor.Count{{Calls: 2, Bytes: 1 << 20}}, UntoldCopies: monitor.Count{Calls: 1, Bytes: 7}, Contexts: 1, Missed: 3}}},
			Findings: []witness.Finding{{Kind: witness.NoSlot, GPUUUID: "GPU-a", Namespace: "md", Pod: "sly", ContainerID: "abcd", PID: 7},
				{Kind: witness.NoSlot, GPUUUID: "GPU-a", Namespace: "md", Pod: "sly", ContainerID: "abcd", PID: 8}},
			Found: map[witness.Kind]uint64{witness.NoSlot: 2}, Unaccounted: map[string]uint64{"GPU-a": 1 << 30}, Frozen: 1},
		Events: Events{On: true, Sent: 5, Dropped: 1},
		Decisions: decide.Decisions{
			GPUs:        []decide.GPUVerdict{{UUID: "GPU-a", Healthy: true, Reason: "ok"}, {UUID: "GPU-b", Reason: "gpu-lost"}},
			Allocations: []decide.AllocationVerdict{{Key: "k1", OverLimit: true}, {Key: "k2", Tampered: true, Frozen: true}, {Key: "k3", Missing: true}},
		},
		TamperedTotal: 3,
		Slices:        []SliceCounts{{GPUUUID: "GPU-a", Free: 8, Allocated: 2}, {GPUUUID: "GPU-b", Allocated: 1, Withdrawn: 9}},
		Plugin: Plugin{Registered: true, Registrations: 2, RegistrationFailures: 1, Allocations: 3, StartRefusals: 1,
			Allocate: Durations{Count: 3, SumSeconds: 0.012, Buckets: map[float64]uint64{0.001: 1, 0.01: 3, 0.1: 3}}},
		Build: Build{Version: "v0.1.0", Revision: "abc", GoVersion: "go1.26", LibraryBuildID: "deadbeef"},
	}
}

// exampleContention has a card with a victim and an antagonist, and one that cannot be read.
func exampleContention() watch.View {
	figure := func(value float64, period time.Duration) monitor.Figure {
		return monitor.Figure{Value: value, Period: period, Known: true}
	}
	streams := []monitor.Stream{{Share: 0.2}, {Share: 0.1}}
	streams[0].Key, streams[0].GPUUUID, streams[0].Known = "k1", "GPU-a", true
	streams[0].Copies[0] = monitor.Count{Calls: 3, Bytes: 4096}
	streams[0].Stalls = monitor.Count{Calls: 9, Time: 1500 * time.Millisecond}
	streams[1].Key, streams[1].GPUUUID = "k2", "GPU-b" // its page could not be read
	evidence := health.Evidence{GPUUUID: "GPU-a", Resource: contention.ResourcePCIeRX, Victim: "k1", Antagonist: "k9", Confidence: 0.9, Avg10: 0.5, Avg60: 0.4}
	return watch.View{On: true, Counters: true, Looked: watch.Looked{Looks: 7, Up: true,
		Seen: &monitor.Contention{Streams: streams, Devices: []monitor.Device{
			{GPUUUID: "GPU-a", Busy: figure(0.8, time.Second), DRAM: figure(0.75, 200*time.Millisecond), PCIeRX: figure(2e9, 200*time.Millisecond),
				PCIeTX: figure(1e6, 20*time.Millisecond), SMClockMHz: 1980, LinkWidth: 8, LinkWidthMax: 16, LinkGeneration: 4, LinkGenerationMax: 5,
				Throttle: monitor.ThrottleReasons[1].Bit, Sharing: "time-sliced"},
			{GPUUUID: "GPU-b", Err: errors.New("no answer"), Busy: figure(1, time.Second)},
		}},
		Concluded: contention.Result{
			Slices: []contention.Slice{{Key: "k1", GPUUUID: "GPU-a", SelfLimited: []contention.Resource{contention.ResourceDRAM},
				Pressures: map[contention.Resource]contention.Pressure{contention.ResourcePCIeRX: {
					Some: contention.Averages{Avg10: 0.5, Avg60: 0.4, Avg300: 0.1, Total: 30 * time.Second},
					Full: contention.Averages{Avg10: 0.3, Avg60: 0.2, Avg300: 0.05, Total: 12 * time.Second}}},
				Traffic: []contention.Attributed{{Resource: contention.ResourcePCIeRX, Part: 0.2, Known: true, Confidence: 0.95},
					{Resource: contention.ResourceDRAM, Part: 0.9, Confidence: 0.9, Why: "too few samples"}}},
				{Key: "released since", GPUUUID: "GPU-a", Pressures: map[contention.Resource]contention.Pressure{contention.ResourceDRAM: {}}}},
			GPUs: []contention.GPU{{UUID: "GPU-a", Possible: []contention.Resource{contention.ResourcePCIeRX, contention.ResourcePCIeTX},
				Device:       []contention.Attributed{{Resource: contention.ResourceDRAM, Part: 0.88, Known: true}},
				Unattributed: []contention.Attributed{{Resource: contention.ResourceDRAM, Part: 0.01, Known: true}, {Resource: contention.ResourceNVLink}},
				Pressures:    map[contention.Resource]contention.Pressure{contention.ResourcePCIeRX: {Some: contention.Averages{Avg10: 0.2}}}}},
		},
		Health: health.Verdicts{
			GPUs: []health.Verdict{{UUID: "GPU-a", Contended: true, Evidence: evidence}, {UUID: "GPU-b"}},
			Cuts: []steering.Cut{{Key: "k1", GPUUUID: "GPU-a", Factor: 0.5}},
		},
		Moved: map[watch.Move]uint64{{GPUUUID: "GPU-a", Kind: health.TransitionContended}: 2},
	}}
}

// mustParse reads text the way node-exporter does and fails the test on anything that it would refuse.
func mustParse(t *testing.T, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("the official parser refuses the file: %v\n%s", err, text)
	}
	for name, family := range families {
		if family.Help == nil || family.GetType() == dto.MetricType_UNTYPED {
			t.Errorf("metric %s has no help or no type", name)
		}
		for _, metric := range family.GetMetric() {
			if metric.TimestampMs != nil {
				t.Errorf("metric %s has a timestamp: the collector drops such a file", name)
			}
		}
	}
	return families
}

func TestGolden(t *testing.T) {
	text := mustRender(t, exampleView())
	mustParse(t, text)
	golden := filepath.Join("testdata", "example.prom.golden")
	if *update {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("(-want +got; -update rewrites it)\n%s", diff)
	}
}

func TestLint(t *testing.T) {
	text := mustRender(t, exampleView())
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Errorf("%s: %s", problem.Metric, problem.Text)
	}
}

// An agent that has just started has every series that can be known, and no others.
func TestEmptyViewIsComplete(t *testing.T) {
	text := mustRender(t, View{Snapshot: &monitor.Snapshot{At: time.Unix(1, 0)}})
	families := mustParse(t, text)
	for _, row := range catalogue() {
		_, present := families[row.name]
		if known := len(row.labels) == 0 || row.name == "vgpud_plugin_registrations_total" || row.name == "vgpud_allocations_total" || row.name == "vgpud_build_info"; known != present {
			t.Errorf("metric %s is present: %t, want %t", row.name, present, known)
		}
		if !strings.HasPrefix(row.name, "vgpud_") {
			t.Errorf("metric %s lacks our prefix", row.name)
		}
	}
}

// Whatever a driver, a pod or a page calls itself, the file stays readable and says it as well as can be.
func TestHostileLabels(t *testing.T) {
	for _, test := range []struct{ name, label, want string }{
		{"quotes and backslashes", `Foo "2.5" HDD C:\dir\`, `Foo "2.5" HDD C:\dir\`},
		{"newline and tab", "a\nb\tc", "a\nb\tc"},
		{"letters", "Größe 学", "Größe 学"},
		{"invalid bytes", "\x80\x81x", "\uFFFDx"},
		{"NUL ends it", "GPU-x\x00\x80rest", "GPU-x"},
		{"only invalid bytes and NUL", "\x80\x00\x80", "\uFFFD"},
		{"longest name", strings.Repeat("n", 253), strings.Repeat("n", 253)},
		{"beyond every name", strings.Repeat("n", 5000), strings.Repeat("n", maxLabelBytes)},
		{"cut in a letter", strings.Repeat("n", maxLabelBytes-1) + "ß", strings.Repeat("n", maxLabelBytes-1) + "\uFFFD"},
	} {
		t.Run(test.name, func(t *testing.T) {
			view := exampleView()
			view.Snapshot.GPUs[0].Model = test.label
			view.Snapshot.Allocations[0].Owner.Container = test.label
			view.Snapshot.Allocations[0].GPUs[0].GPUUUID = test.label
			text := mustRender(t, view)
			families := mustParse(t, text)
			checkLabel(t, families["vgpud_gpu_info"], "model", test.want)
			checkLabel(t, families["vgpud_slice_memory_used_bytes"], "container", test.want)
			checkLabel(t, families["vgpud_slice_memory_used_bytes"], "gpu_uuid", test.want)
		})
	}
}

func checkLabel(t *testing.T, family *dto.MetricFamily, label, want string) {
	t.Helper()
	for _, metric := range family.GetMetric() {
		for _, pair := range metric.GetLabel() {
			if pair.GetName() == label && pair.GetValue() == want {
				return
			}
		}
	}
	t.Errorf("no series of %s has %s=%q", family.GetName(), label, want)
}

// Two names that are the same once they are text must not make the file invalid. Each is counted, in whatever row.
func TestCollidingLabelsAreDroppedAndCounted(t *testing.T) {
	view := exampleView()
	view.Snapshot.Sources = []monitor.SourceStatus{{Name: "one\x00a"}, {Name: "one\x00b"}}
	view.Snapshot.Allocations = view.Snapshot.Allocations[:2]
	view.Snapshot.Allocations[0].Key = "same\x00one"
	view.Snapshot.Allocations[1].Key = "same\x00two"
	for i := range view.Snapshot.Allocations {
		view.Snapshot.Allocations[i].Owner = monitor.Owner{}
		view.Snapshot.Allocations[i].GPUs[0].GPUUUID = "GPU-a"
		view.Snapshot.Allocations[i].GPUs[0].Mode = monitor.ComputeNone
	}
	text := mustRender(t, view)
	families := mustParse(t, text)
	if got := len(families["vgpud_slice_memory_limit_bytes"].GetMetric()); got != 1 {
		t.Errorf("%d series of the limit, want 1", got)
	}
	if got := families["vgpud_dropped_series"].GetMetric()[0].GetGauge().GetValue(); got != 3 {
		t.Errorf("%v series dropped, want 3: one of the limit, one of the mode, one of the sources", got)
	}
}

// Numbers of GPU time are of the last round: none of an allocation that the tick does not know, none where a page could not
// be read, none of use that was not measured.
func TestSteeringLeavesOutWhatIsNotKnown(t *testing.T) {
	text := mustRender(t, exampleView())
	families := mustParse(t, text)
	for name, want := range map[string]int{"vgpud_slice_compute_info": 3, "vgpud_slice_compute_share_ratio": 2, "vgpud_slice_compute_rate_ratio": 2,
		"vgpud_slice_compute_used_ratio": 1, "vgpud_slice_compute_gpu_seconds_total": 1, "vgpud_slice_compute_verdict": 4} {
		if got := len(families[name].GetMetric()); got != want {
			t.Errorf("%s has %d series, want %d", name, got, want)
		}
	}
	if strings.Contains(string(text), "released since") {
		t.Error("an allocation that the tick does not know has series")
	}
}

// What is concluded of contention is of the last look: none of an allocation that the tick does not know, no figure of a card
// that could not be read, no part of what is unattributed.
func TestContentionLeavesOutWhatIsNotKnown(t *testing.T) {
	text := mustRender(t, exampleView())
	families := mustParse(t, text)
	for name, want := range map[string]int{"vgpud_slice_copied_bytes_total": 4, "vgpud_slice_sync_stalled_seconds_total": 1, "vgpud_slice_pressure_ratio": 6,
		"vgpud_slice_pressure_stalled_seconds_total": 2, "vgpud_slice_bandwidth_estimated_ratio": 1, "vgpud_slice_bandwidth_confidence_ratio": 2,
		"vgpud_gpu_busy_ratio": 1, "vgpud_gpu_dram_bandwidth_ratio": 1, "vgpud_gpu_sampling_period_seconds": 4, "vgpud_gpu_throttled": 5,
		"vgpud_gpu_bandwidth_unattributed_ratio": 1, "vgpud_gpu_contended": 2, "vgpud_gpu_contention_info": 1,
		"vgpud_container_calls_total": 6, "vgpud_container_copied_bytes_total": 5, "vgpud_witness_findings": 5, "vgpud_witness_finding_info": 1,
		"vgpud_source_up": 5, "vgpud_gpu_contention_transitions_total": 4} {
		if got := len(families[name].GetMetric()); got != want {
			t.Errorf("%s has %d series, want %d", name, got, want)
		}
	}
	checkLabel(t, families["vgpud_gpu_contention_info"], "victim", "md/benchmem-01")
	checkLabel(t, families["vgpud_gpu_contention_info"], "antagonist", "k9") // not known to the tick
	checkLabel(t, families["vgpud_gpu_pcie_receive_bytes_per_second"], "source", "gpm")
	checkLabel(t, families["vgpud_gpu_pcie_transmit_bytes_per_second"], "source", "throughput")
}

func TestExtremeNumbers(t *testing.T) {
	view := exampleView()
	share := &view.Snapshot.Allocations[0].GPUs[0]
	share.UsedBytes, share.Refusals, share.Allocations = math.MaxUint64, math.MaxUint64, math.MaxUint64
	view.Plugin.Allocate.SumSeconds = math.Inf(1)
	text := mustRender(t, view)
	families := mustParse(t, text)
	if got := families["vgpud_slice_memory_used_bytes"].GetMetric()[0].GetGauge().GetValue(); got != math.MaxUint64 {
		t.Errorf("used is %v, want 2^64-1", got)
	}
}

func TestMarkdownNamesEveryMetric(t *testing.T) {
	var text bytes.Buffer
	if err := WriteMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, row := range catalogue() {
		if !strings.Contains(text.String(), "| `"+row.name+"` | "+string(row.kind)+" |") {
			t.Errorf("the documentation lacks %s", row.name)
		}
	}
}

// promtool is a judge that shares no code with our tests.
func TestPromtool(t *testing.T) {
	promtool := require.Tool(t, "promtool")
	text := mustRender(t, exampleView())
	check := exec.Command(promtool, "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
