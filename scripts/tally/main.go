// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command tally counts tests. It is what puts one closing line under all parts of a run:
//
//	go test -json ./... | tally -go    prints failures and skips, then "N passed, N failed, N skipped"
//	tally NAME=FILE...                 sums the closing lines of the logs of several parts
//
// It exits 1 when anything failed, when nothing ran, or when a log has no closing line.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// counts is what a closing line says.
type counts struct{ passed, failed, skipped int }

func (c *counts) add(o counts) {
	c.passed += o.passed
	c.failed += o.failed
	c.skipped += o.skipped
}

func (c counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.passed, c.failed, c.skipped)
}

// good reports whether a run with these counts is one to build on: something ran and nothing failed.
func (c counts) good() bool { return c.failed == 0 && c.passed+c.skipped > 0 }

func main() {
	fromGo := flag.Bool("go", false, "read the output of go test -json on stdin")
	flag.Parse()
	var total counts
	var err error
	if *fromGo {
		total, err = tallyGo(os.Stdin, os.Stdout)
	} else {
		total, err = tallyLogs(flag.Args(), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(1)
	}
	fmt.Println(total)
	if !total.good() {
		os.Exit(1)
	}
}

var closingLine = regexp.MustCompile(`^(\d+) passed, (\d+) failed, (\d+) skipped$`)

// tallyLogs sums the last closing line of each NAME=FILE and prints one row for each, and then the names of those
// in which something failed. A log without one, or one that says that nothing ran, counts as one failure: its part
// died before it could say how it went.
func tallyLogs(args []string, out io.Writer) (counts, error) {
	var total counts
	var failing []string
	for _, arg := range args {
		name, path, ok := strings.Cut(arg, "=")
		if !ok {
			return counts{}, fmt.Errorf("argument %q is not NAME=FILE", arg)
		}
		c, ok, err := lastClosingLine(path)
		if err != nil {
			return counts{}, err
		}
		if !ok || c == (counts{}) {
			c = counts{failed: 1}
			fmt.Fprintf(out, "  %-10s died, or ran nothing: see %s\n", name, path)
		} else {
			fmt.Fprintf(out, "  %-10s %s\n", name, c)
		}
		if c.failed > 0 {
			failing = append(failing, name+" ("+path+")")
		}
		total.add(c)
	}
	if len(failing) > 0 {
		fmt.Fprintf(out, "failed: %s\n", strings.Join(failing, ", "))
	}
	return total, nil
}

func lastClosingLine(path string) (c counts, found bool, err error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return counts{}, false, fmt.Errorf("open log: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if m := closingLine.FindStringSubmatch(lines.Text()); m != nil {
			found = true
			if _, err := fmt.Sscan(m[1]+" "+m[2]+" "+m[3], &c.passed, &c.failed, &c.skipped); err != nil {
				return counts{}, false, fmt.Errorf("read closing line of %s: %w", path, err)
			}
		}
	}
	return c, found, lines.Err()
}
