// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Observations of any kind, one after the other.

package steering

import (
	"fmt"
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// Whatever is seen: no panic, and rates and scales within their bounds.
func FuzzSteer(f *testing.F) {
	f.Add([]byte("\x01\x02\x03 0123456789 abcdefgh"), int64(1))
	f.Add([]byte{255, 0, 255, 0, 128, 7, 9, 200, 31, 42, 255, 255, 0, 0, 1}, int64(-5))
	f.Fuzz(func(t *testing.T, data []byte, seed int64) {
		random := rand.New(rand.NewSource(seed))
		next := func() int64 {
			if len(data) == 0 {
				return random.Int63()
			}
			value := int64(data[0])
			data = data[1:]
			return value
		}
		odd := func() time.Duration { // now and then absurd
			switch next() % 8 {
			case 0:
				return time.Duration(random.Uint64())
			case 1:
				return math.MaxInt64 - time.Duration(next())
			case 2:
				return math.MinInt64 + time.Duration(next())
			}
			return time.Duration(next()) * ms
		}
		var state State
		now := time.Hour
		for range 40 {
			now += time.Duration(next()%64) * ms
			if next()%32 == 0 {
				now += odd() % (24 * time.Hour)
			}
			seen := &monitor.Compute{Now: now}
			for i := range next() % 5 {
				seen.Tenants = append(seen.Tenants, monitor.Tenant{Key: fmt.Sprint(next() % 4), GPUUUID: fmt.Sprint("GPU-", i%2),
					Mode: monitor.ComputeMode(next() % 4), SharePPM: uint32(next() * 5000), CeilingPPM: uint32(next() * 5000),
					RatePPM: uint32(random.Uint64()), ScalePPM: uint32(random.Uint64()), Known: next()%4 > 0, Debt: odd(), Charged: odd(),
					Wanted: now + odd()%time.Second, Waited: now + odd()%time.Second, Throttled: odd()})
			}
			for range next() % 5 {
				busy := float64(next()) / 100
				if next()%16 == 0 {
					busy = math.Float64frombits(random.Uint64())
				}
				seen.Samples = append(seen.Samples, monitor.Utilization{Key: fmt.Sprint(next() % 4), GPUUUID: fmt.Sprint("GPU-", next()%2),
					Busy: busy, At: now + odd()%time.Second})
			}
			var steering Result
			steering, state = Steer(seen, DefaultPolicy(), state)
			checkSteering(t, seen, steering)
		}
	})
}

// checkSteering holds what was decided against what must never be.
func checkSteering(t *testing.T, seen *monitor.Compute, steering Result) {
	t.Helper()
	if len(steering.Rates) != len(steering.Verdicts) || steering.Next <= 0 {
		t.Fatalf("%+v", steering)
	}
	shares, lent := map[string]float64{}, map[string]float64{}
	i := 0
	for _, tenant := range seen.Tenants {
		if tenant.Mode == monitor.ComputeNone {
			continue
		}
		rate, verdict := steering.Rates[i], steering.Verdicts[i]
		i++
		if rate.Key != tenant.Key || rate.GPUUUID != tenant.GPUUUID {
			t.Fatalf("rate %+v in the place of %+v", rate, tenant)
		}
		share := min(max(float64(tenant.SharePPM)/ppm, 0.01), 1)
		ceiling := share
		if tenant.Mode == monitor.ComputeElastic {
			ceiling = min(max(float64(tenant.CeilingPPM)/ppm, share), 1)
		}
		got := float64(rate.PPM) / ppm
		shares[tenant.GPUUUID] += share
		lent[tenant.GPUUUID] += max(0, got-share)
		if got > ceiling*1.01+1e-6 || got <= 0 || rate.ScalePPM < ppm/10 || rate.ScalePPM > 10*ppm {
			t.Errorf("rate %+v of share %.3f and ceiling %.3f", rate, share, ceiling)
		}
		if !(verdict.Used >= 0 && verdict.Used <= 1.01) {
			t.Errorf("%+v", verdict)
		}
	}
	for uuid, sum := range lent {
		if sum > 1.01 {
			t.Errorf("%s: %.3f is lent of shares of %.3f", uuid, sum, shares[uuid])
		}
	}
}
