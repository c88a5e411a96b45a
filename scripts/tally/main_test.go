// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTallyGo(t *testing.T) {
	stream := `
{"Action":"start","Package":"m/p"}
{"Action":"run","Package":"m/p","Test":"TestA"}
{"Action":"run","Package":"m/p","Test":"TestA/one"}
{"Action":"pass","Package":"m/p","Test":"TestA/one"}
{"Action":"run","Package":"m/p","Test":"TestA/two"}
{"Action":"output","Package":"m/p","Test":"TestA/two","Output":"    a_test.go:3: got 1, want 2\n"}
{"Action":"fail","Package":"m/p","Test":"TestA/two"}
{"Action":"fail","Package":"m/p","Test":"TestA"}
{"Action":"run","Package":"m/p","Test":"TestB"}
{"Action":"output","Package":"m/p","Test":"TestB","Output":"    b_test.go:9: needs a GPU\n"}
{"Action":"skip","Package":"m/p","Test":"TestB"}
{"Action":"run","Package":"m/p","Test":"TestC"}
{"Action":"pass","Package":"m/p","Test":"TestC"}
{"Action":"fail","Package":"m/p"}
{"ImportPath":"m/q","Action":"build-output","Output":"q.go:1: does not compile\n"}
{"ImportPath":"m/q","Action":"build-fail"}
{"Action":"start","Package":"m/q"}
{"Action":"output","Package":"m/q","Output":"FAIL\tm/q [build failed]\n"}
{"Action":"fail","Package":"m/q","FailedBuild":"m/q"}
{"Action":"start","Package":"m/r"}
{"Action":"skip","Package":"m/r"}
`
	var out strings.Builder
	got, err := tallyGo(strings.NewReader(strings.TrimSpace(stream)), &out)
	if err != nil {
		t.Fatal(err)
	}
	// One subtest passed, one failed, TestC passed, TestB skipped, and m/q did not build.
	if want := (counts{passed: 2, failed: 2, skipped: 1}); got != want {
		t.Errorf("counts %v, want %v\n%s", got, want, out.String())
	}
	for _, want := range []string{"FAIL m/p TestA/two", "got 1, want 2", "skip m/p TestB: needs a GPU", "does not compile", "FAIL m/q"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
}

func TestTallyLogs(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name + "=" + path
	}
	a := write("a", "noise\n3 passed, 0 failed, 1 skipped\n")
	b := write("b", "1 passed, 0 failed, 0 skipped\n4 passed, 0 failed, 0 skipped\n")
	died := write("died", "Segmentation fault\n")
	idle := write("idle", "0 passed, 0 failed, 0 skipped\n")

	var out strings.Builder
	got, err := tallyLogs([]string{a, b}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if want := (counts{passed: 7, skipped: 1}); got != want || !got.good() {
		t.Errorf("counts %v good=%v, want %v good", got, got.good(), want)
	}
	for _, bad := range []string{died, idle} {
		out.Reset()
		got, err = tallyLogs([]string{a, bad}, &out)
		if err != nil {
			t.Fatal(err)
		}
		name, path, _ := strings.Cut(bad, "=")
		if want := "failed: " + name + " (" + path + ")\n"; !strings.HasSuffix(out.String(), want) {
			t.Errorf("output %q does not end in %q", out.String(), want)
		}
		if got.good() || got.failed != 1 {
			t.Errorf("%s: %v good=%v, want one failure", bad, got, got.good())
		}
	}
	if (counts{}).good() {
		t.Error("a run in which nothing ran counts as good")
	}
}
