// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package computetest tests from outside whether the share of a GPU's time holds: real programs, started as a user
// starts them, on the simulated GPU, whose own books say who had how much of its time. Nothing in here knows how vgpud
// does it: it runs build/vgpud and build/libvgpu.so.
//
// The programs are those of the end-to-end tests (scripts/e2e/client). What would take minutes is scaled down;
// VGPU_TEST_LONG=1 takes the times that users see. Less than a share is a failure, unless the programs had to wait for
// processors: then the test is a skip, which VGPU_TEST_REQUIRE=quiet makes a failure, too (on a machine with nothing else
// to do).
//
//	go test ./scripts/computetest
//	VGPU_TEST_LONG=1 go test -timeout 30m ./scripts/computetest
package computetest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/vgpud/vgpud/internal/require"
)

// parallelTests run at the same time: they wait nearly all the time, each on a simulated card of its own.
const parallelTests = "20"

// longTimes: take the real times.
var longTimes = os.Getenv("VGPU_TEST_LONG") != ""

// programs is the directory of the compiled client programs; see program.
var programs struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	if os.Getenv(containerVariable) != "" {
		fmt.Fprintln(os.Stderr, enterContainer())
		os.Exit(125)
	}
	flag.Parse()
	if err := flag.Set("test.parallel", parallelTests); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(programs.dir)
	os.Exit(code)
}

// program compiles the client programs once and returns the path of one.
func program(t *testing.T, name string) string {
	t.Helper()
	gcc, root := require.Tool(t, "gcc"), require.RepoRoot(t)
	programs.once.Do(func() {
		if programs.dir, programs.err = os.MkdirTemp("", "computetest"); programs.err != nil {
			return
		}
		for _, name := range []string{"flood", "capture", "forked"} {
			source := filepath.Join(root, "scripts", "e2e", "client", name+".c")
			out, err := exec.Command(gcc, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o",
				filepath.Join(programs.dir, name), source, "-ldl", "-pthread").CombinedOutput()
			if err != nil {
				programs.err = errors.Join(programs.err, fmt.Errorf("compile %s: %w\n%s", source, err, out))
			}
		}
	})
	if programs.err != nil {
		t.Fatal(programs.err)
	}
	return filepath.Join(programs.dir, name)
}
