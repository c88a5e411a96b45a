// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// sampler.go asks the driver how busy each process kept the GPUs, in a goroutine of its own: the driver may take its time
// or hang, and steering goes on meanwhile.

package steer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// How often the driver is asked while a GPU is in use by our containers, and while none is.
const (
	sampleEvery     = 100 * time.Millisecond
	sampleIdleEvery = time.Second
)

// maxPendingSamples bounds what is kept while nobody takes it: more than a second of a full node.
const maxPendingSamples = 1 << 14

// Sampler collects samples until the loop takes them. A nil sampler has none.
type Sampler struct {
	utilizations source.Utilizations
	owners       source.Keys
	wake         chan struct{} // capacity 1: asked to hurry

	mu      sync.Mutex
	pending []source.ProcessUtilization
	keys    map[int][]string // of the processes that pending names
	err     error            // of the last look
	told    error            // of the last look that was taken
	hurried bool
}

// NewSampler asks utilizations, and owners whose the processes are.
func NewSampler(utilizations source.Utilizations, owners source.Keys) *Sampler {
	return &Sampler{utilizations: utilizations, owners: owners, wake: make(chan struct{}, 1), keys: map[int][]string{}}
}

// Run samples until ctx ends.
func (s *Sampler) Run(ctx context.Context) error {
	for {
		began := time.Now()
		s.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.pause(ctx, began)
	}
}

// look asks once.
func (s *Sampler) look(ctx context.Context) {
	samples, err := s.utilizations.Utilization(ctx)
	pids := map[int]bool{}
	for _, sample := range samples {
		pids[sample.PID] = true
	}
	var keys map[int][]string
	if len(pids) > 0 {
		var keysErr error
		keys, keysErr = s.owners.Keys(slices.Sorted(maps.Keys(pids)))
		err = errors.Join(err, keysErr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if keys == nil || len(s.pending)+len(samples) > maxPendingSamples {
		return // whose they are is not known, or nobody takes them
	}
	s.pending = append(s.pending, samples...)
	maps.Copy(s.keys, keys)
}

// hasNews says that take has to tell of use, or that the driver's state has changed.
func (s *Sampler) hasNews() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return (s.err == nil) != (s.told == nil) ||
		slices.ContainsFunc(s.pending, func(sample source.ProcessUtilization) bool { return sample.Busy > 0 })
}

// pause waits for the next look: sampleEvery while samples are wanted often, else sampleIdleEvery, or until they are.
func (s *Sampler) pause(ctx context.Context, began time.Time) {
	if !s.isHurried() {
		s.wait(ctx, began.Add(sampleIdleEvery), s.wake)
	}
	s.wait(ctx, began.Add(sampleEvery), nil) // past already, but for one that was woken early
}

// wait returns at until, when woken, or when ctx ends.
func (s *Sampler) wait(ctx context.Context, until time.Time, wake <-chan struct{}) {
	left := time.Until(until)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

func (s *Sampler) isHurried() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hurried
}

// take returns the samples since the last call, whose they are, and what is wrong with the driver.
func (s *Sampler) take() ([]source.ProcessUtilization, map[int][]string, error) {
	if s == nil {
		return nil, nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	samples, keys := s.pending, s.keys
	s.pending, s.keys, s.told = nil, map[int][]string{}, s.err
	return samples, keys, s.err
}

// hurry says whether samples are wanted often.
func (s *Sampler) hurry(yes bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if yes && !s.hurried {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	s.hurried = yes
}
