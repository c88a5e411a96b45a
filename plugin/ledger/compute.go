// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// How GPU time is granted: the part of each GPU that an allocation's slices stand for.

package ledger

import "fmt"

// Modes: how the GPU time of a grant is limited.
const (
	ComputeNone    = "none"    // not at all
	ComputeHard    = "hard"    // the share is a cap
	ComputeElastic = "elastic" // the share is a promise and a weight; what others leave is lent, up to the ceiling
)

// WholePPM is a whole GPU: shares are in millionths. MinSharePPM is the least that is granted, however many slices a GPU
// is cut into; Steering brings promises that add up to more than the GPU back to it.
const (
	WholePPM    = 1_000_000
	MinSharePPM = 10_000
)

// Compute is what a grant may use of its GPU's time, for the allocation's life.
type Compute struct {
	Mode       string `json:"mode"`                 // ComputeNone, ComputeHard or ComputeElastic
	SharePPM   uint32 `json:"sharePPM,omitempty"`   // MinSharePPM..WholePPM; 0 with ComputeNone
	CeilingPPM uint32 `json:"ceilingPPM,omitempty"` // SharePPM..WholePPM, the share itself with ComputeHard; 0 with ComputeNone
}

// ComputePolicy is how new grants share GPU time. The zero value limits nothing.
type ComputePolicy struct {
	Mode       string // of new grants; empty: ComputeNone
	CeilingPPM uint32 // most that is lent to a grant, its share included; of ComputeElastic only
}

// grant is what held of a GPU's slices stand for. A share is never above the whole GPU, nor its ceiling below the share.
func (p ComputePolicy) grant(held, slices int) Compute {
	if p.Mode == "" || p.Mode == ComputeNone || slices <= 0 {
		return Compute{Mode: ComputeNone}
	}
	share := uint32(WholePPM)
	if held < slices {
		share = max(MinSharePPM, uint32(uint64(held)*WholePPM/uint64(slices)))
	}
	if p.Mode == ComputeHard {
		return Compute{Mode: p.Mode, SharePPM: share, CeilingPPM: share}
	}
	return Compute{Mode: p.Mode, SharePPM: share, CeilingPPM: min(WholePPM, max(share, p.CeilingPPM))}
}

func (c Compute) validate() error {
	switch c.Mode {
	case ComputeNone:
		if c != (Compute{Mode: ComputeNone}) {
			return fmt.Errorf("mode %s has a share of %d", c.Mode, c.SharePPM)
		}
		return nil
	case ComputeHard, ComputeElastic:
		if c.SharePPM < MinSharePPM || c.CeilingPPM < c.SharePPM || c.CeilingPPM > WholePPM {
			return fmt.Errorf("share of %d and ceiling of %d millionths: want %d <= share <= ceiling <= %d",
				c.SharePPM, c.CeilingPPM, MinSharePPM, WholePPM)
		}
		return nil
	default:
		return fmt.Errorf("compute mode %q is not known", c.Mode)
	}
}

// SetCompute says how GPU time is granted from now on. Allocations keep what they were granted.
func (l *Ledger) SetCompute(policy ComputePolicy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compute = policy
}
