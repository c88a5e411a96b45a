// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a container can make the search for libraries do, and keep, is bounded.

package bpf

import (
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// paperProcess writes a process whose maps name so many files, each another, that are mapped to execute. All are empty.
func paperProcess(t *testing.T, proc string, pid, files int) {
	t.Helper()
	directory := filepath.Join(proc, strconv.Itoa(pid))
	if err := os.MkdirAll(filepath.Join(directory, "map_files"), 0o755); err != nil {
		t.Fatal(err)
	}
	var maps strings.Builder
	for i := range files {
		fmt.Fprintf(&maps, "%x-%x r-xp 00000000 fe:01 %d   /%d/plain.so\n", 4096*i, 4096*(i+1), 100000*pid+i+1, i)
		if err := os.WriteFile(fmt.Sprintf("%s/map_files/%x-%x", directory, 4096*i, 4096*(i+1)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(directory, "maps"), []byte(maps.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func paperWatcher(proc string) *watcher {
	return &watcher{options: Options{Proc: proc}, libraries: map[fileID]*library{}, sightings: map[sighting]remembered{},
		names: maphash.MakeSeed(), young: map[int]time.Time{}, self: os.Getpid(), work: allowance{left: workBurst, at: time.Now()}}
}

func TestMapsAreReadInBounds(t *testing.T) {
	executable := "0-1000 r-xp 00000000 fe:01 7   /x\n"
	for name, c := range map[string]struct {
		text string
		want int
		many bool
	}{
		"few":                {strings.Repeat(executable, 3), 3, false},
		"many executable":    {strings.Repeat(executable, maxMapped+1), maxMapped, true},
		"many others":        {strings.Repeat("0-1000 rw-p 00000000 00:00 0\n", maxMapLines) + executable, 0, true},
		"as many as allowed": {strings.Repeat("0-1000 rw-p 00000000 00:00 0\n", maxMapLines-1) + executable, 1, false},
		"long names":         {strings.Repeat("0-1000 r-xp 00000000 fe:01 7   /"+strings.Repeat("x", 8000)+"\n", 3000), 2000, true},
	} {
		lines, err := parseMaps(strings.NewReader(c.text))
		if errors.Is(err, errManyMappings) != c.many || len(lines) > maxMapped || len(lines) < c.want || !c.many && len(lines) != c.want {
			t.Errorf("%s: %d lines, %v; want %d, too many %v", name, len(lines), err, c.want, c.many)
		}
	}
}

// New files are looked at as long as there is an allowance. What is left is seen in later rounds, and others are not kept
// waiting by it.
func TestNewFilesHaveAnAllowance(t *testing.T) {
	proc := t.TempDir()
	paperProcess(t, proc, 1001, 300)
	paperProcess(t, proc, 1002, 2)
	w := paperWatcher(proc)
	w.work.left = 0
	w.fillQueue()
	w.sweep(time.Now(), time.Second)
	if len(w.sightings) != 0 || !w.behind {
		t.Errorf("without time: %d files were looked at; queue %v, behind %v", len(w.sightings), w.queue, w.behind)
	}
	for round := 0; w.behind; round++ {
		if round > 1000 {
			t.Fatal("the rounds do not get through")
		}
		w.work.left = time.Nanosecond // enough for one file
		before := len(w.sightings)
		w.sweep(time.Now(), time.Second)
		if len(w.sightings) > before+1 {
			t.Fatalf("%d files in a time for one", len(w.sightings)-before)
		}
	}
	if len(w.sightings) != 302 {
		t.Errorf("%d files were looked at in the end, want 302", len(w.sightings))
	}
}

// A sweep that took too long is paid for by those that follow.
func TestSweepsPayTheirDebt(t *testing.T) {
	proc := t.TempDir()
	paperProcess(t, proc, 1001, 1000)
	w := paperWatcher(proc)
	w.work.left = 0 // the maps alone
	w.fillQueue()
	w.sweep(time.Now(), time.Microsecond)
	debt := w.debt
	if debt <= 0 {
		t.Fatal("1000 lines were read in a microsecond")
	}
	w.fillQueue()
	for sweeps := range 3 {
		if w.sweep(time.Now(), debt/4); len(w.queue) != 1 || w.debt <= 0 {
			t.Fatalf("after %d sweeps: debt %v of %v, queue %v", sweeps+1, w.debt, debt, w.queue)
		}
	}
	if w.sweep(time.Now(), 2*debt); len(w.queue) != 0 && w.swept.IsZero() {
		t.Error("the debt is paid, and nothing was looked at")
	}
}

func TestAllowanceGrowsWithTimeAndNoMore(t *testing.T) {
	start := time.Now()
	a := allowance{left: -time.Second, at: start}
	for i := 1; i <= 100; i++ {
		a.refill(start.Add(time.Duration(i) * time.Second))
	}
	if a.left < -time.Millisecond || a.left > time.Millisecond {
		t.Errorf("%v after 100 s at a hundredth, want 0", a.left)
	}
	if a.refill(start.Add(time.Hour * 1000)); a.left != workBurst {
		t.Errorf("%v, want %v", a.left, workBurst)
	}
	if a.refill(start); a.left != workBurst {
		t.Errorf("a clock that went back took the allowance: %v", a.left)
	}
}

func TestWhatIsRememberedIsBounded(t *testing.T) {
	w := paperWatcher(t.TempDir())
	for i := range 3 * maxRemembered {
		w.remember(sighting{inode: uint64(i)}, remembered{})
		if len(w.sightings) > maxRemembered {
			t.Fatalf("%d sightings", len(w.sightings))
		}
	}
	l := &library{pids: map[int]string{}, reason: "broken"}
	for pid := 1; pid <= 10*maxUsers; pid++ {
		l.use(pid, "/libcuda.so.1")
	}
	if l.use(1, "/renamed"); len(l.pids) != maxUsers || l.pids[1] != "/renamed" {
		t.Errorf("%d users, the first by %q", len(l.pids), l.pids[1])
	}
	w.libraries[fileID{inode: 1}] = l
	w.libraries[fileID{inode: 2}] = &library{pids: map[int]string{}, reason: "nobody has it"}
	told := w.unobservable()
	want := Unobservable{Path: "/renamed", PID: 1, Processes: maxUsers, Reason: "broken"}
	if len(told) != 1 || told[0] != want {
		t.Errorf("told %+v, want %+v", told, want)
	}
}
