// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Contention and health together: what a container only claims turns no card.

package contention_test

import (
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/decide/health"
)

// A container that claims its traffic or ten times that, copies ten times as slow, and stalls without end, on a link whose counter
// says that it is a tenth in use, has no card withdrawn and nobody cut: two signals have to agree, and one is the card's.
func TestForgedLinkTurnsNoCard(t *testing.T) {
	for name, test := range map[string]struct {
		policy health.Policy
		times  uint64
	}{
		"slow": {health.DefaultPolicy(), 1}, "slow, fast policy": {health.FastPolicy(), 1},
		"slow and loud": {health.DefaultPolicy(), 10}, "slow and loud, fast policy": {health.FastPolicy(), 10},
	} {
		t.Run(name, func(t *testing.T) {
			var state health.State
			claimed, judged := 0.0, 0
			contention.PlayForgedLink(t, test.times, 30*time.Minute, func(now time.Duration, concluded contention.Result) {
				var verdicts health.Verdicts
				verdicts, state = health.Judge(concluded, test.policy, state, now)
				if len(verdicts.Transitions)+len(verdicts.Cuts) > 0 {
					t.Fatalf("%s: %+v", now-time.Hour, verdicts)
				}
				for _, slice := range concluded.Slices {
					for _, strain := range slice.Strain {
						if strain.Bad(0) || strain.Antagonist != "" && strain.Resource != contention.ResourceTime && strain.Saturated {
							t.Fatalf("%s: %s: %+v", now-time.Hour, slice.Key, strain)
						}
					}
					if slice.Key == "forger" {
						claimed = max(claimed, slice.Pressures[contention.ResourcePCIeRX].Full.Avg60)
					}
				}
				for _, gpu := range verdicts.GPUs {
					if gpu.Contended {
						t.Fatalf("%s: %+v", now-time.Hour, gpu)
					}
					judged++
				}
			})
			if claimed < 0.1 || judged == 0 {
				t.Errorf("the forger's claims were not heard at all (%.3f), or nothing was judged (%d)", claimed, judged)
			}
		})
	}
}
