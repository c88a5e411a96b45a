// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package pages reads the usage pages of the containers through package limiter, which treats every byte as hostile.
// What a page says is its container's claim; what is wrong with it becomes a state, never an error of the source.
package pages

import (
	"errors"
	"io/fs"
	"sync"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
)

// Reader reads the pages of allocations, <path of the allocation>/{limits,usage}. It keeps what it has opened, as long as it is
// asked for it by somebody. It may be used by several goroutines.
type Reader struct {
	path func(key string) string

	mu   sync.Mutex // held while pages are read: what was opened and the buffers are shared
	room *limiter.UsageReaders
	open map[string]*openPages
}

type openPages struct {
	path   string
	reader *limiter.UsageReader
	idle   int // calls since it was last asked for

	told    source.PageUsage // as it was told last,
	version uint64           // of the reader then; 0: not yet
}

// mostIdle is after how many calls without it an allocation's pages are closed. Several users may ask for different ones.
const mostIdle = 4

var _ source.Pages = (*Reader)(nil)

// New returns a reader; path tells in which directory the pages of an allocation are. The caller closes it.
func New(path func(key string) string) *Reader {
	return &Reader{path: path, room: limiter.NewUsageReaders(), open: map[string]*openPages{}}
}

// Usage implements source.Pages. It never fails as a whole.
func (r *Reader) Usage(keys []string) ([]source.PageUsage, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	usages := make([]source.PageUsage, 0, len(keys))
	for _, key := range keys {
		usages = append(usages, r.read(key))
	}
	for key, kept := range r.open {
		if kept.idle++; kept.idle > mostIdle {
			kept.reader.Close()
			delete(r.open, key)
		}
	}
	return usages, nil
}

// Close closes what is open.
func (r *Reader) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, kept := range r.open {
		kept.reader.Close()
		delete(r.open, key)
	}
}

// of is the reader of an allocation's pages.
func (r *Reader) of(key string) *openPages {
	path, kept := r.path(key), r.open[key]
	if kept != nil && kept.path != path { // given up, and granted anew elsewhere
		kept.reader.Close()
		kept = nil
	}
	if kept == nil {
		kept = &openPages{path: path, reader: r.room.Open(path)}
		r.open[key] = kept
	}
	kept.idle = 0
	return kept
}

func (r *Reader) read(key string) source.PageUsage {
	kept := r.of(key)
	limits, usage, faults := kept.reader.Read() // limits first: a freeze is for this epoch or none
	version := kept.reader.Version()
	if kept.version == version {
		return kept.told // nobody changes what it shares with others
	}
	kept.version = version
	kept.told = tell(key, limits, usage, faults[0], faults[1])
	return kept.told
}

// tell makes the source's words of the limiter's.
func tell(key string, limits limiter.Limits, usage limiter.Usage, limitsErr, err error) source.PageUsage {
	read := source.PageUsage{Key: key, State: source.PagesReadable}
	if limitsErr == nil {
		read.Epoch, read.Frozen = limits.Epoch, source.Damage(limits.Frozen)
	}
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
