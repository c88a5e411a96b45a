// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// mountList writes a process's list of mounts.
func mountList(t *testing.T, proc, name string, lines ...string) {
	t.Helper()
	directory := filepath.Join(proc, name)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, "mountinfo"), []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mountOf(number int, device, kind, fill string) string {
	return fmt.Sprintf("%d 1 %s / /%s rw - %s source rw\n", number, device, fill, kind)
}

// A container's mounts can be more text than the agent has memory: they are read a line at a time, and not to the end.
func TestMountsAreBounded(t *testing.T) {
	proc := t.TempDir()
	var many strings.Builder
	for i := range 4000 { // 64 MiB
		many.WriteString(mountOf(i, "0:9", "tmpfs", strings.Repeat("m", 16<<10)))
	}
	mountList(t, proc, "7", mountOf(0, "0:5", "fuse.hangs", "a"), many.String(), mountOf(0, "0:6", "fuse.hangs", "b"))
	mountList(t, proc, "self", mountOf(1, "0:7", "overlay", "c"))
	for minor, want := range map[uint32]string{5: "fuse.hangs", 7: "overlay", 9: "tmpfs"} {
		if kind, err := fileSystem(proc, 7, 0, minor); kind != want || err != nil {
			t.Errorf("device 0:%d: %q, %v, want %q", minor, kind, err, want)
		}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if kind, err := fileSystem(proc, 7, 0, 6); kind != "" || !errors.Is(err, errManyMounts) {
		t.Errorf("behind all those: %q, %v, want errManyMounts", kind, err)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 4*maxMountBytes {
		t.Errorf("took %d bytes of memory, want a small part of what there is", took)
	}
	if kind, err := fileSystem(proc, 8, 0, 6); kind != "" || err != nil {
		t.Errorf("of a process that has ended: %q, %v", kind, err)
	}
}

// A file on a server that a pod has chosen is not opened: nobody would look at anybody while it does not answer.
func TestFilesOfServersAreNotOpened(t *testing.T) {
	for kind, late := range map[string]bool{"nfs": true, "nfs4": true, "fuse": true, "fuse.sshfs": true, "fuseblk": true, "cifs": true, "ceph": true,
		"ext4": false, "overlay": false, "tmpfs": false, "btrfs": false, "zfs": false, "": false} {
		proc := t.TempDir()
		mountList(t, proc, "7", mountOf(1, "0:5", kind, "x"))
		_, err := openMapped(proc, 7, mapsLine{start: 1, end: 2, minor: 5, inode: 3, name: "/x/libcuda.so.1"})
		if told := err != nil && strings.Contains(err.Error(), "is not opened"); told != late {
			t.Errorf("on %q: %v", kind, err)
		}
	}
}
