// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a tenant's library leaves in its usage page: exact counts, and samples of durations by class with the noise that
// clocks and event marks have.

package virtual

import (
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/scripts/contentionbench/scene"
)

const (
	mostClasses    = 24
	mostRecent     = 28
	kernelsEvery   = 4    // one kernel in so many is measured,
	copiesEvery    = 1    // and so of copies
	measureVaries  = 0.02 // standard deviation of what is measured
	outliers       = 0.005
	outlierMost    = 3.0 // an outlier takes up to so many times as long: the host was late
	measureGrain   = 16 * time.Nanosecond
	leastMeasured  = 64 << 10 // bytes: smaller copies are not measured
	classesPerLoop = 16
)

// library is what one tenant's pages hold.
type library struct {
	tenant      *tenant
	started     time.Duration
	incarnation uint64
	charged     float64 // ns
	waited      time.Duration
	counts      [source.Directions]source.Count
	stalls      source.Count
	classes     []class
}

// class is one class with what is between two samples.
type class struct {
	source.Class
	unsampled uint64 // operations since the last sample
	used      time.Duration
}

func (l *library) copies(o *scene.Operation) {
	direction := source.HostToDevice
	if o.Kind == scene.DeviceToHost {
		direction = source.DeviceToHost
	}
	l.counts[direction].Calls++
	l.counts[direction].Bytes += o.Bytes
}

func (l *library) stalled(d time.Duration) {
	l.stalls.Calls++
	l.stalls.Time += d
}

var kinds = map[scene.Kind]source.OperationKind{scene.Kernel: source.OperationKernel,
	scene.HostToDevice: source.OperationHostToDevice, scene.DeviceToHost: source.OperationDeviceToHost}

// measured counts an operation that took d, and now and then remembers that.
func (l *library) measured(w *world, x *worker, o *scene.Operation, d time.Duration) {
	if o.Kind != scene.Kernel && o.Bytes < leastMeasured {
		return
	}
	c := l.class(w, x, o)
	c.used = w.now
	c.unsampled++
	every := uint64(copiesEvery)
	if o.Kind == scene.Kernel {
		every = kernelsEvery
	}
	if c.unsampled < every {
		return
	}
	noise := 1 + measureVaries*w.random.NormFloat64()
	if w.random.Float64() < outliers {
		noise *= 1 + (outlierMost-1)*w.random.Float64()
	}
	took := time.Duration(float64(d)*max(0.5, noise)*l.tenant.Lies).Truncate(measureGrain) + measureGrain
	c.Samples++
	c.Operations += c.unsampled
	c.unsampled = 0
	if o.Kind != scene.Kernel {
		c.Bytes += o.Bytes
	}
	c.Time += took
	if len(c.Recent) == mostRecent {
		c.Recent = slices.Delete(c.Recent, 0, 1)
	}
	c.Recent = append(c.Recent, took)
}

// class finds the class of a worker's operation; the page's oldest one makes room for a new one.
func (l *library) class(w *world, x *worker, o *scene.Operation) *class {
	loop := 0
	for i := range l.tenant.Loops {
		if &l.tenant.Loops[i] == x.loop {
			loop = i
		}
	}
	process := l.incarnation // handles of functions are another process' own; copies are of a size and a direction
	if o.Kind != scene.Kernel {
		process = 0
	}
	id := (uint64(l.tenant.number+1)<<40 | process<<16 | uint64(loop*classesPerLoop+x.step) + 1) * 0x9e3779b97f4a7c15
	for i := range l.classes {
		if l.classes[i].ID == id {
			return &l.classes[i]
		}
	}
	fresh := class{Class: source.Class{ID: id, Kind: kinds[o.Kind]}, used: w.now}
	if len(l.classes) < mostClasses {
		l.classes = append(l.classes, fresh)
		return &l.classes[len(l.classes)-1]
	}
	oldest := 0
	for i := range l.classes {
		if l.classes[i].used < l.classes[oldest].used {
			oldest = i
		}
	}
	l.classes[oldest] = fresh
	return &l.classes[oldest]
}

// traffic is the page as the agent reads it.
func (l *library) traffic(key, gpu string) source.Traffic {
	t := source.Traffic{Key: key, GPUUUID: gpu, Known: true, Copies: l.counts, Stalls: l.stalls}
	for _, c := range l.classes {
		c.Recent = slices.Clone(c.Recent)
		t.Classes = append(t.Classes, c.Class)
	}
	return t
}
