// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the directories that are refused: nothing in them and nothing of them is changed.

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Directories that lie in each other are refused with both names, by the loader already.
func TestOverlappingDirectories(t *testing.T) {
	for _, test := range []struct{ arguments, fault string }{
		{"--pages-dir=/s --state-dir=/s", "equal to state-dir"},
		{"--pages-dir=/s/records --state-dir=/s", "inside state-dir"},
		{"--pages-dir=/var --state-dir=/var/lib/vgpud", "above state-dir"},
		{"--pages-dir=/var/lib/kubelet", "equal to kubelet-dir"},
		{"--pages-dir=/var/lib/kubelet/pages", "inside kubelet-dir"},
		{"--pages-dir=/var --kubelet-dir=/var/k --state-dir=/s", "above kubelet-dir"},
		{"--pages-dir=/m --textfile-dir=/m", "equal to textfile-dir"},
		{"--pages-dir=/m/x --textfile-dir=/m", "inside textfile-dir"},
		{"--pages-dir=/m --textfile-dir=/m/x", "above textfile-dir"},
		{"--pages-dir=/lib", "equal to the directory of library"},
		{"--pages-dir=/lib/pages", "inside the directory of library"},
		{"--state-dir=/var/lib/kubelet", "equal to kubelet-dir"},
		{"--state-dir=/var/lib/kubelet/vgpud", "inside kubelet-dir"},
		{"--state-dir=/var/lib", "above kubelet-dir"},
		{"--state-dir=/m --textfile-dir=/m", "equal to textfile-dir"},
		{"--pages-dir=/run/vgpud", "control-socket: value \"/run/vgpud/vgpud.sock\" is in pages-dir"},
		{"--state-dir=/s --control-socket=/s/records/sock", "is in state-dir"},
		{"--pages-dir=/run/vgpud --control-socket=", ""},
		{"--pages-dir=/s2 --state-dir=/s", ""},
		{"--pages-dir=/run/vgpud/pages --state-dir=/run/vgpud/state --textfile-dir=/run/vgpud/textfile", ""},
	} {
		_, err := load(t, strings.Fields(test.arguments), nil, "")
		if (err == nil) != (test.fault == "") || err != nil && !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%s: %v, want %q", test.arguments, err, test.fault)
		}
	}
}

// tree lists everything below a directory with its mode.
func tree(t *testing.T, directory string) map[string]fs.FileMode {
	t.Helper()
	found := map[string]fs.FileMode{}
	err := filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			found[path] = info.Mode()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A directory that holds something of somebody else is refused before anything is made, mounted or changed.
func TestDirectoriesOfOthers(t *testing.T) {
	write := func(parts ...string) error {
		path := filepath.Join(parts...)
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644))
	}
	for name, test := range map[string]struct {
		prepare func(n *node) error
		fault   string // empty: accepted
	}{
		"pages beside other files": {func(n *node) error { return write(n.config.PagesDir, "passwd") }, "pages-dir: "},
		"pages in a link to the state": {func(n *node) error {
			return errors.Join(os.MkdirAll(n.config.StateDir, 0o755), os.Symlink(n.config.StateDir, n.config.PagesDir))
		}, "equal to state-dir"},
		"pages below a link to the state": {func(n *node) error {
			link := n.config.PagesDir
			n.config.PagesDir = filepath.Join(link, "a", "b")
			return errors.Join(os.MkdirAll(n.config.StateDir, 0o755), os.Symlink(n.config.StateDir, link))
		}, "inside state-dir"},
		"pages directory is a file": {func(n *node) error { return write(n.config.PagesDir) }, "pages"},
		"state beside other files":  {func(n *node) error { return write(n.config.StateDir, "passwd") }, "state-dir: "},
		"pages of older agents": {func(n *node) error {
			return os.MkdirAll(filepath.Join(n.config.PagesDir, fmt.Sprintf("%032x", 1)), 0o711)
		}, ""},
		"pages that were half made": {func(n *node) error {
			return os.MkdirAll(filepath.Join(n.config.PagesDir, fmt.Sprintf(".%032x.12", 1)), 0o711)
		}, ""},
		"state of an older agent, with more": {func(n *node) error {
			return errors.Join(os.MkdirAll(filepath.Join(n.config.StateDir, "records"), 0o755), write(n.config.StateDir, "note"))
		}, ""},
		"state of an agent that was killed": {func(n *node) error { return write(n.config.StateDir, "lock") }, ""},
		"a file system's own directory":     {func(n *node) error { return os.MkdirAll(filepath.Join(n.config.StateDir, "lost+found"), 0o700) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			if err := test.prepare(n); err != nil {
				t.Fatal(err)
			}
			if test.fault == "" {
				if err := n.config.places().Check(); err != nil {
					t.Error(err)
				}
				return
			}
			top := filepath.Dir(n.config.StateDir)
			before := tree(t, top)
			err := runAgent(t.Context(), n.config, slog.New(slog.DiscardHandler), n.parts)
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("error %v, want %q", err, test.fault)
			}
			if diff := cmp.Diff(before, tree(t, top)); diff != "" {
				t.Errorf("the refused agent changed:\n%s", diff)
			}
		})
	}
}
