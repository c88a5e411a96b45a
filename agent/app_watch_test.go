// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of watching contention: what becomes of its verdicts in plugin, metrics, steering and the next agent. Package watch has
// those of what a look sees, decide those of what it concludes.

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/source/fake"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/agent/watch/watchtest"
	"github.com/vgpud/vgpud/limiter"
)

// newWatchedNode is a node whose agent watches contention, with short times.
func newWatchedNode(t *testing.T) (*node, *watchtest.Quarrel, *fake.Devices) {
	n, q, devices := newNode(t), &watchtest.Quarrel{}, &fake.Devices{}
	devices.Set(watchtest.Counters(gpuA, gpuB)...)
	policy := health.DefaultPolicy()
	policy.BadFor, policy.GoodFor, policy.Hold, policy.HoldMax = 2*time.Second, 2*time.Second, 2*time.Second, time.Minute
	n.config.Contention, n.config.ContentionPreset = contentionHealth, presetDefault
	n.parts.devices, n.parts.contend, n.parts.health = devices, q.Contend, &policy
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
	q.Set(card, antagonist)
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
	q.Set("", "")
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
	q.Set(card, "")
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
	q.Set(card, "")
	agent.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=contended")
	agent.stop()
	q.Set("", "")
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
