// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package require lets a test name what it needs of the machine. What is missing skips the test with the reason
// printed; VGPU_TEST_REQUIRE (a comma-separated list of needs: root, build, sim, mount, or the name of a tool)
// turns that skip into a failure on the machines that are to have it, so that a skip there cannot hide.
package require

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// listVariable names the needs whose absence is a failure.
const listVariable = "VGPU_TEST_REQUIRE"

// Root skips unless the test runs with effective user 0.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		missing(t, "root", "runs as an ordinary user")
	}
}

// Tool returns the path of a program found in PATH, or skips; the need has the tool's own name.
func Tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name, "no "+name+" in PATH")
	}
	return path
}

// Build returns the absolute path of the build directory when it holds every one of files (all of vgpud and
// libvgpu.so when none is named), or skips.
func Build(t testing.TB, files ...string) string {
	t.Helper()
	if len(files) == 0 {
		files = []string{"vgpud", "libvgpu.so"}
	}
	dir := filepath.Join(RepoRoot(t), "build")
	requireFiles(t, "build", dir, files)
	return dir
}

// Sim returns the absolute path of the directory of the simulated driver (libcuda.so.1, libnvidia-ml.so.1), or
// skips when it has not been built.
func Sim(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(RepoRoot(t), "build", "sim")
	requireFiles(t, "sim", dir, []string{"libcuda.so.1", "libnvidia-ml.so.1"})
	return dir
}

// Need skips with reason unless ok. It is for needs that a test finds out by itself, such as being able to
// mount a file system ("mount").
func Need(t testing.TB, name string, ok bool, reason string) {
	t.Helper()
	if !ok {
		missing(t, name, reason)
	}
}

// RepoRoot returns the directory of the module's go.mod, found upwards from the test's working directory.
func RepoRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("get working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}

func requireFiles(t testing.TB, need, dir string, files []string) {
	t.Helper()
	for _, name := range files {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			missing(t, need, filepath.Join(dir, name)+" is not built (make build)")
		}
	}
}

// missing ends the test: as a failure when the need is on the list, else as a skip.
func missing(t testing.TB, need, reason string) {
	t.Helper()
	needs := strings.FieldsFunc(os.Getenv(listVariable), func(r rune) bool { return r == ',' || r == ' ' })
	if slices.Contains(needs, need) {
		t.Fatalf("%s names %q, but: %s", listVariable, need, reason)
	}
	t.Skipf("needs %s: %s", need, reason)
}
