// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Counting of go test's event stream (see "go doc test2json").

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
)

// event is one line of go test -json. Build events carry ImportPath instead of Package.
type event struct {
	Action, Package, Test, Output, ImportPath, FailedBuild string
}

// testLog collects one test's output until its verdict is known.
type testLog struct {
	output   strings.Builder
	hasChild bool
}

// tallyGo counts leaf tests: a test with subtests is its subtests, unless it failed and none of them did.
// A package that did not build, or died outside any test, is one failure.
func tallyGo(in io.Reader, out io.Writer) (counts, error) {
	t := goTally{out: out, logs: map[string]*testLog{}, failedIn: map[string]int{}}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			// The go command itself may complain in plain text, before or between the events.
			fmt.Fprintln(out, lines.Text())
			continue
		}
		t.take(e)
	}
	if err := lines.Err(); err != nil {
		return counts{}, fmt.Errorf("read events: %w", err)
	}
	sort.Strings(t.skips)
	for _, s := range t.skips {
		fmt.Fprintln(out, s)
	}
	return t.total, nil
}

type goTally struct {
	out      io.Writer
	total    counts
	logs     map[string]*testLog // by package and test
	failedIn map[string]int      // failures counted per package, and per test with subtests
	skips    []string
}

func (t *goTally) log(e event) *testLog {
	key := e.Package + " " + e.Test
	if t.logs[key] == nil {
		t.logs[key] = &testLog{}
		if parent, _, ok := cutLast(key, "/"); ok && e.Test != "" && strings.Contains(e.Test, "/") {
			if p := t.logs[parent]; p != nil {
				p.hasChild = true
			}
		}
	}
	return t.logs[key]
}

func (t *goTally) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(t.out, e.Output)
	case "output":
		t.log(e).output.WriteString(e.Output)
	case "run", "start":
		t.log(e)
	case "pass", "fail", "skip":
		l := t.log(e)
		if e.Test == "" {
			t.packageDone(e, l)
		} else {
			t.testDone(e, l)
		}
		delete(t.logs, e.Package+" "+e.Test)
	}
}

func (t *goTally) testDone(e event, l *testLog) {
	key := e.Package + " " + e.Test
	switch {
	case e.Action == "fail" && t.failedIn[key] == 0:
		t.total.failed++
		t.noteFailure(e)
		fmt.Fprintf(t.out, "FAIL %s %s\n%s", e.Package, e.Test, l.output.String())
	case e.Action == "fail":
		fmt.Fprint(t.out, l.output.String())
	case l.hasChild: // its subtests were counted
	case e.Action == "skip":
		t.total.skipped++
		t.skips = append(t.skips, fmt.Sprintf("skip %s %s: %s", e.Package, e.Test, skipReason(l.output.String())))
	default:
		t.total.passed++
	}
}

// noteFailure marks every enclosing test and the package as having a counted failure.
func (t *goTally) noteFailure(e event) {
	t.failedIn[e.Package]++
	key := e.Package + " " + e.Test
	for {
		parent, _, ok := cutLast(key, "/")
		if !ok || len(parent) <= len(e.Package) {
			return
		}
		t.failedIn[parent]++
		key = parent
	}
}

func (t *goTally) packageDone(e event, l *testLog) {
	if e.Action != "fail" || t.failedIn[e.Package] > 0 {
		return
	}
	t.total.failed++
	fmt.Fprintf(t.out, "FAIL %s\n%s", e.Package, l.output.String())
}

// skipReason is the last line that the test logged before it stopped.
func skipReason(output string) string {
	reason := "no reason given"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		if _, text, ok := strings.Cut(line, ".go:"); ok {
			_, line, _ = strings.Cut(text, ": ")
		}
		reason = line
	}
	return reason
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
