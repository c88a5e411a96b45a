// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_outside.go joins the look from outside to the rest: what it sees, by which policy it judges, and who acts on it.

package main

import (
	"context"

	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/agent/source/bpfevents"
	"github.com/vgpud/vgpud/agent/source/procs"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
)

// openOutside makes the look from outside, where the witness or the probes are asked for.
func (a *app) openOutside() {
	judged, probed := a.config.Witness != "" && a.config.Witness != wordOff, a.config.Probes != "" && a.config.Probes != wordOff
	if !judged && !probed {
		return
	}
	residents := procs.NewResidents(a.parts.procRoot, a.pagesPath, a.mountedFiles, limiter.MonotonicNow)
	a.residents = residents
	a.onClose(func(context.Context) error { residents.Close(); return nil })
	a.outside = a.newOutside()
}

// mountedFiles are the files that a process of an allocation is to see.
func (a *app) mountedFiles(key string) []procs.File {
	record, held := a.books.Record(key)
	if !held {
		return nil
	}
	var files []procs.File
	for _, file := range plugin.MountedFiles(record, libraryDir(a.config)) {
		files = append(files, procs.File{ContainerPath: file.ContainerPath, HostPath: file.HostPath})
	}
	return files
}

// openProbes attaches the probes.
func (a *app) openProbes() outside.Probes {
	return bpfevents.Open(bpfevents.Options{Mode: a.config.Probes, NVMLLibrary: a.config.NVMLLibrary, Ours: plugin.LibraryPattern(libraryDir(a.config)),
		Log: a.baseLog.With("component", "probes")})
}

// newOutside makes the loop of an agent; it looks at nothing yet.
func (a *app) newOutside() *outside.Loop {
	config := outside.Config{Witness: a.config.Witness != "" && a.config.Witness != wordOff, Policy: witnessPolicy(a.config),
		Sources: monitor.OutsideSources{Residents: a.residents}, Freezer: a.freezer, Pods: a.podsKept, Tell: a.tellFinding, Log: a.baseLog}
	if a.steer != nil {
		config.Steering = a.steer.View
	}
	if a.config.Probes != "" && a.config.Probes != wordOff {
		config.Open = a.openProbes
	}
	if config.Witness {
		config.Sources = monitor.OutsideSources{Memories: a.memories, Residents: a.residents, Ledger: a.sources.Ledger, Pages: a.sources.Pages, Elsewhere: a.givenElsewhere}
	}
	return outside.New(config)
}

// witnessPolicy is what the configuration says of the witness.
func witnessPolicy(config Config) witness.Policy {
	policy := witness.DefaultPolicy()
	policy.Action = witness.Action(config.Witness)
	policy.OverheadBytes, policy.TrustedNamespaces = config.WitnessOverheadBytes, config.WitnessTrusted
	return policy
}

// givenElsewhere are the cards that other plugins gave to pods, as the last tick saw it whose kubelet could be read. The witness
// alone calls it.
func (a *app) givenElsewhere() map[string][]string {
	if last := a.ticked.Load(); last != nil && last.snapshot.Elsewhere != nil {
		a.elsewhere = last.snapshot.Elsewhere
	}
	return a.elsewhere
}
