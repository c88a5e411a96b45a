// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package pages reads the usage pages of the containers through package limiter, which treats every byte as hostile.
// What a page says is its container's claim; what is wrong with it becomes a state, never an error of the source.
package pages

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
)

// Reader reads the pages below one directory: <directory>/<key>/{limits,usage}.
type Reader struct{ directory string }

var _ source.Pages = Reader{}

// New returns a reader of the pages below directory.
func New(directory string) Reader { return Reader{directory: directory} }

// Usage implements source.Pages. It fails only as a whole, when there is no directory to read from.
func (r Reader) Usage(keys []string) ([]source.PageUsage, error) {
	usages := make([]source.PageUsage, 0, len(keys))
	for _, key := range keys {
		if !filepath.IsLocal(key) {
			return nil, fmt.Errorf("read usage page: key %q is not the name of a directory", key)
		}
		usages = append(usages, r.read(key))
	}
	return usages, nil
}

func (r Reader) read(key string) source.PageUsage {
	usage, err := limiter.ReadUsage(filepath.Join(r.directory, key))
	if err != nil {
		return source.PageUsage{Key: key, State: stateOf(err), Reason: err.Error()}
	}
	read := source.PageUsage{Key: key, State: source.PagesReadable}
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

func stateOf(err error) source.PagesState {
	switch {
	case errors.Is(err, limiter.ErrTampered):
		return source.PagesTampered
	case errors.Is(err, fs.ErrNotExist):
		return source.PagesMissing
	}
	return source.PagesUnknown
}
