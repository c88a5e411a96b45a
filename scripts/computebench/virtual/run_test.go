// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"io"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

func runIn(t *testing.T, s scene.Scene, l Law) scene.Outcome {
	t.Helper()
	o, err := Run(s, l, filepath.Join(t.TempDir(), "pages"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o.Took = 0
	return o
}

// TestRunsAreRepeatable: one seed, one outcome; another one, another.
func TestRunsAreRepeatable(t *testing.T) {
	s := scene.Scene{Length: 5 * time.Second, Seed: 1, Tenants: []scene.Tenant{
		{Name: "a", Share: 30, Processes: 2, Load: scene.Load{Kernel: ms}}, {Name: "b", Share: 60, Threads: 2, Load: scene.Load{Kernel: 300 * us}}}}
	for _, law := range []Law{Ours, BlockBucket, PIDBucket} {
		if first, again := runIn(t, s, law), runIn(t, s, law); !reflect.DeepEqual(first, again) {
			t.Errorf("law %d: two runs of one seed differ", law)
		}
	}
	other := s
	other.Seed = 2
	if reflect.DeepEqual(runIn(t, s, Ours), runIn(t, other, Ours)) {
		t.Error("runs of two seeds are the same: there is no jitter")
	}
}

// TestUncappedTenantsShareByTurns: without any law the card's turns decide.
func TestUncappedTenantsShareByTurns(t *testing.T) {
	free := func(kernel time.Duration) scene.Tenant {
		return scene.Tenant{Mode: scene.Uncapped, Load: scene.Load{Kernel: kernel}}
	}
	o := runIn(t, scene.Scene{Length: 5 * time.Second, Tenants: []scene.Tenant{free(20 * ms), free(200 * us)}}, Ours)
	for i := range o.Tenants {
		near(t, "share", o.Tenants[i].Share(0, 5*time.Second), 0.5, 0.01)
	}
}

// TestEventsHappen: each kind shows in the outcome.
func TestEventsHappen(t *testing.T) {
	base := scene.Scene{Length: 10 * time.Second, Seed: 1, Tenants: []scene.Tenant{{Name: "a", Share: 60, Load: scene.Load{Kernel: ms}}}}
	late := func(s scene.Scene) float64 {
		return runIn(t, s, Ours).Tenants[0].Share(6*time.Second, 10*time.Second)
	}
	with := func(e scene.Event) scene.Scene {
		s := base
		e.At = 5 * time.Second
		s.Events = []scene.Event{e}
		return s
	}
	near(t, "share after it was halved", late(with(scene.Event{Kind: scene.SetShare, Value: 30})), 0.3, 0.02)
	near(t, "share after the only process was killed", late(with(scene.Event{Kind: scene.KillOne})), 0, 0)
	blind := with(scene.Event{Kind: scene.CostFactor, Value: 500})
	blind.Utilization.Absent = true
	if got := late(blind); got < 0.9 {
		t.Errorf("share is %v with costs measured at half and nobody to tell: want all of the card", got)
	}
	killed := with(scene.Event{Kind: scene.CostFactor, Value: 500})
	killed.Events = append([]scene.Event{{At: time.Second, Kind: scene.StopAgent}}, killed.Events...)
	near(t, "share without an agent, whose costs stay", late(killed), 0.6, 0.02)
}

// TestBlockBucketStep: the step that is published for 188 SMs, half of the card off the target.
func TestBlockBucketStep(t *testing.T) {
	b := newBlockBucket(50, 188)
	b.watch(0)
	near(t, "refill in millions of tokens", b.refill/1e6, 2.08, 0.01)
	twice := newBlockBucket(50, 94)
	twice.watch(0)
	near(t, "gain by SMs", b.refill/twice.refill, 4, 1e-9)
}

// TestPIDBucketHoldsTwoSeconds: what may go at once.
func TestPIDBucketHoldsTwoSeconds(t *testing.T) {
	w := newWorld(time.Minute, 1)
	b := newPIDBucket(50, w)
	w.now = 30 * time.Second
	taken := 0
	for b.take(launch{blocks: 1 << 20, threads: 1024}) { // so large that each is 10 tokens
		taken++
	}
	if want := int(pidBurst * pidFirst / 10); taken != want {
		t.Errorf("%d launches at once, want %d", taken, want)
	}
}
