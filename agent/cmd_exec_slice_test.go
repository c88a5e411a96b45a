// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the directories of vgpud exec: who uses one, when it goes, and many instances at the same time.

package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// slicesIn lists the slices below a base directory, whole ones only.
func slicesIn(t *testing.T, base string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(base, "exec-*", "libvgpu.so"))
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
