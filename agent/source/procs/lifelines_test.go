// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestLiving: a process that runs, then has ended and not been waited for, then is gone; and one whose pid had another before.
func TestLiving(t *testing.T) {
	table := New("/")
	defer table.Close()
	child := exec.Command("sleep", "1000")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	waited := false
	defer func() {
		if !waited {
			_ = child.Process.Kill()
			_ = child.Wait()
		}
	}()
	at := func(pid int) place {
		start, err := table.startTime(pid)
		if err != nil {
			t.Fatal(err)
		}
		return place{pid, start}
	}
	self, other := at(os.Getpid()), at(child.Process.Pid)
	before := place{other.pid, other.start - 1}
	look := func() map[place]bool { return table.living([]place{self, other, before}) }
	for range 2 { // the descriptors are opened, and used
		if diff := cmp.Diff(map[place]bool{self: true, other: true, before: false}, look(), cmp.AllowUnexported(place{})); diff != "" {
			t.Error(diff)
		}
		if len(table.lines) != 2 {
			t.Errorf("%d descriptors are kept", len(table.lines))
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); look()[other]; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a zombie counts as alive")
		}
	}
	_ = child.Wait() // it was killed
	waited = true
	if look()[other] || len(table.lines) != 1 {
		t.Errorf("a process that is gone: %v, %d descriptors", look(), len(table.lines))
	}
	if table.living(nil); len(table.lines) != 0 {
		t.Error("descriptors are kept that nobody asks about")
	}
}

// BenchmarkLiving asks about one process, by its descriptor and by its start time.
func BenchmarkLiving(b *testing.B) {
	table := New("/")
	defer table.Close()
	start, err := table.startTime(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("descriptor", func(b *testing.B) {
		for b.Loop() {
			table.living([]place{{os.Getpid(), start}})
		}
	})
	b.Run("start time", func(b *testing.B) {
		for b.Loop() {
			_, _ = table.startTime(os.Getpid())
		}
	})
}
