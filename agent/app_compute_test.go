// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The whole agent and GPU time: what is granted, steered and told.

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/steer/steertest"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// pace makes a pacer of an allocation's first device, as a process of the container has one.
func (n *node) pace(key string) *limiter.Pacer {
	n.t.Helper()
	book, err := limiter.OpenBook(n.pages(key))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { book.Close() })
	pacer := limiter.NewPacer(book, 0)
	n.t.Cleanup(pacer.Close)
	return pacer
}

// A grant is steered long before the next tick, lent what nobody else wants, and shown.
func TestGPUTimeIsSteeredBetweenTicks(t *testing.T) {
	n := newNode(t)
	n.config.TickInterval = time.Minute
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("benchmem-01", 1)
	limits, err := limiter.ReadLimits(n.pages(key))
	if want := (limiter.Compute{Mode: limiter.ComputeElastic, SharePPM: 100_000, CeilingPPM: 1_000_000}); err != nil || limits.Devices[0].Compute != want {
		t.Errorf("granted %+v, %v", limits, err)
	}
	watcher, err := limiter.OpenSteering(n.pages(key))
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	pacer := n.pace(key)
	agent.eventually("what nobody else wants is lent", func() bool {
		steertest.Launch(pacer, limiter.MonotonicNow(), 20*time.Millisecond)
		return watcher.Rate(0).PPM > 900_000
	})
}

func TestGPUTimeIsShown(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, devices := agent.allocate("benchmem-01", 3)
	uuid, _, _ := strings.Cut(devices[0], "::")
	slices := 0.
	for _, id := range devices {
		if strings.HasPrefix(id, uuid) {
			slices++
		}
	}
	labels := []string{"allocation=" + key, "gpu_uuid=" + uuid, "namespace=md", "pod=benchmem-01", "container=gmx"}
	agent.shows(1, "vgpud_slice_compute_info", append(labels, "mode=elastic")...)
	agent.shows(slices/10, "vgpud_slice_compute_share_ratio", labels...)
	agent.shows(1, "vgpud_slice_compute_ceiling_ratio", labels...)
	agent.shows(1, "vgpud_slice_compute_scale_ratio", labels...)
	agent.shows(0, "vgpud_slice_compute_launches_total", labels...)
	agent.shows(0, "vgpud_slice_compute_verdict", append(labels, "verdict=over_share")...)
	pacer := n.pace(key)
	steertest.Launch(pacer, limiter.MonotonicNow(), 3*time.Millisecond)
	pacer.Flush(limiter.MonotonicNow())
	agent.eventually("launches are counted", func() bool {
		launches, _ := n.value("vgpud_slice_compute_launches_total", labels...)
		seconds, _ := n.value("vgpud_slice_compute_gpu_seconds_total", labels...)
		return launches > 0 && seconds > 0
	})
	if rounds, _ := n.value("vgpud_compute_rounds_total"); rounds == 0 {
		t.Error("no round is counted")
	}
	if _, shown := n.value("vgpud_slice_compute_used_ratio", labels...); shown {
		t.Error("use is shown that nobody measured")
	}
	if err := n.kubelet.RemovePod("uid-benchmem-01"); err != nil {
		t.Fatal(err)
	}
	agent.eventually("the series of the allocation end", func() bool { return !strings.Contains(n.prom(), key) })
}

// Where GPU time is not limited, nothing steers; what was granted otherwise before is steered all the same.
func TestGPUTimeThatIsNotLimited(t *testing.T) {
	n := newNode(t)
	n.config.ComputeMode = ledger.ComputeNone
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("open", 1)
	agent.shows(1, "vgpud_slice_compute_info", "allocation="+key, "mode=none")
	agent.shows(0, "vgpud_compute_rounds_total")
	if _, shown := n.value("vgpud_slice_compute_share_ratio", "allocation="+key); shown {
		t.Error("a share is shown of what is not limited")
	}
	agent.stop()

	n.config.ComputeMode = ledger.ComputeHard
	agent = n.start()
	agent.allocatable(20)
	capped, _ := agent.allocate("capped", 1)
	agent.shows(1, "vgpud_slice_compute_info", "allocation="+capped, "mode=hard")
	agent.stop()

	n.config.ComputeMode = ledger.ComputeNone
	agent = n.start()
	agent.shows(0.1, "vgpud_slice_compute_rate_ratio", "allocation="+capped)
	agent.shows(1, "vgpud_slice_compute_info", "allocation="+key, "mode=none")
}

// hangingDriver never answers.
type hangingDriver struct{}

func (hangingDriver) Utilization(ctx context.Context) ([]source.ProcessUtilization, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A driver that hangs holds up neither steering nor the heartbeat nor the end.
func TestSteeringWhileTheDriverHangs(t *testing.T) {
	n := newNode(t)
	n.parts.samples = hangingDriver{}
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 1)
	agent.shows(0.1, "vgpud_slice_compute_share_ratio", "allocation="+key)
	agent.nextTick()
	before, _ := n.value("vgpud_compute_rounds_total")
	agent.nextTick()
	agent.eventually("rounds go on", func() bool {
		now, _ := n.value("vgpud_compute_rounds_total")
		return now > before
	})
	agent.shows(1, "vgpud_source_up", "source="+monitor.SourceUtilization) // nothing is known to be wrong yet
}
