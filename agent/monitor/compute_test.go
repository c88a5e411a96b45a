// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
)

// Processes of one allocation are one user of the GPU; who holds no allocation, and who has ended, is foreign.
func TestCollectCompute(t *testing.T) {
	const ms = time.Millisecond
	tenants := []source.ComputeUsage{{Key: "k2", GPUUUID: "GPU-a"}, {Key: "k1", GPUUUID: "GPU-b"}, {Key: "k1", GPUUUID: "GPU-a", SharePPM: 1},
		{Key: "k1", GPUUUID: "GPU-a", SharePPM: 2}}
	samples := []source.ProcessUtilization{
		{GPUUUID: "GPU-b", PID: 1, Busy: 0.5, At: 1000 * ms},
		{GPUUUID: "GPU-a", PID: 9, Busy: 0.1, At: 1200 * ms},
		{GPUUUID: "GPU-a", PID: 1, Busy: 0.7, At: 1000 * ms}, // of one period with the two below
		{GPUUUID: "GPU-a", PID: 2, Busy: 0.6, At: 1010 * ms},
		{GPUUUID: "GPU-a", PID: 3, Busy: 0.2, At: 1005 * ms},
		{GPUUUID: "GPU-a", PID: 3, Busy: math.NaN(), At: 1005 * ms},
		{GPUUUID: "GPU-a", PID: 3, Busy: -1, At: 1005 * ms},
	}
	seen := CollectCompute(2*time.Second, tenants, samples, map[int][]string{1: {"k0", "k1"}, 2: {"k1"}, 3: {"k2"}, 4: nil, 9: {"k3"}})
	want := &Compute{Now: 2 * time.Second,
		Tenants: []Tenant{{Key: "k1", GPUUUID: "GPU-a", SharePPM: 1}, {Key: "k2", GPUUUID: "GPU-a"}, {Key: "k1", GPUUUID: "GPU-b"}},
		Samples: []Utilization{
			{Key: "k1", GPUUUID: "GPU-a", Busy: 1, At: 1010 * ms}, {Key: "k2", GPUUUID: "GPU-a", Busy: 0.2, At: 1010 * ms},
			{Key: "", GPUUUID: "GPU-a", Busy: 0.1, At: 1200 * ms}, {Key: "k1", GPUUUID: "GPU-b", Busy: 0.5, At: 1000 * ms}}}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	if empty := CollectCompute(1, nil, nil, nil); len(empty.Tenants) != 0 || len(empty.Samples) != 0 {
		t.Errorf("%+v", empty)
	}
}
