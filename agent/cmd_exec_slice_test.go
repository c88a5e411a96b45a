// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the directories of vgpud exec: who uses one, when it goes, and many instances at the same time.

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slicesIn lists the slices below a base directory, whole ones only.
func slicesIn(t *testing.T, base string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(base, execKeyPrefix+"*", execLibraryName))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// again runs another vgpud exec of the same user, which sees to what others left.
func again(t *testing.T, first *exec.Cmd) {
	t.Helper()
	command := exec.Command(first.Path, append(slices.Clone(first.Args[1:slices.Index(first.Args, "--")]), "--", "true")...)
	command.Dir, command.Env, command.SysProcAttr = first.Dir, first.Env, first.SysProcAttr
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// goes waits until the last slice of base is removed by a later vgpud exec.
func goes(t *testing.T, first *exec.Cmd, base string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		again(t, first)
		left := slicesIn(t, base)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v stays though nobody uses it", left)
		}
	}
}

// kill ends a process that a command left, and waits until it is gone.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// A daemon that the command leaves behind keeps its slice, however quickly its parents end.
func TestExecDaemonKeepsItsSlice(t *testing.T) {
	for name, script := range map[string]string{
		"background":  `sh -c 'echo $$; exec sleep 60' & exit 0`,
		"two forks":   `(sh -c 'echo $$; exec sleep 60' & ) & exit 0`,
		"own session": `(setsid sh -c 'echo $$; exec sleep 60' & ) & exit 0`,
		"static":      `(env -u LD_PRELOAD sh -c 'echo $$; exec sleep 60' & ) & exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			command, base := vgpudExec(t, "--", "sh", "-c", script)
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			command.Stdout = writer
			err = command.Run()
			writer.Close()
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Fscan(reader, &pid); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
			for range 3 {
				if left := slicesIn(t, base); len(left) != 1 {
					t.Fatalf("slices %v while the daemon runs, want its one", left)
				}
				again(t, command)
			}
			kill(t, pid)
			goes(t, command, base)
		})
	}
}

// What a killed vgpud exec left is not taken from a program that has no library mapped, or that cannot be looked into.
func TestExecKilledAboveUsers(t *testing.T) {
	for name, arguments := range map[string][]string{
		"without the library": {"--", "env", "-u", "LD_PRELOAD", "sh", "-c", "echo $$; exec sleep 60"},
		"hidden":              {"--", "env", beHidden + "=1", "./vgpud"},
	} {
		t.Run(name, func(t *testing.T) {
			command, base := ordinaryUser(t, arguments...)
			reader, writer, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer reader.Close()
			command.Stdout = writer
			var stderr bytes.Buffer
			command.Stderr = &stderr
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			writer.Close()
			var pid int
			if _, err := fmt.Fscan(reader, &pid); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
			if err := command.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_, _ = command.Process.Wait()
			for range 3 {
				again(t, command)
				if left := slicesIn(t, base); len(left) != 1 {
					t.Fatalf("slices %v while the program runs, want its one", left)
				}
			}
			kill(t, pid)
			goes(t, command, base)
		})
	}
}

// Many at the same time, some of them killed: no one takes another's directory, at whatever moment it looks.
func TestExecParallel(t *testing.T) {
	const total, group = 200, 20
	_, base := vgpudExec(t)
	for range total / group {
		var wait sync.WaitGroup
		for i := range group {
			command, _ := vgpudExec(t, "--", "sh", "-c",
				`directory=${LD_PRELOAD%/*}; for i in 1 2 3; do test -e "$directory/libvgpu.so" -a -e "$directory/alloc/$VGPUD_ALLOCATION/limits" || exit 9; done`)
			command.Env = append(command.Env, "XDG_RUNTIME_DIR="+filepath.Dir(base))
			var out bytes.Buffer
			command.Stdout, command.Stderr = &out, &out
			wait.Go(func() {
				if err := command.Start(); err != nil {
					t.Error(err)
					return
				}
				killed := i%10 == 3
				if killed {
					time.Sleep(time.Duration(i) * 5 * time.Millisecond)
					_ = command.Process.Kill()
				}
				if err := command.Wait(); err != nil && !killed || out.Len() > 0 {
					t.Errorf("%v\n%s", err, out.String())
				}
			})
		}
		wait.Wait()
	}
	first, _ := vgpudExec(t, "--", "true")
	first.Env = append(first.Env, "XDG_RUNTIME_DIR="+filepath.Dir(base))
	goes(t, first, base)
}

// What removeStale makes of each state in which a directory can be found.
func TestExecStates(t *testing.T) {
	base := shortTemp(t)
	birth, err := ownBirth()
	if err != nil {
		t.Fatal(err)
	}
	make := func(name string, locked bool, age time.Duration, files ...string) {
		directory := filepath.Join(base, name)
		if err := os.Mkdir(directory, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(directory, file), []byte(birth.String()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if locked {
			lock, err := os.OpenFile(filepath.Join(directory, execLockName), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { lock.Close() })
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
		}
		then := time.Now().Add(-age)
		if err := os.Chtimes(directory, then, then); err != nil {
			t.Fatal(err)
		}
	}
	make("exec-aa-running", true, time.Hour, execLockName, execLibraryName)
	make("exec-bb-killed", false, 0, execLockName, execLibraryName)
	make("exec-cc-half-removed", false, 0, execLibraryName)
	make("new-dd-made-just-now", false, 0)
	make("new-ee-lock-not-taken-yet", false, 0, execLockName)
	make("new-ff-made-slowly", true, time.Hour, execLockName)
	make("new-gg-killed-early", false, time.Hour)
	make("new-hh-killed-late", false, time.Hour, execLockName, execLibraryName)
	make("other", false, time.Hour, execLockName)
	removeStale(base)
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, entry := range entries {
		left = append(left, entry.Name())
	}
	want := []string{"exec-aa-running", "new-dd-made-just-now", "new-ee-lock-not-taken-yet", "new-ff-made-slowly", "other"}
	if !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
}

// A directory that is replaced between the look and the lock is another one.
func TestIsFile(t *testing.T) {
	path := filepath.Join(shortTemp(t), execLockName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if !isFile(path, file) {
		t.Error("the file itself was not known again")
	}
	if err := errors.Join(os.Rename(path, path+".old"), os.WriteFile(path, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if isFile(path, file) {
		t.Error("another file was taken for it")
	}
	if err := os.Remove(path); err != nil || isFile(path, file) {
		t.Errorf("a file that is gone was taken for it (%v)", err)
	}
}

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
		path := filepath.Join(t.TempDir(), execLockName)
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
