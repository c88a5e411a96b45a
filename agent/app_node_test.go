// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A node for tests: an in-process kubelet, two scripted cards, and an agent that is started and stopped on it.

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/fake"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/kubelettest"
	"github.com/vgpud/vgpud/plugin/ledger"
)

const (
	gpuA      = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	gpuB      = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
	sliceSize = 8 << 30
	testTick  = 100 * time.Millisecond
)

func card(uuid string, index int) source.GPU {
	return source.GPU{UUID: uuid, Index: index, Model: "Simulated", TotalBytes: 10 * sliceSize, NUMANode: -1}
}

// node is a machine with a kubelet, two cards and the directories of an agent.
type node struct {
	t       testing.TB
	config  Config
	kubelet *kubelettest.Kubelet
	gpus    *fake.GPUs
	parts   parts
}

func newNode(t testing.TB) *node {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // runs last
	directory, err := os.MkdirTemp("", "node")         // short: sockets lie in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	n := &node{t: t, gpus: &fake.GPUs{}}
	n.gpus.Set(card(gpuA, 0), card(gpuB, 1))
	n.config = Config{
		ResourceName: "nvidia.com/gpu", SlicesPerGPU: 10, ComputeMode: ledger.ComputeElastic, ComputeCeilingPercent: 100, DeviceListStrategy: plugin.StrategyEnvvar, CDIKind: "nvidia.com/gpu",
		KubeletDir: filepath.Join(directory, "k"), StateDir: filepath.Join(directory, "state"),
		PagesDir: filepath.Join(directory, "pages"), TextfileDir: filepath.Join(directory, "textfile"),
		ContainerDir: "/usr/local/vgpud", TickInterval: testTick,
		Library: filepath.Join(require.Build(t, "libvgpu.so"), "libvgpu.so"),
	}
	if err := os.Mkdir(n.config.TextfileDir, 0o755); err != nil {
		t.Fatal(err)
	}
	n.parts = parts{gpus: n.gpus, procRoot: t.TempDir(), mountPages: store.MakePagesDir, releaseAge: time.Second,
		timing: plugin.Timing{Poll: 50 * time.Millisecond, BackoffFirst: 100 * time.Millisecond}}
	if err := os.Mkdir(filepath.Join(n.parts.procRoot, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.kubelet, err = kubelettest.Start(n.config.KubeletDir, kubelettest.Options{PodResources: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.kubelet.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// running is an agent that runs.
type running struct {
	node *node
	log  *logtest.Buffer
	stop func() // ends it in order, once, and checks that it ended well
}

// start runs the agent until stop is called or the test ends.
func (n *node) start() *running {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{node: n, log: &logtest.Buffer{}}
	done := make(chan error, 1)
	go func() {
		done <- runAgent(ctx, n.config, slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})), n.parts)
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				n.t.Errorf("the agent ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			n.t.Error("the agent does not stop")
		}
		if n.t.Failed() {
			n.t.Logf("log of the agent:\n%s", r.log)
		}
	})
	n.t.Cleanup(r.stop)
	return r
}

// eventually polls until condition holds.
func (r *running) eventually(what string, condition func() bool) {
	r.node.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			r.node.t.Fatalf("never happened: %s\nlog:\n%s\nmetrics:\n%s", what, r.log, r.node.prom())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *running) allocatable(want int) {
	r.node.t.Helper()
	r.eventually(fmt.Sprintf("%d slices allocatable", want), func() bool {
		_, allocatable := r.node.kubelet.Counts(r.node.config.ResourceName)
		return allocatable == want
	})
}

// prom is the text of the metrics file; empty when there is none.
func (n *node) prom() string {
	text, _ := os.ReadFile(filepath.Join(n.config.TextfileDir, metrics.FileName))
	return string(text)
}

// value looks a series up; labels are name=value.
func (n *node) value(name string, labels ...string) (float64, bool) {
	n.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(n.prom()))
	if err != nil {
		n.t.Fatalf("the official parser refuses the file: %v", err)
	}
	for _, metric := range families[name].GetMetric() {
		if hasLabels(metric, labels) {
			return metric.GetGauge().GetValue() + metric.GetCounter().GetValue(), true
		}
	}
	return 0, false
}

func hasLabels(metric *dto.Metric, labels []string) bool {
	have := map[string]bool{}
	for _, pair := range metric.GetLabel() {
		have[pair.GetName()+"="+pair.GetValue()] = true
	}
	for _, label := range labels {
		if !have[label] {
			return false
		}
	}
	return true
}

// shows waits until a series has a value.
func (r *running) shows(want float64, name string, labels ...string) {
	r.node.t.Helper()
	r.eventually(fmt.Sprintf("%s%v is %v", name, labels, want), func() bool {
		got, found := r.node.value(name, labels...)
		return found && got == want
	})
}

// nextTick waits until the tick that runs now is over.
func (r *running) nextTick() {
	r.node.t.Helper()
	before, _ := r.node.value("vgpud_last_tick_timestamp_seconds")
	r.eventually("another tick", func() bool {
		now, _ := r.node.value("vgpud_last_tick_timestamp_seconds")
		return now > before
	})
}

// allocate admits a pod with one container and starts it.
func (r *running) allocate(pod string, count int) (key string, devices []string) {
	r.node.t.Helper()
	ctx := r.node.t.Context()
	got, err := r.node.kubelet.Allocate(ctx, kubelettest.Pod{UID: "uid-" + pod, Namespace: "md", Name: pod},
		kubelettest.Container{Name: "gmx"}, r.node.config.ResourceName, count)
	if err != nil {
		r.node.t.Fatal(err)
	}
	if _, err := r.node.kubelet.StartContainer(ctx, "uid-"+pod, "gmx"); err != nil {
		r.node.t.Fatal(err)
	}
	return got.Response.GetEnvs()[plugin.AllocationVariable], got.DeviceIDs
}

func (n *node) pages(key string) string { return filepath.Join(n.config.PagesDir, key) }
