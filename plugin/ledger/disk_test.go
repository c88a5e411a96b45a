// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the records on disk: round trip, damage, kills at random moments, a full disk.

package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

// victimVariable makes the test binary the process that TestKilledAtAnyMoment kills.
const victimVariable = "LEDGER_TEST_VICTIM_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimVariable); dir != "" {
		os.Exit(victim(dir))
	}
	os.Exit(m.Run())
}

func TestRecordsSurviveRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "ledger")
	l := open(t, dir, GPU{"GPU-a", 80 * gib, 10})
	kept := grant(t, l, "GPU-a::0", "GPU-a::1")
	gone := grant(t, l, "GPU-a::2")
	if _, err := l.Hold("nvidia.com/gpu", []string{"GPU-a::3"}, anyLibrary, anyPages, noon); err != nil {
		t.Fatal(err)
	}
	pod := Identity{PodUID: "uid", Namespace: "default", Pod: "p", Container: "c"}
	if err := l.Identify(kept.Key, pod); err != nil {
		t.Fatal(err)
	}
	if err := l.Release(gone.Key); err != nil {
		t.Fatal(err)
	}
	kept.Pod = &pod
	again := open(t, dir)
	if diff := cmp.Diff([]Record{kept}, again.Snapshot()); diff != "" {
		t.Error(diff)
	}
	if len(again.SetAside()) != 0 {
		t.Errorf("set aside: %v", again.SetAside())
	}
}

func TestDamagedRecordsAreSetAside(t *testing.T) {
	dir := t.TempDir()
	good := grant(t, open(t, dir, GPU{"GPU-a", 80 * gib, 10}), "GPU-a::0")
	whole, err := os.ReadFile(filepath.Join(dir, good.Key+".json"))
	if err != nil {
		t.Fatal(err)
	}
	key := func(n int) string { return fmt.Sprintf("%032x", n) }
	named := func(n int, data string) string { return strings.ReplaceAll(data, good.Key, key(n)) }
	bad := map[string]string{
		key(1): named(1, string(whole[:len(whole)/2])),
		key(2): "",
		key(3): named(3, strings.Replace(string(whole), `"version": 2`, `"version": 3`, 1)),
		key(4): string(whole), // another allocation's record
		key(5): named(5, strings.Replace(string(whole), `"resource"`, `"resauce"`, 1)),
		key(6): named(6, strings.Replace(string(whole), "GPU-a::0", "GPU-b::0", 1)),
		key(7): named(7, string(whole)+"{}"),
	}
	for name, data := range bad {
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, key(8)+".json")); err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(dir, "."+key(9)+".json.0123456789ab.tmp")
	if err := os.WriteFile(temp, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}

	l := open(t, dir)
	if got := l.Snapshot(); len(got) != 1 || got[0].Key != good.Key {
		t.Errorf("records read: %v", got)
	}
	if got := l.SetAside(); len(got) != len(bad)+1 {
		t.Errorf("set aside %d, want %d: %v", len(got), len(bad)+1, got)
	}
	for _, s := range l.SetAside() {
		if _, err := os.Lstat(s.Path); err != nil || s.Reason == "" {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := os.Stat(temp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary file: %v", err)
	}
	if again := open(t, dir); len(again.SetAside()) != 0 || len(again.Snapshot()) != 1 {
		t.Error("the second opening differs")
	}
}

// Whatever lies in the directory, the records beside it are read, and everything is reported.
func TestOddThingsInTheDirectory(t *testing.T) {
	dir := t.TempDir()
	good := grant(t, open(t, dir, GPU{"GPU-a", 80 * gib, 10}), "GPU-a::0")
	at := func(n int, suffix string) string { return filepath.Join(dir, fmt.Sprintf("%032x.json%s", n, suffix)) }
	write := func(path string) error { return os.WriteFile(path, []byte("x"), 0o600) }
	huge := func(path string) error { return errors.Join(write(path), os.Truncate(path, 1<<40)) }
	fifo := func(path string) error { return unix.Mkfifo(path, 0o600) }
	full := func(path string) error { return os.MkdirAll(filepath.Join(path, "something"), 0o700) }
	temp := filepath.Join(dir, "."+filepath.Base(at(9, ""))+".0123456789ab.tmp")
	if err := errors.Join(
		write(at(1, "")), full(at(1, ".bad")), // its usual name is taken
		write(at(2, "")), write(at(2, ".bad")), write(at(2, ".bad.2")),
		full(at(3, "")), fifo(at(4, "")), huge(at(5, "")), os.Symlink(at(5, ""), at(6, "")), os.Symlink("/nonexistent", at(7, "")),
		full(temp), full(filepath.Join(dir, "a directory")), fifo(filepath.Join(dir, "a fifo")),
	); err != nil {
		t.Fatal(err)
	}
	l := open(t, dir)
	if got := l.Snapshot(); len(got) != 1 || got[0].Key != good.Key {
		t.Errorf("records read: %v", got)
	}
	var aside []string
	for _, s := range l.SetAside() {
		if _, err := os.Lstat(s.Path); err != nil || s.Reason == "" {
			t.Errorf("%+v: %v", s, err)
		}
		aside = append(aside, s.Path)
	}
	want := []string{temp, at(1, ".bad.2"), at(2, ".bad.3"), at(3, ".bad"), at(4, ".bad"), at(5, ".bad"), at(6, ".bad"), at(7, ".bad")}
	if diff := cmp.Diff(want, aside); diff != "" {
		t.Error(diff)
	}
	if again := open(t, dir); len(again.SetAside()) != 1 || len(again.Snapshot()) != 1 {
		t.Errorf("the second opening: %v", again.SetAside())
	}
}

func TestTruncatedAnywhereIsNeverAccepted(t *testing.T) {
	r := Record{Version: RecordVersion, Key: strings.Repeat("a", KeyBytes), Resource: "a.com/b", Library: anyLibrary, PagesDir: anyPages,
		Grants: []Grant{{"GPU-a", []string{"GPU-a::0"}, 5, Compute{ComputeHard, 300_000, 300_000}}}}
	data, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decodeRecord(data); err != nil {
		t.Fatal(err)
	}
	for n := range len(data) - 2 { // the last two bytes are the brace and the newline
		if _, err := decodeRecord(data[:n]); err == nil {
			t.Errorf("accepted the first %d of %d bytes", n, len(data))
		}
	}
}

func TestFullDiskIsACleanError(t *testing.T) {
	require.Root(t)
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32k")
	require.Need(t, "mount", err == nil, "cannot mount a tmpfs")
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	l := open(t, dir, GPU{"GPU-a", 80 * gib, 80})
	var committed int
	for n := range 80 {
		r, err := l.Hold("nvidia.com/gpu", []string{SliceID("GPU-a", n)}, anyLibrary, anyPages, noon)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Commit(r.Key); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("error %v, want ENOSPC inside", err)
			}
			if err := l.Release(r.Key); err != nil {
				t.Error(err)
			}
			continue
		}
		committed++
	}
	if committed == 0 || committed == 80 {
		t.Fatalf("%d of 80 committed: the disk was not filled on the way", committed)
	}
	again := open(t, dir, GPU{"GPU-a", 80 * gib, 80})
	if len(again.Snapshot()) != committed || len(again.SetAside()) != 0 {
		t.Errorf("%d records and %d set aside, want %d and 0", len(again.Snapshot()), len(again.SetAside()), committed)
	}
	if diff := cmp.Diff(l.Books(), again.Books()); diff != "" {
		t.Error(diff)
	}
}

// TestKilledAtAnyMoment kills a process that grants and releases; every grant that it had announced is on disk
// afterwards, no record is damaged.
func TestKilledAtAnyMoment(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		dir := t.TempDir()
		cmd := exec.Command(executable)
		cmd.Env = []string{victimVariable + "=" + dir}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(20*time.Millisecond+time.Duration(rand.IntN(60))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		announced := map[string]bool{}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if verb, key, _ := strings.Cut(lines.Text(), " "); verb == "granted" {
				announced[key] = true
			} else {
				delete(announced, key)
			}
		}
		timer.Stop()
		_ = cmd.Wait()
		l := open(t, dir)
		if len(l.SetAside()) != 0 {
			t.Errorf("damaged: %v", l.SetAside())
		}
		found := map[string]bool{}
		for _, r := range l.Snapshot() {
			found[r.Key] = true
		}
		for key := range announced {
			if !found[key] {
				t.Errorf("%s was announced and is not on disk", key)
			}
		}
	}
}

// victim grants slices for ever, releasing every third one, and says so after each step.
func victim(dir string) int {
	l, err := Open(dir)
	if err != nil {
		return 1
	}
	l.SetGPUs([]GPU{{"GPU-a", 80 * gib, 10}})
	for n := 0; ; n++ {
		r, err := l.Hold("nvidia.com/gpu", []string{SliceID("GPU-a", n%10)}, anyLibrary, anyPages, noon)
		if err != nil || l.Commit(r.Key) != nil {
			return 1
		}
		fmt.Println("granted", r.Key)
		if n%3 == 0 {
			fmt.Println("releasing", r.Key)
			if l.Release(r.Key) != nil {
				return 1
			}
		}
	}
}
