// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_control.go answers on the control socket: what `vgpud top` shows is put together from the last tick, the last round of
// steering and the last looks, when somebody asks. All of these are immutable, so no loop waits for it.

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/watch"
	"github.com/vgpud/vgpud/limiter"
)

// tickResult is what the last tick saw and decided. Nobody changes it.
type tickResult struct {
	snapshot  *monitor.Snapshot
	decisions decide.Decisions
	gpus      []monitor.GPU // of the snapshot, and those that are gone from it, as they were seen last
	slices    []metrics.SliceCounts
	since     map[string]time.Time // of the state of each card's health
}

// openControl makes the socket, if one is configured. An agent whose socket cannot be made works on without it.
func (a *app) openControl() {
	if a.config.ControlSocket == "" {
		return
	}
	server := control.New(control.Config{Path: a.config.ControlSocket, View: a.controlView, Thaw: a.thaw, Log: a.baseLog})
	err := server.Listen()
	a.noted.Change(a.log, notes.Subject{Stage: notes.StageControl}, err)
	if err != nil {
		return
	}
	a.control = server
	a.onClose(func(context.Context) error { return server.Close() })
}

// controlView is everything that is known now; nil before the first tick.
func (a *app) controlView() *control.View {
	tick := a.ticked.Load()
	if tick == nil {
		return nil
	}
	// Each look is taken once, so that all that is told of it belongs together.
	var contention watch.View
	var watched *watch.Looked
	if a.watch != nil {
		watched = a.watch.Last()
		contention = a.watch.ViewOf(watched)
	}
	var told outside.View
	var looked *outside.Look
	if a.outside != nil {
		looked = a.outside.Last()
		told = a.outside.ViewOf(looked)
	}
	view := &control.View{
		Version: control.Version, Time: tick.snapshot.At, Node: a.nodeName(),
		Agent: control.Agent{Version: a.build.Version, Revision: a.build.Revision, LibraryBuildID: a.build.LibraryBuildID,
			PID: os.Getpid(), StartTime: a.startedAt},
		Contention: control.Contention{Mode: a.config.Contention, Preset: a.config.ContentionPreset},
		Probes: control.Probes{Mode: told.Probes.Mode, Reason: told.Probes.Reason, HitCostSeconds: told.Probes.HitCostSeconds,
			Libraries: told.Probes.Libraries},
	}
	if view.Contention.Mode == "" {
		view.Contention.Mode = contentionOff
	}
	if view.Contention.Mode == contentionOff {
		view.Contention.Preset = ""
	}
	if looked != nil {
		view.Probes.Unobservable = unobservableTexts(looked.Seen.Probes.Unobservable)
	} else {
		view.Probes.Mode = "off"
	}
	for _, gpu := range tick.gpus {
		view.GPUs = append(view.GPUs, a.controlGPU(gpu, tick, contention, watched))
	}
	slices.SortStableFunc(view.GPUs, func(x, y control.GPU) int { return x.Index - y.Index })
	view.Slices = a.controlSlices(tick, contention, watched)
	view.Sources = controlSources(tick, told)
	a.controlFindings(view, looked)
	return view
}

// unobservableTexts has a line for each file.
func unobservableTexts(files []source.Unobservable) (texts []string) {
	for _, file := range files {
		who := fmt.Sprintf("process %d", file.PID)
		if file.Processes > 1 {
			who += fmt.Sprintf(" and %d others", file.Processes-1)
		}
		texts = append(texts, fmt.Sprintf("%s (%s): %s", file.Path, who, file.Reason))
	}
	return texts
}

// controlSources are the tick's sources and those of the look from outside.
func controlSources(tick *tickResult, told outside.View) []control.Source {
	var list []control.Source
	known := map[string]bool{}
	for _, status := range slices.Concat(tick.snapshot.Sources, told.Sources) {
		if !known[status.Name] {
			known[status.Name] = true
			list = append(list, control.Source{Name: status.Name, Up: status.Up, Absent: status.Absent, NotAsked: status.NotAsked, Error: status.Error})
		}
	}
	return list
}

// controlFindings fills what the witness found, and who is frozen.
func (a *app) controlFindings(view *control.View, last *outside.Look) {
	if last == nil {
		return
	}
	wall, now := a.parts.now(), limiter.MonotonicNow()
	for _, finding := range last.Findings.List {
		container := finding.ContainerName
		if container == "" {
			container = finding.ContainerID
		}
		one := control.Finding{Kind: string(finding.Kind), Since: wall.Add(finding.Since - now), Namespace: finding.Namespace, Pod: finding.Pod,
			PodUID: finding.PodUID, Container: container, Command: finding.Command, GPUUUID: finding.GPUUUID, Detail: finding.Detail,
			Action: string(outside.WhatWasDone(last.Done, finding))}
		if finding.PID > 0 {
			one.PIDs = []int{finding.PID}
		}
		view.Findings = append(view.Findings, one)
	}
	for _, frozen := range a.freezer.View() {
		view.Frozen = append(view.Frozen, control.Frozen{Container: frozen.Container, Allocations: frozen.Allocations, Namespace: frozen.Namespace,
			Pod: frozen.Pod, Name: frozen.Name, Since: frozen.Since, Why: frozen.Why})
	}
}

// keepTick keeps what a tick came to for those who ask, and since when each card's health is as it is.
func (a *app) keepTick(snapshot *monitor.Snapshot, decisions decide.Decisions) {
	result := &tickResult{snapshot: snapshot, decisions: decisions, slices: countSlices(a.server.Slices(), a.books.Held()),
		since: map[string]time.Time{}}
	var seen []monitor.GPU
	if before := a.ticked.Load(); before != nil {
		maps.Copy(result.since, before.since)
		seen = before.gpus
	}
	result.gpus = knownGPUs(snapshot, decisions.GPUs, seen)
	for _, transition := range decisions.Transitions {
		result.since[transition.UUID] = snapshot.At
	}
	for _, verdict := range decisions.GPUs {
		if _, known := result.since[verdict.UUID]; !known {
			result.since[verdict.UUID] = snapshot.At
		}
	}
	a.ticked.Store(result)
}

// knownGPUs are the cards of a snapshot, and those that are judged although the driver no longer tells of them: who looks for
// slices that went has to find their card. seen are the known cards of the tick before.
func knownGPUs(snapshot *monitor.Snapshot, verdicts []decide.GPUVerdict, seen []monitor.GPU) []monitor.GPU {
	known := slices.Clone(snapshot.GPUs)
	for _, verdict := range verdicts {
		is := func(gpu monitor.GPU) bool { return gpu.UUID == verdict.UUID }
		if slices.ContainsFunc(known, is) {
			continue
		}
		gone := monitor.GPU{UUID: verdict.UUID, Index: -1, UsableBytes: verdict.UsableBytes, NUMANode: verdict.NUMANode}
		if at := slices.IndexFunc(seen, is); at >= 0 {
			gone.Index, gone.Model, gone.TotalBytes = seen[at].Index, seen[at].Model, seen[at].TotalBytes
		}
		for _, allocation := range snapshot.Allocations {
			for _, share := range allocation.GPUs {
				if share.GPUUUID == verdict.UUID {
					gone.HeldBytes += share.LimitBytes
				}
			}
		}
		gone.Detail = "the driver does not answer for it"
		if snapshot.SourceUp(monitor.SourceNVML) {
			gone.Detail = "the driver no longer lists it"
		}
		known = append(known, gone)
	}
	return known
}
