// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A container damages its usage page while one of its processes holds memory and idles.

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// reserve asks for bytes as a process of the container does.
func reserve(t *testing.T, pages string, bytes uint64) (*limiter.Book, error) {
	t.Helper()
	book, err := limiter.OpenBook(pages)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := book.Close(); err != nil {
			t.Error(err)
		}
	})
	return book, book.Reserve(0, limiter.KindDevice, bytes)
}

// What the idle process holds is not given to another one, although the page no longer knows of it; the next start of
// the container has all of its slice again.
func TestDamagedPageFreezesItsAllocation(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	for name, damage := range map[string]func(usage string, size int) error{
		"zeroed": func(usage string, size int) error { return overwrite(usage, make([]byte, size)) },
		"garbage": func(usage string, size int) error {
			return overwrite(usage, bytes.Repeat([]byte{0xa5, 0, 0xff}, size/3))
		},
		"cut": func(usage string, size int) error {
			return errors.Join(os.Truncate(usage, 0), os.Truncate(usage, int64(size/2)))
		},
		"slots": func(usage string, size int) error { // under a header that is whole
			content, err := os.ReadFile(usage)
			return errors.Join(err, overwrite(usage, append(content[:128], bytes.Repeat([]byte{0xa5, 0, 0xff}, (size-128)/3)...)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			key, _ := agent.allocate(name, 1)
			usage := filepath.Join(n.pages(key), limiter.UsageFile)
			info, err := os.Stat(usage)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := reserve(t, n.pages(key), sliceSize/2); err != nil {
				t.Fatal(err)
			}
			agent.shows(0, "vgpud_allocation_verdict", "allocation="+key, "verdict=frozen", "pod="+name)
			if err := damage(usage, int(info.Size())); err != nil {
				t.Fatal(err)
			}
			agent.shows(1, "vgpud_allocation_verdict", "allocation="+key, "verdict=frozen", "pod="+name)
			agent.eventually("the page is put right", func() bool {
				_, err := limiter.ReadUsage(n.pages(key))
				return err == nil
			})
			if _, err := reserve(t, n.pages(key), 1); !errors.Is(err, limiter.ErrTampered) {
				t.Errorf("another process asks for one byte: %v, want ErrTampered", err)
			}
			if said := strings.Count(agent.log.String(), "frozen until its container starts again\" component=agent allocation="+key); said != 1 {
				t.Errorf("said %d times, want once:\n%s", said, agent.log)
			}
			if _, err := n.kubelet.StartContainer(t.Context(), "uid-"+name, "gmx"); err != nil {
				t.Fatal(err)
			}
			agent.shows(0, "vgpud_allocation_verdict", "allocation="+key, "verdict=frozen", "pod="+name)
			if _, err := reserve(t, n.pages(key), sliceSize); err != nil {
				t.Errorf("the container's next start asks for its slice: %v", err)
			}
		})
	}
}

// A page that was only made longer has lost nothing: it is put back, and the container goes on.
func TestGrownPageFreezesNothing(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 1)
	usage := filepath.Join(n.pages(key), limiter.UsageFile)
	info, err := os.Stat(usage)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reserve(t, n.pages(key), sliceSize/2); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(usage, info.Size()*16); err != nil {
		t.Fatal(err)
	}
	agent.shows(1, "vgpud_tampered_pages_total")
	agent.eventually("the page has its size again", func() bool {
		now, err := os.Stat(usage)
		return err == nil && now.Size() == info.Size()
	})
	agent.shows(0, "vgpud_allocation_verdict", "allocation="+key, "verdict=frozen")
	if _, err := reserve(t, n.pages(key), sliceSize/2+1); !errors.Is(err, limiter.ErrOverLimit) {
		t.Errorf("one byte too much: %v, want ErrOverLimit", err)
	}
	if _, err := reserve(t, n.pages(key), sliceSize/2); err != nil {
		t.Errorf("the other half: %v", err)
	}
}

// Damage that was seen before the container started anew does not freeze its new life.
func TestStaleDamageFreezesNothing(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 1)
	agent.stop()
	pages := store.NewPages(n.config.PagesDir, store.MakePagesDir, slog.New(slog.DiscardHandler))
	record := ledger.Record{Key: key, PagesDir: n.config.PagesDir}
	limits, err := limiter.ReadLimits(n.pages(key))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(n.pages(key), limiter.UsageFile), 0); err != nil {
		t.Fatal(err)
	}
	if err := pages.RaiseEpoch(record); err != nil {
		t.Fatal(err)
	}
	if frozen, err := pages.Freeze(record, limits.Epoch, limiter.DamageCut); frozen || err != nil {
		t.Errorf("frozen %t, %v", frozen, err)
	}
	if _, err := reserve(t, n.pages(key), sliceSize); err != nil {
		t.Errorf("the container's next life asks for its slice: %v", err)
	}
	if frozen, err := pages.Freeze(record, limits.Epoch+1, limiter.DamageCut); !frozen || err != nil {
		t.Errorf("in the epoch of now: frozen %t, %v", frozen, err)
	}
}
