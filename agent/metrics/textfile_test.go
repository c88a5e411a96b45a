// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the file: whole or not at all, readable by others and safe among others.

package metrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/internal/require"
)

// manyContainers is a view of 200 containers that all claim to use the same number of bytes.
func manyContainers(used uint64) View {
	view := View{Snapshot: &monitor.Snapshot{At: time.Unix(int64(used), 0)}}
	for number := range 200 {
		view.Snapshot.Allocations = append(view.Snapshot.Allocations, monitor.Allocation{
			Key: fmt.Sprintf("key-%03d", number), GPUs: []monitor.Share{{GPUUUID: "GPU-a", UsedBytes: used, Measured: true}}})
	}
	return view
}

// Each of many reads during many writes parses, is complete and is of one tick; nothing else that ends in
// .prom is ever there.
func TestReadersSeeWholeFiles(t *testing.T) {
	const reads = 60
	directory := t.TempDir()
	textfile := NewTextfile(directory)
	if err := textfile.Write(manyContainers(1)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	writes := 1
	writers.Go(func() {
		for ctx.Err() == nil {
			writes++
			if err := textfile.Write(manyContainers(uint64(writes))); err != nil {
				t.Error(err)
			}
		}
	})
	versions := map[float64]bool{}
	for range reads {
		versions[readOnce(t, directory)] = true
	}
	stop()
	writers.Wait()
	if len(versions) < 2 {
		t.Errorf("%d reads saw %d versions of %d writes: nothing was tested", reads, len(versions), writes)
	}
	t.Logf("%d reads, %d writes, %d versions seen", reads, writes, len(versions))
}

// readOnce reads the directory as the exporter does and returns the number that all series hold.
func readOnce(t *testing.T, directory string) float64 {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, "*.prom"))
	if err != nil || len(paths) != 1 {
		t.Fatalf("files that end in .prom: %v (%v)", paths, err)
	}
	hidden, _ := filepath.Glob(filepath.Join(directory, ".*.prom"))
	if len(hidden) != 0 {
		t.Fatalf("hidden files that end in .prom: %v", hidden)
	}
	text, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	series := mustParse(t, text)["vgpud_slice_memory_used_bytes"].GetMetric()
	if len(series) != 200 {
		t.Fatalf("%d series, want 200", len(series))
	}
	for _, metric := range series {
		if metric.GetGauge().GetValue() != series[0].GetGauge().GetValue() {
			t.Fatalf("a mix of ticks: %v and %v", metric.GetGauge().GetValue(), series[0].GetGauge().GetValue())
		}
	}
	return series[0].GetGauge().GetValue()
}

// On a full disk the old file stays whole, and the counter shows that later.
func TestFullDisk(t *testing.T) {
	require.Root(t)
	directory := t.TempDir()
	if err := unix.Mount("tmpfs", directory, "tmpfs", 0, "size=512k"); err != nil {
		require.Need(t, "mount", false, "cannot mount a tmpfs")
	}
	t.Cleanup(func() { _ = unix.Unmount(directory, unix.MNT_DETACH) })
	textfile := NewTextfile(directory)
	if err := textfile.Write(manyContainers(1)); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(directory, "filler")
	err := os.WriteFile(filler, make([]byte, 2<<20), 0o600)
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v, want ENOSPC", err)
	}
	if err := textfile.Write(manyContainers(2)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want ENOSPC inside", err)
	}
	if got := readOnce(t, directory); got != 1 {
		t.Errorf("after a failed write the file is of tick %v, want 1", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := textfile.Write(manyContainers(3)); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(filepath.Join(directory, FileName))
	if got := mustParse(t, text)["vgpud_textfile_write_errors_total"].GetMetric()[0].GetCounter().GetValue(); got != 1 {
		t.Errorf("write errors %v, want 1", got)
	}
}

// Others can read the file in every umask and in every kind of directory.
func TestModeInEveryUmask(t *testing.T) {
	for _, umask := range []int{0o000, 0o022, 0o077, 0o777} {
		for _, mode := range []fs.FileMode{0o755, 0o775, 0o777 | fs.ModeSticky} {
			directory := t.TempDir()
			if err := os.Chmod(directory, mode); err != nil {
				t.Fatal(err)
			}
			old := unix.Umask(umask)
			err := NewTextfile(directory).Write(exampleView())
			unix.Umask(old)
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(directory, FileName))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != 0o644 {
				t.Errorf("umask %o, directory %v: mode %v, want 0644", umask, mode, info.Mode())
			}
		}
	}
}

// What somebody planted under the file's name is replaced, not followed and not opened.
func TestPlantedLinkAndFifo(t *testing.T) {
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(string) error{
		"symlink": func(path string) error { return os.Symlink(victim, path) },
		"fifo":    func(path string) error { return unix.Mkfifo(path, 0o666) },
	} {
		t.Run(name, func(t *testing.T) {
			directory := t.TempDir()
			path := filepath.Join(directory, FileName)
			if err := os.Chmod(directory, 0o777|fs.ModeSticky); err != nil {
				t.Fatal(err)
			}
			if err := plant(path); err != nil {
				t.Fatal(err)
			}
			if os.Geteuid() == 0 {
				if err := unix.Lchown(path, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan error, 1)
			go func() { done <- NewTextfile(directory).Write(exampleView()) }()
			select {
			case err := <-done:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("writing hangs")
			}
			info, err := os.Lstat(path)
			if err != nil || !info.Mode().IsRegular() {
				t.Fatalf("the file is %v (%v), want a regular file", info.Mode(), err)
			}
			if text, _ := os.ReadFile(victim); string(text) != "secret" {
				t.Errorf("the target of the link was written: %q", text)
			}
		})
	}
}

// A directory that is missing or cannot be written is an error of the write, with its path, and nothing worse.
func TestMissingAndReadOnlyDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "absent")
	if err := NewTextfile(missing).Write(exampleView()); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), missing) {
		t.Errorf("missing directory: %v", err)
	}
	if err := NewTextfile(missing).Remove(); err != nil {
		t.Errorf("in a missing directory there is nothing to remove: %v", err)
	}
	if os.Geteuid() != 0 {
		readOnly := t.TempDir()
		if err := os.Chmod(readOnly, 0o555); err != nil {
			t.Fatal(err)
		}
		if err := NewTextfile(readOnly).Write(exampleView()); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("read-only directory: %v", err)
		}
		return
	}
	readOnly := t.TempDir()
	if err := unix.Mount("tmpfs", readOnly, "tmpfs", unix.MS_RDONLY, "size=64k"); err != nil {
		require.Need(t, "mount", false, "cannot mount a tmpfs")
	}
	t.Cleanup(func() { _ = unix.Unmount(readOnly, unix.MNT_DETACH) })
	if err := NewTextfile(readOnly).Write(exampleView()); !errors.Is(err, unix.EROFS) {
		t.Errorf("read-only file system: %v", err)
	}
}

func TestRemoveTakesOwnFilesOnly(t *testing.T) {
	directory := t.TempDir()
	textfile := NewTextfile(directory)
	if err := textfile.Write(exampleView()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{".vgpud.prom.0123456789ab.tmp", "other.prom", ".other.prom.0123456789ab.tmp"} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := textfile.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := textfile.Remove(); err != nil {
		t.Errorf("removing twice: %v", err)
	}
	entries, _ := os.ReadDir(directory)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if got := strings.Join(names, " "); got != ".other.prom.0123456789ab.tmp other.prom" {
		t.Errorf("left: %s", got)
	}
}
