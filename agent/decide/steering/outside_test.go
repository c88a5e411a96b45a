// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Steering and the witness together: what the one finds out about a tenant's books, the other reports in time.

package steering_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/decide/steering"
	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/monitor"
)

// bothTenants is how the tenants of a CreditForger are seen from outside: in order, with little memory.
func bothTenants(now time.Duration) *monitor.Outside {
	const gib = 1 << 30
	seen := &monitor.Outside{Now: now, Calls: map[uint64]monitor.Calls{}, MemoryKnown: true, ProcessesKnown: true,
		AllocationsKnown: true, CallsKnown: true}
	for i, pod := range []string{"honest", "one"} {
		key, pid := fmt.Sprintf("k%d", i), 20-10*i
		seen.Allocations = append(seen.Allocations, monitor.OutsideAllocation{Key: key, Known: true, Registers: true,
			Owner: monitor.Owner{PodUID: "uid-" + pod, Namespace: "default", Pod: pod, Container: "main"},
			GPUs:  []monitor.OutsideShare{{UUID: "GPU-a", LimitBytes: 8 * gib, BookBytes: gib}}})
		seen.Processes = append(seen.Processes, monitor.OutsideProcess{Registered: true,
			Residence: monitor.Residence{PID: pid, StartTime: 7, Command: "/bin/program", Keys: []string{key}, Library: true,
				Container: monitor.Container{ID: "container-" + pod, PodUID: "uid-" + pod, CgroupID: uint64(pid), Namespace: "default", Pod: pod}},
			Memory: []monitor.ProcessMemory{{GPUUUID: "GPU-a", PID: pid, UsedBytes: gib}}})
	}
	return seen
}

// Whoever writes off in its own page what it has bought, so that it always has credit, is reported within ten seconds, with
// every driver; its neighbour, which is honest, never is.
func TestForgedCreditIsReported(t *testing.T) {
	const (
		honestFor = 4 * time.Second
		inTime    = 10 * time.Second
		interval  = 2 * time.Second // of the witness
	)
	for _, driver := range steering.Drivers() {
		for _, mode := range []monitor.ComputeMode{monitor.ComputeHard, monitor.ComputeElastic} {
			t.Run(fmt.Sprintf("%s, mode %d", driver, mode), func(t *testing.T) {
				both := steering.NewCreditForger(driver, mode, honestFor)
				var state witness.State
				var begun []string
				look := func() (since time.Duration) {
					elapsed, used, verdicts := both.Run(interval)
					var found witness.Findings
					found, state = witness.Judge(bothTenants(time.Hour+elapsed), verdicts, witness.DefaultPolicy(), state)
					for _, f := range found.Begun {
						begun = append(begun, fmt.Sprintf("%s %s/%s %s pid=%d", f.Kind, f.Namespace, f.Pod, f.Key, f.PID))
						t.Logf("%s after %s, which has %.3f of the GPU: %+v", f.Kind, elapsed-honestFor, used, verdicts[1])
					}
					return elapsed - honestFor
				}
				reported := -honestFor
				for reported < inTime && len(begun) == 0 {
					reported = look()
				}
				if len(begun) == 0 || reported <= 0 {
					t.Errorf("reported %q %s after it began", begun, reported)
				}
				for range 10 {
					look()
				}
				if want := "time-beyond-grant default/one k1 pid=10"; len(begun) != 1 || begun[0] != want {
					t.Errorf("reported %q, want %q", begun, want)
				}
			})
		}
	}
}
