// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	cgroupMount      = "/sys/fs/cgroup"
	cgroupEndTimeout = 5 * time.Second
)

// hierarchies are the cgroup v1 controllers that kubelet and runc use, and, where the layout is hybrid, the v2 tree.
var hierarchies = []string{"cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
	"unified"}

// cgroupName names the cgroup, in each hierarchy, that is above all pods of the cluster in dir.
func cgroupName(dir string) string {
	return fmt.Sprintf("vgpud-e2e-%x", sha256.Sum256([]byte(dir)))[:18]
}

func makeCgroups(name string) error {
	if _, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers")); err == nil {
		return errors.New("make cgroups: this harness knows cgroup v1 and the hybrid layout only, not pure v2")
	}
	for _, hierarchy := range hierarchies {
		dir := filepath.Join(cgroupMount, hierarchy)
		if _, err := os.Stat(dir); hierarchy == "unified" && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make cgroups: %w", err)
		}
	}
	for _, setting := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new cpuset: no process could join
		value, err := os.ReadFile(filepath.Join(cgroupMount, "cpuset", setting))
		if err != nil {
			return fmt.Errorf("make cgroups: %w", err)
		}
		if err := os.WriteFile(filepath.Join(cgroupMount, "cpuset", name, setting), value, 0o644); err != nil {
			return fmt.Errorf("make cgroups: %w", err)
		}
	}
	return nil
}

// removeCgroups removes the cluster's cgroups once their last processes are gone. None there is no error.
func removeCgroups(name string) error {
	var err error
	for deadline := time.Now().Add(cgroupEndTimeout); ; time.Sleep(50 * time.Millisecond) {
		err = nil
		for _, hierarchy := range hierarchies {
			err = errors.Join(err, removeTree(filepath.Join(cgroupMount, hierarchy, name)))
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = nil
	for _, dir := range slices.Backward(dirs) {
		if removeErr := os.Remove(dir); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
			err = errors.Join(err, removeErr)
		}
	}
	return err
}
