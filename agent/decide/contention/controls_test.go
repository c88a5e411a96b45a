// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What looks like contention and is none: each control that keeps a verdict from being made, and that without it one is.

package contention

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// contended is two tenants that copy, and get half of the link each from the sixth minute on.
func contended(t *testing.T, change func(s *scene, victim, other *actor)) *scene {
	t.Helper()
	both := between(5*time.Minute, 24*time.Hour, 2)
	victim, other := copier("victim", 0.45, both), copier("other", 0.6, both)
	other.active = during(5*time.Minute, 24*time.Hour, 1)
	s := newScene(t, 1, victim, other)
	if change != nil {
		change(s, victim, other)
	}
	return s
}

func TestContendControls(t *testing.T) {
	for name, test := range map[string]struct {
		change func(s *scene, victim, other *actor)
		bad    bool
		holds  func(t *testing.T, s *scene, made Strain)
	}{
		"none of them": {bad: true},
		"the other is idle: it is slow of itself": {change: func(_ *scene, _, other *actor) { other.active = during(0, 0, 0) },
			holds: func(t *testing.T, s *scene, made Strain) {
				if made.Avg10 > 0 {
					t.Errorf("pressure without anybody else: %s", made)
				}
			}},
		"the link is not used up": {change: func(_ *scene, victim, other *actor) {
			victim.works[0].bytes /= 2
			other.works[0].bytes /= 2
		}, holds: func(t *testing.T, s *scene, made Strain) {
			if made.Saturated || made.Avg10 < 0.2 {
				t.Errorf("%s", made)
			}
		}},
		"the other has next to nothing": {change: func(_ *scene, _, other *actor) { other.works[0].share = 0.06 },
			holds: func(t *testing.T, s *scene, made Strain) {
				if made.CoActive {
					t.Errorf("%s", made)
				}
			}},
		"it has most itself": {change: func(_ *scene, victim, other *actor) {
			victim.works[0].share, other.works[0].share = 1.6, 0.1
			victim.works[0].bytes, other.works[0].bytes = 3<<19, 3<<19
		}, holds: func(t *testing.T, s *scene, made Strain) {
			if made.CoActive || made.Excluded != "" || !slices.Contains(s.slice("victim").SelfLimited, ResourcePCIeRX) {
				t.Errorf("%s, self-limited: %v", made, s.slice("victim").SelfLimited)
			}
		}},
		"the card is throttled": {change: func(s *scene, _, _ *actor) {
			s.change = func(now time.Duration, device *monitor.Device) {
				if now > time.Hour+5*time.Minute {
					device.Throttle = monitor.ThrottlePower
				}
			}
		}, holds: excluded("throttled: power")},
		"somebody set the clocks, which is no throttle": {bad: true, change: func(s *scene, _, _ *actor) {
			s.change = func(_ time.Duration, device *monitor.Device) { device.Throttle = monitor.ThrottleSetting }
		}},
		"the memory's clock is lower": {change: func(s *scene, _, _ *actor) {
			s.change = func(now time.Duration, device *monitor.Device) {
				if now >= time.Hour+5*time.Minute {
					device.MemoryClockMHz /= 2
				}
			}
		}, holds: func(t *testing.T, s *scene, made Strain) {
			if made.Avg10 > 0.02 {
				t.Errorf("%s", made)
			}
		}},
		"the link is trained down": {change: func(s *scene, _, _ *actor) {
			s.change = func(now time.Duration, device *monitor.Device) {
				if now > time.Hour+5*time.Minute {
					device.LinkWidth = 8
				}
			}
		}, holds: func(t *testing.T, s *scene, made Strain) {
			if made.Bad(0.01) || !strings.Contains(s.gpu().Note, "trained down") {
				t.Errorf("%s, note %q", made, s.gpu().Note)
			}
		}},
		"fewer than 50 samples": {change: func(_ *scene, victim, _ *actor) { victim.works[0].every = 1 << 17 }, holds: excluded("fewer than 50")},
		"its process is young": {change: func(_ *scene, victim, _ *actor) {
			victim.forge = func(now time.Duration, stream *monitor.Stream) { stream.Started = now - 50*time.Second }
		}, holds: excluded("just begun")},
		"large copies at its start": {change: func(_ *scene, victim, _ *actor) {
			victim.works[0].bytes, victim.works[0].takes, victim.works[0].every = 512<<20, 21*ms, 1
			victim.started = time.Hour + 5*time.Minute + 10*time.Second
		}, holds: func(t *testing.T, s *scene, made Strain) {
			if lost := s.slice("victim").Pressures[ResourcePCIeRX].Some.Total; made.Avg10 > 0.02 || lost > 10*time.Second {
				t.Errorf("%s, lost in all: %s", made, lost)
			}
		}},
		"traffic that nobody copied, as of migrated memory": {change: func(s *scene, victim, other *actor) {
			s.foreign[1] = 8e9
			victim.works[0].share, other.works[0].share = 0.3, 0.35
		}, holds: excluded("none of the copies")},
		"claims above the counter": {change: func(s *scene, _, other *actor) {
			other.forge = func(now time.Duration, stream *monitor.Stream) { stream.Copies[monitor.HostToDevice].Bytes *= 3 }
		}, holds: excluded("more than the card's counter")},
		"the counter is not there": {change: func(s *scene, _, _ *actor) {
			s.change = func(_ time.Duration, device *monitor.Device) {
				device.PCIeRX, device.PCIeTX = monitor.Figure{}, monitor.Figure{}
			}
		}, holds: impossible(ResourcePCIeRX, "does not tell its PCIe throughput")},
		"the link is not known": {change: func(s *scene, _, _ *actor) {
			s.change = func(_ time.Duration, device *monitor.Device) { device.LinkWidth, device.LinkGeneration = 0, 0 }
		}, holds: impossible(ResourcePCIeRX, "what PCIe link")},
		"exclusive": {change: func(s *scene, _, _ *actor) { s.sharing = monitor.SharingExclusive }, holds: impossible(ResourcePCIeRX, "for itself")},
		"MIG":       {change: func(s *scene, _, _ *actor) { s.sharing = monitor.SharingMIG }, holds: impossible(ResourcePCIeRX, "split")},
		"time-sliced": {bad: true, change: func(s *scene, _, _ *actor) { s.sharing = monitor.SharingTimeSliced },
			holds: impossible("", "containers take turns")},
		"unknown sharing": {bad: true, change: func(s *scene, _, _ *actor) { s.sharing = monitor.SharingUnknown },
			holds: impossible(ResourceDRAM, "how the card is shared is not known")},
		"no GPM": {bad: true, change: func(s *scene, _, _ *actor) { s.noGPM = true }, holds: impossible(ResourceDRAM, "(GPM)")},
		"the card cannot be read": {change: func(s *scene, _, _ *actor) {
			s.change = func(now time.Duration, device *monitor.Device) {
				if now > time.Hour+5*time.Minute {
					*device = monitor.Device{GPUUUID: "GPU-a", Err: errors.New("gone")}
				}
			}
		}, holds: func(t *testing.T, s *scene, made Strain) {
			if !strings.Contains(s.gpu().Blind, "gone") {
				t.Errorf("blind %q", s.gpu().Blind)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := contended(t, test.change)
			s.run(5*time.Minute, nil)
			bad := 0
			s.run(2*time.Minute, func() { bad += b(s.result.Period && s.strain("victim", ResourcePCIeRX).Bad(0.25)) })
			made := s.strain("victim", ResourcePCIeRX)
			if made.Bad(0.25) != test.bad || bad > 0 != test.bad {
				t.Errorf("bad in %d periods; %s", bad, made)
			}
			if test.holds != nil {
				test.holds(t, s, made)
			}
		})
	}
}

// excluded says that the period proves nothing, for a reason.
func excluded(why string) func(*testing.T, *scene, Strain) {
	return func(t *testing.T, _ *scene, made Strain) {
		t.Helper()
		if !strings.Contains(made.Excluded, why) {
			t.Errorf("excluded for %q, want %q: %s", made.Excluded, why, made)
		}
	}
}

// impossible says that there can be no verdict on a resource, and that a note says why.
func impossible(on Resource, note string) func(*testing.T, *scene, Strain) {
	return func(t *testing.T, s *scene, made Strain) {
		t.Helper()
		if slices.Contains(s.gpu().Possible, on) || !strings.Contains(s.gpu().Note, note) || s.gpu().Blind != "" {
			t.Errorf("possible %v, note %q, blind %q", s.gpu().Possible, s.gpu().Note, s.gpu().Blind)
		}
	}
}
