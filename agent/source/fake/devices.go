// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package fake

import (
	"context"
	"slices"
	"sync"

	"github.com/vgpud/vgpud/agent/source"
)

// Devices answers with what was set, or hangs, and notes what it was asked for.
type Devices struct {
	mu    sync.Mutex
	list  []source.DeviceSample
	err   error
	hang  chan struct{}
	asked [][]string
}

// Set replaces the cards and clears the error.
func (d *Devices) Set(list ...source.DeviceSample) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list, d.err = slices.Clone(list), nil
}

// Fail makes every read fail until the next Set.
func (d *Devices) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

// Hang makes every read wait until the returned function is called, whatever becomes of its context, as a driver does.
func (d *Devices) Hang() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hang := make(chan struct{})
	d.hang = hang
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hang = nil
		close(hang)
	})
}

// Asked returns what reads were asked for: names of cards, or nil for all.
func (d *Devices) Asked() [][]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked)
}

// Devices implements source.Devices.
func (d *Devices) Devices(_ context.Context, quick []string) ([]source.DeviceSample, error) {
	d.mu.Lock()
	d.asked = append(d.asked, slices.Clone(quick))
	hang := d.hang
	d.mu.Unlock()
	if hang != nil {
		<-hang
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var samples []source.DeviceSample
	for _, sample := range d.list {
		if quick == nil || slices.Contains(quick, sample.GPUUUID) {
			samples = append(samples, sample)
		}
	}
	return samples, d.err
}
