// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The agent while directories of pages go away, cannot be made, or are others than before.

package main

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/kubelettest"
)

// The directory of pages is removed or unmounted while containers run: it is made and mounted again within a tick,
// without a tick new pods and new starts work, and it is said.
func TestPagesDirectoryGoesAway(t *testing.T) {
	// What was there lies elsewhere, or its inode would be used again.
	remove := func(n *node) error { return os.Rename(n.config.PagesDir, filepath.Join(t.TempDir(), "gone")) }
	replace := func(n *node) error { return errors.Join(remove(n), os.Mkdir(n.config.PagesDir, 0o755)) }
	unmount := func(n *node) error { return unix.Unmount(n.config.PagesDir, unix.MNT_DETACH) }
	for name, c := range map[string]struct {
		mounted bool
		away    func(*node) error
	}{
		"removed":               {false, remove},
		"replaced":              {false, replace},
		"unmounted":             {true, unmount},
		"unmounted and removed": {true, func(n *node) error { return errors.Join(unmount(n), remove(n)) }},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			mount := store.MakePagesDir
			if c.mounted {
				require.Root(t)
				mount = func(directory string) error { return store.MountPages(directory, slog.New(slog.DiscardHandler)) }
				t.Cleanup(func() { _ = unix.Unmount(n.config.PagesDir, unix.MNT_DETACH) })
			}
			// A tick may come at any moment: it does not make the directory again while it is taken away.
			var making sync.Mutex
			n.parts.mountPages = func(directory string) error {
				making.Lock()
				defer making.Unlock()
				return mount(directory)
			}
			away := func() {
				t.Helper()
				making.Lock()
				defer making.Unlock()
				if err := c.away(n); err != nil {
					t.Fatal(err)
				}
			}
			agent := n.start()
			agent.allocatable(20)
			key, _ := agent.allocate("p", 1)
			away()
			agent.allocate("q", 1)
			if _, err := n.kubelet.StartContainer(t.Context(), "uid-p", "gmx"); err != nil {
				t.Errorf("a new start: %v", err)
			}
			if _, err := limiter.ReadUsage(n.pages(key)); err != nil {
				t.Error(err)
			}
			var mounted unix.Statfs_t
			if err := unix.Statfs(n.config.PagesDir, &mounted); c.mounted && (err != nil || mounted.Type != unix.TMPFS_MAGIC) {
				t.Errorf("mounted again: file system %x, %v", mounted.Type, err)
			}
			away()
			agent.eventually("a tick has restored the pages", func() bool {
				_, err := limiter.ReadUsage(n.pages(key))
				return err == nil
			})
			if got := strings.Count(agent.log.String(), "the pages directory was removed or unmounted"); got < 2 {
				t.Errorf("said %d times, want twice or more", got)
			}
		})
	}
}

// Where no pages can be made nothing is offered, until they can.
func TestNoPlaceForPages(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	if err := errors.Join(os.RemoveAll(n.config.PagesDir), os.WriteFile(n.config.PagesDir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := n.kubelet.Allocate(t.Context(), kubelettest.Pod{UID: "uid-p", Namespace: "md", Name: "p"},
		kubelettest.Container{Name: "gmx"}, n.config.ResourceName, 1); err == nil {
		t.Error("a pod was given a slice without pages")
	}
	agent.allocatable(0)
	if !strings.Contains(agent.log.String(), "reason=pages-unusable") {
		t.Errorf("no reason in the log:\n%s", agent.log)
	}
	if err := os.Remove(n.config.PagesDir); err != nil {
		t.Fatal(err)
	}
	agent.allocatable(20)
	agent.allocate("q", 1)
}

// An agent with another directory of pages leaves older allocations theirs.
func TestOlderAllocationsKeepTheirPagesDirectory(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 1)
	agent.stop()
	old := n.config.PagesDir
	n.config.PagesDir = filepath.Join(filepath.Dir(old), "elsewhere")
	agent = n.start()
	agent.allocatable(20)
	agent.shows(sliceSize, "vgpud_slice_memory_limit_bytes", "allocation="+key, "pod=p")
	before, err := limiter.ReadLimits(filepath.Join(old, key))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.kubelet.StartContainer(t.Context(), "uid-p", "gmx"); err != nil {
		t.Fatal(err)
	}
	if after, err := limiter.ReadLimits(filepath.Join(old, key)); err != nil || after.Epoch != before.Epoch+1 {
		t.Errorf("a new start: epoch %d, then %d, %v", before.Epoch, after.Epoch, err)
	}
	if _, err := os.Stat(n.pages(key)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pages that no container has: %v", err)
	}
	newer, _ := agent.allocate("q", 1)
	if _, err := limiter.ReadUsage(n.pages(newer)); err != nil {
		t.Errorf("a new allocation: %v", err)
	}
	agent.stop()
	if err := os.RemoveAll(old); err != nil { // as a reboot does
		t.Fatal(err)
	}
	agent = n.start()
	agent.allocatable(20)
	if _, err := limiter.ReadUsage(filepath.Join(old, key)); err != nil {
		t.Errorf("after a reboot: %v", err)
	}
}
