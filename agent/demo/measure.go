// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// How much of a card's time processes have, by the card's own account.

package demo

import (
	"context"
	"fmt"
	"math"
	"time"
)

// How long programs are watched, after a time in which they may get under way.
const (
	warmUp   = 300 * time.Millisecond
	watchFor = 1500 * time.Millisecond
)

// tolerance is how far beyond what is said a measured part of the card may be, in percent of the card. On a machine that
// is busy with other things programs launch too late to use all that they may, so what is said is tried several times.
const (
	tolerance = 5
	tries     = 4
)

// part is what a process should have of a card, in percent.
type part struct {
	pid         int
	least, most float64
}

// account is what a card says of its time.
type account struct {
	at   time.Duration         // CLOCK_MONOTONIC
	busy map[int]time.Duration // by pid
}

// account reads the card's counters.
func (c cards) account(ctx context.Context, card int) (account, error) {
	status, err := c.read(ctx)
	if err != nil {
		return account{}, err
	}
	read := account{at: time.Duration(status.Monotonic), busy: map[int]time.Duration{}}
	for _, client := range status.GPUs[card].Clients {
		read.busy[client.PID] = time.Duration(client.Busy)
	}
	return read, nil
}

// parts watches processes until each has the part of the card's time that it should have, and returns these parts in
// percent.
func (c cards) parts(ctx context.Context, card int, wanted ...part) ([]float64, error) {
	for try := 1; ; try++ {
		got, err := c.watch(ctx, card, wanted)
		if err != nil {
			return nil, err
		}
		right := true
		for i, want := range wanted {
			right = right && got[i] >= want.least-tolerance && got[i] <= want.most+tolerance
		}
		if right {
			return got, nil
		}
		if try == tries {
			return nil, fmt.Errorf("parts of the card's time: measured %.1f percent, wanted by process, least and most %v", got, wanted)
		}
	}
}

// watch measures once.
func (c cards) watch(ctx context.Context, card int, wanted []part) ([]float64, error) {
	if err := rest(ctx, warmUp); err != nil {
		return nil, err
	}
	before, err := c.account(ctx, card)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, watchFor); err != nil {
		return nil, err
	}
	after, err := c.account(ctx, card)
	if err != nil {
		return nil, err
	}
	var parts []float64
	for _, want := range wanted {
		if _, known := after.busy[want.pid]; !known {
			return nil, fmt.Errorf("the card knows no process %d", want.pid)
		}
		percent := 100 * float64(after.busy[want.pid]-before.busy[want.pid]) / float64(after.at-before.at)
		parts = append(parts, math.Round(percent*10)/10)
	}
	return parts, nil
}

// rest waits, or ends early with ctx.
func rest(ctx context.Context, duration time.Duration) error {
	select {
	case <-time.After(duration):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
