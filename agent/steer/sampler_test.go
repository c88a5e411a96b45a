// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the sampler, in virtual time.

package steer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
)

// scriptedDriver answers each look with one sample, numbered, or as told.
type scriptedDriver struct {
	mu    sync.Mutex
	looks []time.Time
	hang  time.Duration // how long a look takes
	err   error
}

func (d *scriptedDriver) Utilization(ctx context.Context) ([]source.ProcessUtilization, error) {
	d.mu.Lock()
	d.looks = append(d.looks, time.Now())
	number, hang, err := len(d.looks), d.hang, d.err
	d.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(hang):
	}
	if err != nil {
		return nil, err
	}
	return []source.ProcessUtilization{{GPUUUID: gpuA, PID: number, Busy: 0.5, At: time.Duration(number)}}, nil
}

func (d *scriptedDriver) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.looks)
}

// scriptedOwners gives even processes to "even", odd ones to nobody.
type scriptedOwners struct{}

func (scriptedOwners) Keys(pids []int) (map[int][]string, error) {
	keys := map[int][]string{}
	for _, pid := range pids {
		keys[pid] = nil
		if pid%2 == 0 {
			keys[pid] = []string{"even"}
		}
	}
	return keys, nil
}

// sampling runs a sampler in a bubble until the test ends.
func sampling(t *testing.T, driver source.Utilizations, owners source.Keys) *Sampler {
	s := NewSampler(driver, owners)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSamplerHandsEachSampleOverOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sampling(t, &scriptedDriver{}, scriptedOwners{})
		s.hurry(true)
		time.Sleep(150 * time.Millisecond)
		samples, keys, err := s.take()
		if len(samples) != 2 || samples[0].PID != 1 || samples[1].PID != 2 || err != nil {
			t.Errorf("%+v, %v", samples, err)
		}
		if diff := cmp.Diff(map[int][]string{1: nil, 2: {"even"}}, keys); diff != "" {
			t.Error(diff)
		}
		if samples, keys, _ := s.take(); len(samples) != 0 || len(keys) != 0 {
			t.Errorf("a second time: %+v %v", samples, keys)
		}
	})
}

// A node that does nothing costs one look a second; when something begins, ten a second follow at once.
func TestSamplerHurriesOnlyWhenWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &scriptedDriver{}
		s := sampling(t, driver, scriptedOwners{})
		time.Sleep(10*time.Second + time.Millisecond)
		idle := driver.count()
		if idle != 11 {
			t.Errorf("%d looks in 10 s of nothing", idle)
		}
		time.Sleep(500 * time.Millisecond)
		s.hurry(true)
		s.hurry(true)
		time.Sleep(time.Millisecond)
		if driver.count() != idle+1 {
			t.Error("it did not look when it was asked to")
		}
		time.Sleep(time.Second)
		if got := driver.count() - idle; got != 11 {
			t.Errorf("%d looks in a second of work", got)
		}
		s.hurry(false)
		time.Sleep(10 * time.Second)
		if got := driver.count() - idle - 11; got > 12 {
			t.Errorf("%d looks in 10 s after the work", got)
		}
	})
}

// A driver that hangs holds nobody up, and is one fault.
func TestSamplerWhoseDriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		driver := &scriptedDriver{hang: 24 * time.Hour}
		s := sampling(t, driver, scriptedOwners{})
		for range 100 {
			s.hurry(true)
			before := time.Now()
			if samples, _, err := s.take(); len(samples) != 0 || err != nil || time.Since(before) != 0 {
				t.Fatalf("%v %v, after %v", samples, err, time.Since(before))
			}
			time.Sleep(20 * time.Millisecond)
		}
		if driver.count() != 1 {
			t.Errorf("%d looks at once", driver.count())
		}
	})
}

func TestSamplerFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no driver")
		s := sampling(t, &scriptedDriver{err: broken}, scriptedOwners{})
		time.Sleep(time.Millisecond)
		if _, _, err := s.take(); !errors.Is(err, broken) {
			t.Errorf("%v", err)
		}
		// Samples of which nobody can say whose they are say nothing.
		unknown := errors.New("no process table")
		s = sampling(t, &scriptedDriver{}, failingOwners{unknown})
		time.Sleep(time.Millisecond)
		if samples, _, err := s.take(); len(samples) != 0 || !errors.Is(err, unknown) {
			t.Errorf("%+v, %v", samples, err)
		}
	})
}

type failingOwners struct{ err error }

func (o failingOwners) Keys([]int) (map[int][]string, error) { return nil, o.err }

// Samples that nobody takes do not fill the memory.
func TestSamplerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sampling(t, &scriptedDriver{}, scriptedOwners{})
		s.hurry(true)
		time.Sleep(time.Hour)
		if samples, keys, _ := s.take(); len(samples) > maxPendingSamples || len(samples) < maxPendingSamples/2 || len(keys) > maxPendingSamples {
			t.Errorf("%d samples of %d processes", len(samples), len(keys))
		}
	})
}

// Where there is no sampler, nothing is sampled and nothing is wrong.
func TestNoSampler(t *testing.T) {
	var s *Sampler
	s.hurry(true)
	if samples, keys, err := s.take(); samples != nil || keys != nil || err != nil {
		t.Errorf("%v %v %v", samples, keys, err)
	}
}
