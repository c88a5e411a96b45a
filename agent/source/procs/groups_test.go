// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGroups(t *testing.T) {
	text := "12:cpu,cpuacct:/a:b\nodd\n1:name=systemd:/c\n:\n0::/d e\n0::/unended"
	want := []Group{{"12", "cpu,cpuacct", "/a:b"}, {"1", "name=systemd", "/c"}, {"0", "", "/d e"}, {"0", "", "/unended"}}
	if diff := cmp.Diff(want, slices.Collect(Groups(text))); diff != "" {
		t.Error(diff)
	}
	for group := range Groups(text) {
		if group.Hierarchy != "12" {
			t.Error("goes on after the end")
		}
		break
	}
}

// A file of any size is read as far as it is bounded, and one that is gone is said to be.
func TestReadGroups(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "proc", "7", "cgroup")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, length := range []int{0, 100, 8<<10 - 1, 8 << 10, 20 << 10, 64 << 10, 65 << 10} {
		text := strings.Repeat("x", length)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadGroups(root, "7"); err != nil || got != text[:min(length, maxGroupsBytes)] {
			t.Errorf("of %d bytes %d were read, %v", length, len(got), err)
		}
	}
	if _, err := ReadGroups(root, "8"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nobody: %v", err)
	}
	self, err := ReadGroups("/", "self")
	if own, ownErr := ReadGroups("/", fmt.Sprint(os.Getpid())); err != nil || ownErr != nil || self != own || self == "" {
		t.Errorf("%q, %v; %q, %v", self, err, own, ownErr)
	}
}
