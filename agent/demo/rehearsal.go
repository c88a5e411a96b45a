// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package demo

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// containerDir is where a container finds the library and its pages: the agent's default.
const containerDir = "/usr/local/vgpud"

// rehearsal is the device plugin and its ledger inside this process, told of cards that do not exist. It says what
// the agent would say to the kubelet.
type rehearsal struct {
	dir     string
	library string
	pages   func(dir string) plugin.Pages

	server *plugin.Server
	cancel context.CancelFunc
	done   chan error
}

func (r *rehearsal) start(ctx context.Context, kubeletDir string) error {
	libraries := filepath.Join(r.dir, "library")
	buildID, err := plugin.InstallLibrary(r.library, libraries, containerDir)
	if err != nil {
		return fmt.Errorf("install library: %w", err)
	}
	books, err := ledger.Open(filepath.Join(r.dir, "ledger"))
	if err != nil {
		return fmt.Errorf("open ledger: %w", err)
	}
	books.SetCompute(ledger.ComputePolicy{Mode: ledger.ComputeElastic, CeilingPPM: ledger.WholePPM}) // the agent's default
	pages := pagesRoot(r.dir)
	if err := os.Mkdir(pages, 0o711); err != nil {
		return fmt.Errorf("make pages directory: %w", err)
	}
	r.server, err = plugin.New(plugin.Config{
		ResourceName: resourceName, KubeletDir: kubeletDir, Strategy: plugin.StrategyEnvvar,
		ContainerDir: containerDir, LibraryDir: libraries, BuildID: buildID, PagesDir: pages,
	}, books, r.pages(pages), slog.New(slog.DiscardHandler))
	if err != nil {
		return fmt.Errorf("make plugin: %w", err)
	}
	if err := r.server.Update(madeUpGPUs()); err != nil {
		return fmt.Errorf("offer GPUs: %w", err)
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.done = make(chan error, 1)
	go func() { r.done <- r.server.Run(ctx) }()
	return nil
}

func (r *rehearsal) fail(context.Context) (string, error) {
	gpus := madeUpGPUs()
	last := len(gpus) - 1
	gpus[last].Health = plugin.Health{Reason: "gpu-lost", Hard: true}
	return gpus[last].UUID, r.server.Update(gpus)
}

func (r *rehearsal) recover(context.Context) error { return r.server.Update(madeUpGPUs()) }

func (r *rehearsal) explain() string { return "" }

func (r *rehearsal) stop() error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	r.cancel = nil
	return <-r.done
}

// madeUpGPUs are cards in name only.
func madeUpGPUs() []plugin.GPU {
	gpus := make([]plugin.GPU, cardCount)
	for i := range gpus {
		gpus[i].UUID = fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", i)
		gpus[i].UsableBytes, gpus[i].Slices = 80<<30, slicesPerCard
		gpus[i].NUMA = plugin.NoNUMA
	}
	return gpus
}
