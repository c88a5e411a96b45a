// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The file is what the official library would make of a view, byte for byte.

package metrics

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"

	"github.com/vgpud/vgpud/agent/monitor"
)

// official renders a view with the official registry, which looks at everything, and the official encoder.
func official(t *testing.T, view View) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(collector{view}); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

// collector turns a view into client_golang's metrics.
type collector struct{ view View }

func (r row) desc() *prometheus.Desc { return prometheus.NewDesc(r.name, r.help, r.labels, nil) }

// Describe implements prometheus.Collector.
func (c collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, row := range catalogue() {
		descriptions <- row.desc()
	}
}

// Collect implements prometheus.Collector. A series whose labels are those of an earlier one is dropped and
// counted, so that it cannot make the file invalid.
func (c collector) Collect(metrics chan<- prometheus.Metric) {
	view := c.view
	for _, row := range catalogue() {
		desc := row.desc()
		if row.kind == histogram {
			durations := view.Plugin.Allocate
			metrics <- prometheus.MustNewConstHistogram(desc, durations.Count, durations.SumSeconds, durations.Buckets)
			continue
		}
		valueType := prometheus.GaugeValue
		if row.kind == counter {
			valueType = prometheus.CounterValue
		}
		seen := map[string]bool{}
		for _, sample := range row.samples(view) {
			labels := cleaned(sample.labels)
			identity := strings.Join(labels, "\x00")
			if seen[identity] {
				view.DroppedSeries++
				continue
			}
			seen[identity] = true
			metrics <- prometheus.MustNewConstMetric(desc, valueType, sample.value, labels...)
		}
	}
}

func mustRender(t testing.TB, view View) []byte {
	t.Helper()
	text, err := render(view)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func cleaned(values []string) (clean []string) {
	for _, value := range values {
		clean = append(clean, cleanLabel(value))
	}
	return clean
}

func TestRendersAsTheOfficialEncoder(t *testing.T) {
	hostile := exampleView()
	hostile.Snapshot.Sources = []monitor.SourceStatus{{Name: "one\x00a"}, {Name: "one\x00b"}, {Name: "b\\\"\n,x=\"y\"}"}, {Name: "\xff\xfe\u2028"}, {Name: ""},
		{Name: strings.Repeat("ü", maxLabelBytes)}, {Name: "b!"}, {Name: "B"}}
	hostile.Snapshot.Allocations[1].Owner = monitor.Owner{Namespace: "\\", Pod: "\"", Container: "\n"}
	hostile.Plugin.Allocate = Durations{Count: math.MaxUint64, SumSeconds: math.NaN(), Buckets: map[float64]uint64{1e-9: 1, 0.25: 1 << 60, 1e300: math.MaxUint64}}
	hostile.Steering.Verdicts[0].Rate, hostile.Steering.Verdicts[0].Used, hostile.Steering.Verdicts[1].Granted = math.Inf(1), math.Inf(-1), math.NaN()
	for name, view := range map[string]View{"example": exampleView(), "hostile": hostile, "empty": {Snapshot: &monitor.Snapshot{At: time.Unix(1, 0)}}} {
		if diff := cmp.Diff(official(t, view), string(mustRender(t, view))); diff != "" {
			t.Errorf("%s (-official +ours):\n%s", name, diff)
		}
	}
}

// BenchmarkRender is the file of a node with fifty containers.
func BenchmarkRender(b *testing.B) {
	view := manyContainers(1 << 30)
	b.ReportAllocs()
	for b.Loop() {
		mustRender(b, view)
	}
}
