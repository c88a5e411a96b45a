// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of require: what is missing skips, or fails when VGPU_TEST_REQUIRE names it.

package require

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// recorder is a testing.TB that notes how a helper ended the test.
type recorder struct {
	testing.TB
	outcome string
}

func (r *recorder) Helper()               {}
func (r *recorder) Skipf(string, ...any)  { r.outcome = "skip"; runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.outcome = "fail"; runtime.Goexit() }

func outcome(t *testing.T, f func(testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.outcome
}

func TestMissing(t *testing.T) {
	absent := func(tb testing.TB) { Tool(tb, "no-such-tool-anywhere") }
	for _, c := range []struct{ list, want string }{
		{"", "skip"},
		{"root,sim", "skip"},
		{"root, no-such-tool-anywhere", "fail"},
		{"no-such-tool", "skip"},
	} {
		t.Setenv(listVariable, c.list)
		if got := outcome(t, absent); got != c.want {
			t.Errorf("%s=%q: %q, want %q", listVariable, c.list, got, c.want)
		}
	}
	if got := outcome(t, func(tb testing.TB) { Need(tb, "mount", true, "") }); got != "" {
		t.Errorf("a need that is met ended the test: %q", got)
	}
}

func TestRepoRoot(t *testing.T) {
	if _, err := os.Stat(filepath.Join(RepoRoot(t), "internal", "require", "require.go")); err != nil {
		t.Error(err)
	}
}
