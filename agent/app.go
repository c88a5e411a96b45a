// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app.go composes the daemon: it alone knows all parts, and turns one stage's output into the next one's input.
//
//	sources → monitor.Collect → decide.Decide → plugin (inventory), pages (restored), ledger (identify, release), metrics
//
// One goroutine owns the tick. Others run beside it: the plugin's server, which grants through the ledger and never
// waits for a tick; steering (package steer) with its sampler, which is much faster than the tick; the look at contention
// (package watch) with its sampler, whose verdicts the tick takes; the look from outside (package outside); Events and the
// control socket, which only read what the loops came to; and the writer of the metrics file, so that a slow disk does not
// stop the tick.
//
// Start: one agent per state directory, ledger opened, library installed, pages directory prepared, first tick, then
// the plugin registers. Stop: the plugin's streams are closed, the metrics file is removed, the driver is let go. The
// pages and the library stay: running containers stay limited.

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/events"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/outside"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/kubelet"
	ledgersource "github.com/vgpud/vgpud/agent/source/ledger"
	"github.com/vgpud/vgpud/agent/source/nvml"
	"github.com/vgpud/vgpud/agent/source/pages"
	"github.com/vgpud/vgpud/agent/source/procs"
	"github.com/vgpud/vgpud/agent/steer"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/agent/watch"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Policy that is not the operator's to choose.
const (
	recoverAfterTicks = 3
	releaseAge        = time.Minute
	releaseAfterTicks = 2
)

// parts are what tests put in the place of the real thing. The zero value is the real thing.
type parts struct {
	gpus       source.GPUs         // nil: NVML
	samples    source.Utilizations // of use of GPU time; NVML's where gpus is nil, as the two below
	devices    source.Devices
	memories   source.ProcessMemories
	health     *health.Policy     // nil: of the configuration
	contend    watch.Contender    // nil: contention.Judge
	procRoot   string             // "": "/"
	mountPages func(string) error // nil: a tmpfs of bounded size
	timing     plugin.Timing      // of the registration
	now        func() time.Time   // nil: time.Now
	releaseAge time.Duration      // 0: releaseAge
}

// app is the running daemon.
type app struct {
	config    Config
	log       *slog.Logger // component=agent
	baseLog   *slog.Logger // for the parts, which set their own
	sources   monitor.Sources
	books     *ledger.Ledger
	pages     *store.Pages
	server    *plugin.Server
	samples   *steer.Sampler // nil: nothing measures
	steer     *steer.Loop    // nil: no GPU time is limited
	devices   *watch.Sampler // nil: nothing has counters
	watch     *watch.Loop    // nil: contention is not looked for
	wake      chan struct{}  // capacity 1: the tick is wanted at once
	outside   *outside.Loop  // nil: nobody looks from outside
	memories  source.ProcessMemories
	residents source.Residents
	elsewhere map[string][]string // see givenElsewhere
	freezer   *freezer.Freezer    // nil: nobody is frozen
	events    *events.Recorder    // nil: no Events
	control   *control.Server     // nil: no socket
	startedAt time.Time
	ticked    atomic.Pointer[tickResult] // nil before the first tick

	told    telling                                  // in the metrics file
	oldest  atomic.Pointer[map[string]time.Duration] // when the oldest process of each allocation started, CLOCK_MONOTONIC; of the last tick
	publish *metrics.Publisher                       // nil: no metrics file
	policy  decide.Policy
	state   decide.State
	build   metrics.Build
	parts   parts
	noted   notes.Notes
	started bool
	closers []func(context.Context) error // in the order of starting
}

// runAgent builds the daemon, runs it until ctx ends, and stops it. A nil error is an orderly stop.
func runAgent(ctx context.Context, config Config, log *slog.Logger, parts parts) (err error) {
	if parts.now == nil {
		parts.now = time.Now
	}
	if parts.procRoot == "" {
		parts.procRoot = "/"
	}
	if parts.releaseAge == 0 {
		parts.releaseAge = releaseAge
	}
	a := &app{wake: make(chan struct{}, 1), startedAt: parts.now(), config: config, log: log.With("component", "agent"), baseLog: log, parts: parts, build: buildInfo(), policy: decide.Policy{
		SlicesPerGPU: config.SlicesPerGPU, MarginBytes: config.MemoryMarginBytes, MinSliceBytes: ledger.SliceUnit, RecoverAfter: recoverAfterTicks,
		ReleaseAge: parts.releaseAge, ReleaseAfter: releaseAfterTicks, MarkAllocated: config.ContentionMarkAllocated}}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.open(); err != nil {
		return err
	}
	// The list must be right before the kubelet sees it, and a configuration that cannot be offered ends here.
	if err := a.tick(ctx); err != nil {
		return err
	}
	a.started = true
	a.log.Info("started", "gpus", len(a.state.GPUs), "allocations", len(a.books.Snapshot()), "library", a.build.LibraryBuildID,
		"compute_mode", a.config.ComputeMode, "compute_ceiling_percent", a.config.ComputeCeilingPercent)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.server.Run(ctx) })
	group.Go(func() error { return a.loop(ctx) })
	if a.steer != nil {
		group.Go(func() error { return a.steer.Run(ctx) })
		if a.samples != nil {
			group.Go(func() error { return a.samples.Run(ctx) })
		}
	}
	if a.watch != nil {
		group.Go(func() error { return a.watch.Run(ctx) })
		if a.devices != nil {
			group.Go(func() error { return a.devices.Run(ctx) })
		}
	}
	if a.outside != nil {
		group.Go(func() error { return a.outside.Run(ctx) })
	}
	if a.events != nil {
		group.Go(func() error { return a.events.Run(ctx) })
	}
	if a.control != nil {
		group.Go(func() error { return a.control.Run(ctx) })
	}
	if a.publish != nil {
		group.Go(func() error { return a.publish.Run(ctx) })
	}
	return group.Wait()
}

// open builds every part, in the order in which they need each other.
func (a *app) open() error {
	if err := a.config.places().Check(); err != nil {
		return fmt.Errorf("check configuration: %w", err)
	}
	lock, err := store.Lock(a.config.StateDir)
	if err != nil {
		return err
	}
	a.onClose(func(context.Context) error { return lock.Close() })
	if a.books, err = ledger.Open(filepath.Join(a.config.StateDir, store.RecordsDirectory)); err != nil {
		return fmt.Errorf("open ledger: %w", err)
	}
	a.books.SetCompute(a.config.compute())
	for _, aside := range a.books.SetAside() {
		a.log.Error("not a record that can be read; the others stand", "path", aside.Path, "reason", aside.Reason)
	}
	if err := a.preparePages(); err != nil {
		return err
	}
	if err := a.installLibrary(); err != nil {
		return err
	}
	a.openSources()
	if a.config.ComputeMode != ledger.ComputeNone || slices.ContainsFunc(a.books.Snapshot(), steer.IsSteered) {
		a.steer = steer.New(a.books, a.pages, a.samples, a.baseLog)
	}
	if a.config.Contention == contentionReport || a.config.Contention == contentionHealth {
		a.watch = a.newWatch()
		a.watch.Restore() // before the first tick: what was contended is not offered
		if a.steer != nil {
			a.steer.CutBy(a.watch.Cuts)
		}
	}
	a.openFreezer()
	a.openOutside()
	a.openEvents()
	a.server, err = plugin.New(pluginConfig(a.config, a.build.LibraryBuildID, a.parts.timing), a.books, a.pages, a.baseLog)
	if err != nil {
		return fmt.Errorf("make plugin: %w", err)
	}
	if a.config.TextfileDir != "" {
		a.publish = metrics.NewPublisher(a.config.TextfileDir, a.baseLog)
		a.onClose(func(context.Context) error { return a.publish.Close() })
	}
	a.openControl()
	return nil
}

// pluginConfig is what the plugin is told of the configuration.
func pluginConfig(config Config, buildID string, timing plugin.Timing) plugin.Config {
	return plugin.Config{
		ResourceName: config.ResourceName, KubeletDir: config.KubeletDir, Strategy: config.DeviceListStrategy,
		CDIKind: config.CDIKind, ContainerDir: config.ContainerDir, LibraryDir: libraryDir(config),
		BuildID: buildID, PagesDir: config.PagesDir, Timing: timing,
	}
}

func libraryDir(config Config) string { return filepath.Join(config.StateDir, store.LibraryDirectory) }

func (a *app) openSources() {
	gpus, samples, devices := a.parts.gpus, a.parts.samples, a.parts.devices
	a.memories = a.parts.memories
	if gpus == nil {
		reader := nvml.New(a.config.NVMLLibrary, nvml.TickPatience, time.Now)
		a.onClose(reader.Close)
		gpus, samples, devices, a.memories = reader, reader, reader, reader
	}
	if devices != nil {
		a.devices = watch.NewSampler(devices)
	}
	if samples != nil {
		keyring := procs.NewKeyring(a.parts.procRoot, a.pagesPath)
		a.onClose(func(context.Context) error { keyring.Close(); return nil })
		a.samples = steer.NewSampler(samples, keyring)
	}
	holders := kubelet.New(a.config.KubeletDir, a.config.ResourceName, plugin.AllocationVariable)
	a.onClose(func(context.Context) error { return holders.Close() })
	pageReader := pages.New(a.pagesPath)
	a.onClose(func(context.Context) error { pageReader.Close(); return nil })
	table := procs.New(a.parts.procRoot)
	a.onClose(func(context.Context) error { table.Close(); return nil })
	a.sources = monitor.Sources{
		GPUs: gpus, Ledger: ledgersource.New(a.books), Pages: pageReader,
		Procs: table, Kubelet: holders,
	}
}

// installLibrary puts our library where responses name it, and takes builds away that no allocation names.
func (a *app) installLibrary() error {
	inUse := map[string]bool{}
	for _, record := range a.books.Snapshot() {
		inUse[record.Library.BuildID] = true
	}
	isInUse := func(build string) bool { return inUse[build] }
	build, err := plugin.InstallLibrary(a.config.Library, libraryDir(a.config), a.config.ContainerDir)
	if err != nil {
		return fmt.Errorf("install library %s: %w", a.config.Library, err)
	}
	a.build.LibraryBuildID = build
	inUse[build] = true
	removed, err := plugin.SweepLibraries(libraryDir(a.config), isInUse)
	if len(removed) > 0 {
		a.log.Info("removed libraries that no allocation names", "builds", removed)
	}
	if err != nil {
		a.log.Warn("old libraries stay", "error", err)
	}
	return nil
}

// preparePages makes the pages directory, and those of older allocations when it was another one then, and removes
// pages that no record names.
func (a *app) preparePages() error {
	mount := a.parts.mountPages
	if mount == nil {
		mount = func(directory string) error { return store.MountPages(directory, a.log) }
	}
	a.pages = store.NewPages(a.config.PagesDir, mount, a.log)
	if err := a.pages.Ready(); err != nil {
		return fmt.Errorf("prepare pages directory: %w", err)
	}
	for directory, held := range a.pagesDirectories() {
		if directory != a.config.PagesDir {
			a.log.Info("older allocations keep their pages directory", "directory", directory, "allocations", len(held))
			if err := a.pages.Prepare(directory); err != nil {
				a.log.Error("older allocations cannot start again", "directory", directory, "error", err)
				continue
			}
		}
		removed, err := a.pages.Sweep(directory, func(key string) bool { return held[key] })
		if len(removed) > 0 {
			a.log.Info("removed pages that no record names", "allocations", removed)
		}
		if err != nil {
			a.log.Warn("old pages stay", "error", err)
		}
	}
	return nil
}

// pagesDirectories lists the directories of pages, and the keys of the allocations in each.
func (a *app) pagesDirectories() map[string]map[string]bool {
	directories := map[string]map[string]bool{a.config.PagesDir: {}}
	for _, record := range a.books.Snapshot() {
		if directories[record.PagesDir] == nil {
			directories[record.PagesDir] = map[string]bool{}
		}
		directories[record.PagesDir][record.Key] = true
	}
	return directories
}

// pagesPath is where the pages of an allocation are. One that was given up since has none.
func (a *app) pagesPath(key string) string {
	record, held := a.books.Record(key)
	if !held {
		record = ledger.Record{Key: key, PagesDir: a.config.PagesDir}
	}
	return store.Directory(record)
}

func (a *app) onClose(closer func(context.Context) error) { a.closers = append(a.closers, closer) }

// close ends every part, the last one first; a fault with one does not keep the others. It waits no longer than a few
// seconds.
func (a *app) close() error {
	const patience = 3 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var faults []error
	for _, closer := range slices.Backward(a.closers) {
		if err := closer(ctx); err != nil {
			faults = append(faults, err)
		}
	}
	if a.started {
		a.log.Info("stopped; running containers stay limited")
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}
