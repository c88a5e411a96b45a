// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package pages reads the usage pages of the containers through package limiter, which treats every byte as hostile.
// What a page says is its container's claim; what is wrong with it becomes a state, never an error of the source.
package pages

import (
	"errors"
	"io/fs"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
)

// Reader reads the pages of allocations, <path of the allocation>/{limits,usage}.
type Reader struct{ path func(key string) string }

var _ source.Pages = Reader{}

// New returns a reader; path tells in which directory the pages of an allocation are.
func New(path func(key string) string) Reader { return Reader{path: path} }

// Usage implements source.Pages. It never fails as a whole.
func (r Reader) Usage(keys []string) ([]source.PageUsage, error) {
	usages := make([]source.PageUsage, 0, len(keys))
	for _, key := range keys {
		usages = append(usages, r.read(key))
	}
	return usages, nil
}

func (r Reader) read(key string) source.PageUsage {
	read := source.PageUsage{Key: key, State: source.PagesReadable}
	limits, limitsErr := limiter.ReadLimits(r.path(key)) // first: a freeze is for this epoch or none
	if limitsErr == nil {
		read.Epoch, read.Frozen = limits.Epoch, source.Damage(limits.Frozen)
	}
	usage, err := limiter.ReadUsage(r.path(key))
	if err != nil {
		read.State, read.Reason = stateOf(err), err.Error()
		if limitsErr == nil {
			read.Damage = damageOf(err)
		}
		return read
	}
	for _, device := range usage.Devices {
		read.Devices = append(read.Devices, source.DeviceUsage{GPUUUID: device.UUID, UsedBytes: device.UsedBytes,
			Allocations: device.Allocations, Refusals: device.Refusals})
	}
	for _, process := range usage.Processes {
		read.Processes = append(read.Processes, source.PageProcess{UsedBytes: process.UsedBytes, ID: source.ProcessID{
			PIDNamespace: process.PIDNamespace, PID: process.PID, StartTime: process.StartTime}})
	}
	return read
}

// damageOf says what an error means for the usage page beside a limits page that is right.
func damageOf(err error) source.Damage {
	var tamper *limiter.TamperError
	switch {
	case errors.As(err, &tamper):
		return source.Damage(tamper.Damage)
	case errors.Is(err, fs.ErrNotExist):
		return source.Damage(limiter.DamageReplaced)
	}
	return source.DamageNone
}

func stateOf(err error) source.PagesState {
	switch {
	case errors.Is(err, limiter.ErrTampered):
		return source.PagesTampered
	case errors.Is(err, fs.ErrNotExist):
		return source.PagesMissing
	}
	return source.PagesUnknown
}
