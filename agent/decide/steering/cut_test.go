// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package steering

import (
	"math"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// steerWith plays a second of two tenants that want all they can get, and returns what is in force at its end.
func steerWith(t *testing.T, mode monitor.ComputeMode, state State, from time.Duration, cuts ...Cut) (map[string]Rate, map[string]Verdict, State) {
	t.Helper()
	policy := DefaultPolicy()
	policy.Cuts = cuts
	rates, verdicts := map[string]Rate{}, map[string]Verdict{}
	for now := from; now < from+time.Second; now += policy.Round {
		seen := &monitor.Compute{Now: now}
		for _, key := range []string{"big", "small"} {
			share := map[string]uint32{"big": 600_000, "small": 200_000}[key]
			seen.Tenants = append(seen.Tenants, monitor.Tenant{Key: key, GPUUUID: "GPU-a", Mode: mode, SharePPM: share, CeilingPPM: ppm,
				RatePPM: share, ScalePPM: ppm, Known: true, Debt: time.Millisecond, Charged: now / 2, Wanted: now, Waited: now})
		}
		var steering Result
		steering, state = Steer(seen, policy, state)
		for i, rate := range steering.Rates {
			rates[rate.Key], verdicts[rate.Key] = rate, steering.Verdicts[i]
		}
	}
	return rates, verdicts, state
}

func TestCutLowersARateAndGivesItBack(t *testing.T) {
	const start = time.Hour
	for mode, others := range map[monitor.ComputeMode]uint32{monitor.ComputeHard: 200_000, monitor.ComputeElastic: 690_000} {
		whole, verdicts, state := steerWith(t, mode, State{}, start)
		if whole["big"].PPM < 600_000 || verdicts["big"].Cut {
			t.Fatalf("mode %d: %+v", mode, whole)
		}
		cut := Cut{Key: "big", GPUUUID: "GPU-a", Factor: 0.5, Until: start + 2*time.Second}
		lowered, verdicts, state := steerWith(t, mode, state, start+time.Second, cut)
		if lowered["big"].PPM != 300_000 || lowered["small"].PPM != others {
			t.Errorf("mode %d, cut: %+v", mode, lowered)
		}
		if v := verdicts["big"]; !v.Cut || v.Granted != 0.6 || verdicts["small"].Cut {
			t.Errorf("mode %d: %+v", mode, verdicts)
		}
		// Its time is over, though nobody has taken it away.
		back, verdicts, _ := steerWith(t, mode, state, start+2*time.Second, cut)
		if back["big"] != whole["big"] || back["small"] != whole["small"] || verdicts["big"].Cut {
			t.Errorf("mode %d: %+v, before %+v", mode, back, whole)
		}
	}
}

func TestCutHasAFloorAndHitsNobodyElse(t *testing.T) {
	until := 2 * time.Hour
	for _, c := range []struct {
		cut  Cut
		want uint32
	}{
		{Cut{"big", "GPU-a", 0.001, until}, 60_000},
		{Cut{"big", "GPU-a", -1, until}, 60_000},
		{Cut{"big", "GPU-a", math.NaN(), until}, 600_000},
		{Cut{"big", "GPU-a", 2, until}, 600_000},
		{Cut{"big", "GPU-b", 0.5, until}, 600_000},
		{Cut{"nobody", "GPU-a", 0.5, until}, 600_000},
	} {
		if rates, _, _ := steerWith(t, monitor.ComputeHard, State{}, time.Hour, c.cut); rates["big"].PPM != c.want {
			t.Errorf("%+v: %+v", c.cut, rates["big"])
		}
	}
}
