// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// ppm is one whole in the unit of shares, rates and scales.
const ppm = 1_000_000

// SteerPolicy is what the operator chose for GPU time, and the times of steering. It does not change while the agent runs.
type SteerPolicy struct {
	Round  time.Duration // between rounds while something is wanted
	Rest   time.Duration // between rounds while nothing is
	Active time.Duration // a tenant that asked for GPU time within this time has a claim to its share
	Alone  time.Duration // a tenant is alone when nobody else used the GPU for this time
	// OverShareAfter is how long measured use must be above what was granted before it is reported.
	OverShareAfter time.Duration
	// HeldAfter is the time over which a tenant that waits at least half of it is reported as held by its cap.
	HeldAfter time.Duration
}

// DefaultSteerPolicy is what the agent uses.
func DefaultSteerPolicy() SteerPolicy {
	return SteerPolicy{Round: 20 * time.Millisecond, Rest: 100 * time.Millisecond, Active: 30 * time.Millisecond,
		Alone: 200 * time.Millisecond, OverShareAfter: 10 * time.Second, HeldAfter: time.Minute}
}

// SteerState is what has to be remembered between rounds. The zero value is the start.
type SteerState struct {
}

// Steering is what one round asks for. Both lists are in the order of monitor.Compute.Tenants, and have every tenant whose
// mode is not ComputeNone.
type Steering struct {
	Rates    []Rate
	Verdicts []ComputeVerdict
	Next     time.Duration // look again after this time
}

// Rate is what is to be in force for one allocation on one GPU.
type Rate struct {
	Key, GPUUUID string
	PPM          uint32 // GPU time per time, loans included
	ScalePPM     uint32 // GPU time really used per estimated cost
	Alone        bool   // nobody else used the GPU of late
}

// ComputeVerdict is what a round concludes about one allocation on one GPU. Parts are of the whole GPU, 0 to 1.
type ComputeVerdict struct {
	Key, GPUUUID string
	Granted      float64 // the share
	Rate         float64 // in force, loans included
	Used         float64 // measured by the driver, over about a second
	UsedKnown    bool    // there are samples to tell Used by
	OverShare    bool    // measured use was above what was granted for SteerPolicy.OverShareAfter
	Held         bool    // its cap made it wait for at least half of SteerPolicy.HeldAfter
	Scale        float64 // GPU time really used per estimated cost
	Reason       string  // evidence, for people; empty unless OverShare or Held
}

// Steer judges one round: how much of each GPU's time every tenant may use until the next one.
func Steer(seen *monitor.Compute, policy SteerPolicy, state SteerState) (Steering, SteerState) {
	steering := Steering{Next: policy.Round}
	for _, tenant := range seen.Tenants {
		if tenant.Mode == monitor.ComputeNone {
			continue
		}
		steering.Rates = append(steering.Rates, Rate{Key: tenant.Key, GPUUUID: tenant.GPUUUID, PPM: tenant.SharePPM, ScalePPM: ppm})
		steering.Verdicts = append(steering.Verdicts, ComputeVerdict{Key: tenant.Key, GPUUUID: tenant.GPUUUID,
			Granted: float64(tenant.SharePPM) / ppm, Rate: float64(tenant.SharePPM) / ppm, Scale: 1})
	}
	return steering, state
}
