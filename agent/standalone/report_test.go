// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package standalone

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/limiter"
)

func TestReportLines(t *testing.T) {
	capped := limiter.Device{MemoryLimitBytes: 4 << 30, Compute: limiter.Compute{Mode: limiter.ComputeHard, SharePPM: 300_000, CeilingPPM: 300_000}}
	open := limiter.Device{MemoryLimitBytes: limiter.MaxBytes}
	const wall = 40 * time.Second
	for _, test := range []struct {
		name    string
		granted limiter.Device
		used    limiter.DeviceUsage
		moved   limiter.Traffic
		wall    time.Duration
		left    bool
		want    []string
	}{
		{"capped", capped, limiter.DeviceUsage{Allocations: 7, Refusals: 2, Compute: limiter.ComputeUsage{Charged: 12 * time.Second,
			Throttled: 26 * time.Second, Degraded: wall, Launches: 6000}},
			limiter.Traffic{Copies: [limiter.Directions]limiter.Count{{Calls: 3, Bytes: 12 << 20}, {Calls: 1, Bytes: 5}, {}, {Calls: 2, Bytes: 1 << 40}},
				Stalls: 4, Stalled: 1500 * time.Millisecond}, wall, false, []string{
				"GPU time: granted 30 % of the GPU (hard), used 12.000 s of 40.000 s, 30.0 %; launches: 6000",
				"kept waiting for GPU time: 26.000 s in all threads together, 65 % of the run: it would have used more than its share",
				"degraded: without an agent nobody compares the program's own measurements with the driver's; they are too high while other programs use the GPU, and it then gets less than its share",
				"memory: granted 4 GiB; requests: 9, of them refused: 2",
				"copies: to the GPU 3, 12 MiB; from it 1, 5 B; to or from another GPU 2, 1 TiB",
				"waited for the GPU: 4 calls, 1.500 s in all threads together"}},
		{"never waited", capped, limiter.DeviceUsage{Compute: limiter.ComputeUsage{Charged: 1500 * time.Microsecond, Launches: 1}}, limiter.Traffic{}, time.Second, true, []string{
			"GPU time: granted 30 % of the GPU (hard), used 0.002 s of 1.000 s, 0.1 %; launches: 1",
			"kept waiting for GPU time: never",
			"memory: granted 4 GiB; requests: 0, of them refused: 0",
			"copies: none",
			"processes of the command still run; these figures are of the time until now"}},
		{"nothing launched", capped, limiter.DeviceUsage{}, limiter.Traffic{}, 0, false, []string{
			"GPU time: granted 30 % of the GPU (hard), used none: nothing was launched",
			"memory: granted 4 GiB; requests: 0, of them refused: 0", "copies: none"}},
		{"no limits at all", open, limiter.DeviceUsage{Allocations: 3}, limiter.Traffic{}, wall, false, []string{
			"GPU time: not limited, and so not measured; --cores limits it",
			"memory: not limited; requests: 3, of them refused: 0", "copies: none"}},
	} {
		if diff := cmp.Diff(test.want, reportLines(test.granted, test.used, test.moved, test.wall, test.left)); diff != "" {
			t.Errorf("%s:\n%s", test.name, diff)
		}
	}
}
