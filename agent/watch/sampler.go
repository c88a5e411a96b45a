// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// sampler.go reads the counters of cards in a goroutine of its own: some block for 20 ms each, and the driver may
// hang; whoever looks waits no longer than its patience, and sees then that the cards do not answer.

package watch

import (
	"context"
	"errors"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// defaultPatience is how long a look waits for the counters. Without GPM they take 40 ms a card.
const defaultPatience = 2 * time.Second

// errNoCounters is the state of cards of which nothing can be read, by this agent's parts.
var errNoCounters = errors.New("no counters: this agent has no source of them")

// errNoAnswer is the state of a driver that hangs.
var errNoAnswer = errors.New("the driver does not answer")

// Sampler asks one question at a time. A nil one has no counters.
type Sampler struct {
	devices   source.Devices
	questions chan []string // cards; nil: all, and all of their counters
	answers   chan answer
	patience  time.Duration

	waiting bool // a question is not answered yet; of the goroutine that looks
}

type answer struct {
	samples []source.DeviceSample
	all     bool
	err     error
}

// NewSampler asks devices.
func NewSampler(devices source.Devices) *Sampler {
	return &Sampler{devices: devices, questions: make(chan []string, 1), answers: make(chan answer, 1), patience: defaultPatience}
}

// Run answers questions until ctx ends.
func (s *Sampler) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case cards := <-s.questions:
			samples, err := s.devices.Devices(ctx, cards)
			s.answers <- answer{samples, cards == nil, err} // there is room: one question at a time
		}
	}
}

// ask reads the counters of the cards that are named, or of all (nil). An answer that came too late is dropped.
func (s *Sampler) ask(ctx context.Context, cards []string) answer {
	if s == nil {
		return answer{all: cards == nil, err: errNoCounters}
	}
	if s.waiting {
		select {
		case <-s.answers:
			s.waiting = false
		default: // it was waited for before: this look goes on at once
			return answer{all: cards == nil, err: errNoAnswer}
		}
	}
	s.questions <- cards
	s.waiting = true
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	select {
	case answer := <-s.answers:
		s.waiting = false
		return answer
	case <-ctx.Done():
		return answer{all: cards == nil, err: ctx.Err()}
	case <-timer.C:
		return answer{all: cards == nil, err: errNoAnswer}
	}
}
