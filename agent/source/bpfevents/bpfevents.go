// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package bpfevents is the source of what the kernel's probes count, through package bpf. Probes are an extra: where they
// cannot be had, the source says so once and why, and otherwise has nothing to tell.
package bpfevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/bpf"
)

// Options are those of package bpf that an operator sets.
type Options struct {
	Mode        string // auto, full, sampled or off; "" is auto
	NVMLLibrary string // path of the driver's other library, where it is known: the one to probe lies beside it
	Ours        string // pattern of the paths of libraries that we preload: they export the driver's names too
	Log         *slog.Logger
}

// Probes are the probes of this machine, or the reason why there are none.
type Probes struct {
	probes *bpf.Probes // nil: there are none
	reason string
}

var _ source.Probes = (*Probes)(nil)

// Open starts the probes. It does not fail: an agent goes on without them.
func Open(options Options) *Probes {
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	libraries := bpf.DefaultLibraries()
	if filepath.IsAbs(options.NVMLLibrary) {
		libraries = append(libraries, filepath.Join(filepath.Dir(options.NVMLLibrary), "libcuda.so.*"))
	}
	probes, err := bpf.Open(bpf.Options{Mode: bpf.Mode(options.Mode), Libraries: libraries, Never: []string{options.Ours}, Log: options.Log})
	switch {
	case errors.Is(err, bpf.ErrOff):
		return &Probes{reason: err.Error()}
	case err != nil:
		options.Log.Warn("no probes: calls of the driver are not counted from outside", "reason", err)
		return &Probes{reason: err.Error()}
	}
	status := probes.Status()
	options.Log.Info("probes are at work", "mode", string(status.Mode), "reason", status.Reason, "mechanism", string(status.Mechanism),
		"hit_cost", status.HitCost, "cap_per_second", status.Cap, "libraries", status.Libraries)
	return &Probes{probes: probes}
}

// Calls implements source.Probes.
func (p *Probes) Calls(context.Context) ([]source.Calls, source.ProbeStatus, error) {
	if p.probes == nil {
		return nil, source.ProbeStatus{Mode: source.ProbesOff, Reason: p.reason}, nil
	}
	status := statusOf(p.probes.Status())
	groups, err := p.probes.Groups()
	if err != nil {
		return nil, status, fmt.Errorf("read probes: %w", err)
	}
	calls := make([]source.Calls, 0, len(groups))
	for _, g := range groups {
		calls = append(calls, callsOf(g))
	}
	return calls, status, nil
}

// Close detaches all probes.
func (p *Probes) Close() error {
	if p.probes == nil {
		return nil
	}
	return p.probes.Close()
}

func statusOf(s bpf.Status) source.ProbeStatus {
	status := source.ProbeStatus{Mode: source.ProbeMode(s.Mode), Reason: s.Reason, HitCost: s.HitCost, Libraries: s.Libraries}
	for _, u := range s.Unobservable {
		status.Unobservable = append(status.Unobservable, source.Unobservable(u))
	}
	return status
}

func callsOf(g bpf.Group) source.Calls {
	return source.Calls{
		CgroupID: g.CgroupID,
		Copies: [source.Directions]source.Count{
			source.HostToDevice: countOf(g.HostToDevice), source.DeviceToHost: countOf(g.DeviceToHost),
			source.DeviceToDevice: countOf(g.DeviceToDevice), source.PeerToPeer: countOf(g.PeerToPeer),
		},
		UntoldCopies: countOf(g.UntoldCopies), Allocations: countOf(g.Allocations), Stalls: countOf(g.Stalls),
		Contexts: g.Created + g.Retained, Ioctls: g.Ioctls, Exits: g.Exits, Missed: g.Missed,
	}
}

func countOf(c bpf.Count) source.Count {
	return source.Count{Calls: c.Calls, Bytes: c.Bytes, Time: c.Time}
}
