// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package standalone

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeProc makes one entry of a process table.
func writeProc(t *testing.T, proc, pid string, files map[string]string) {
	t.Helper()
	directory := filepath.Join(proc, pid)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(directory, name)
		if text == hiddenFile { // reading a directory fails, and not as that of a process that is gone
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const hiddenFile = "hidden"

func TestUserScan(t *testing.T) {
	const key = "exec-0123"
	status := func(uid int) string { return fmt.Sprintf("Name:\tx\nUid:\t0\t%d\t0\t0\nGid:\t7\t7\t7\t7\n", uid) }
	stat := func(start int) string { return fmt.Sprintf("9 (a) b) S%s %d 0\n", strings.Repeat(" 0", 18), start) }
	for _, test := range []struct {
		name  string
		files map[string]string
		since uint64
		want  bool
	}{
		{"mapped", map[string]string{"environ": "A=1", "maps": "7f00 r-xp /run/vgpud/exec/exec-0123/libvgpu.so\n"}, 0, true},
		{"static", map[string]string{"environ": "A=1\x00VGPUD_ALLOCATION=exec-0123\x00", "maps": "7f00 /bin/x\n"}, 0, true},
		{"another slice", map[string]string{"environ": "VGPUD_ALLOCATION=exec-4567\x00", "maps": "exec-4567/libvgpu.so"}, 0, false},
		{"nothing", map[string]string{"environ": "", "maps": ""}, 0, false},
		{"ended", map[string]string{"stat": stat(50)}, 0, false},
		{"hidden", map[string]string{"environ": hiddenFile, "maps": hiddenFile, "status": status(7777), "stat": stat(50)}, 50, true},
		{"hidden, of another user", map[string]string{"environ": hiddenFile, "maps": hiddenFile, "status": status(8888), "stat": stat(50)}, 50, false},
		{"hidden, older than the slice", map[string]string{"environ": hiddenFile, "maps": hiddenFile, "status": status(7777), "stat": stat(49)}, 50, false},
		{"mappings hidden", map[string]string{"environ": "A=1", "maps": hiddenFile, "status": status(7777), "stat": stat(50)}, 50, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			proc := t.TempDir()
			writeProc(t, proc, "9", test.files)
			writeProc(t, proc, "self", map[string]string{"environ": key})
			if got := (userScan{proc: proc, key: key, uid: 7777, since: test.since}).inUse(); got != test.want {
				t.Errorf("in use: %t", got)
			}
		})
	}
	if !(userScan{proc: filepath.Join(t.TempDir(), "absent"), key: key}).inUse() {
		t.Error("without a process table nothing is known, and the slice was taken for empty")
	}
	if start, err := (userScan{proc: "/proc"}).startTime(os.Getpid()); start == 0 || err != nil {
		t.Errorf("own start time %d, %v", start, err)
	}
	if _, err := (userScan{proc: "/proc"}).startTime(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("start time of no process: %v", err)
	}
}

// The start time that a vgpud exec wrote means nothing in another time namespace.
func TestBirth(t *testing.T) {
	own, err := ownBirth()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]uint64{
		own.String(): own.start, birth{own.start, "time:[1]"}.String(): 0, "": 0, "x " + own.namespace: 0,
	} {
		path := filepath.Join(t.TempDir(), lockName)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := readBirth(file); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
		file.Close()
	}
}
