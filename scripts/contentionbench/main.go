// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command contentionbench measures how contention is found: scenes of hours with the shipped decide on a model of a card in
// virtual time, some of them also in real time with agent, library and simulated GPU, and other rules on the same scenes.
// docs/benchmarks/contention.md tells more; --help lists what can be chosen.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"
)

// options is the command line.
type options struct {
	row                        *regexp.Regexp
	virtual, real, short, list bool
	trace                      bool
	seeds                      int
	out                        string // directory of the results; "": nothing is written
	build                      string // directory of what `make build` builds
}

const usage = `usage: contentionbench [--row REGEXP] [--virtual | --real] [--short] [--list] [--seeds N] [--trace] [--out DIR] [--build DIR]

Runs the rows of the contention benchmark and prints one line for each rule. Exit code 1: a row of ours misses its target.

  --row REGEXP  only rows whose name matches
  --virtual     only in virtual time: the model
  --real        only in real time: agent, library and simulated GPU (root; needs make build)
  --short       some rows, cut short, in virtual time
  --list        print the rows and their targets, and run nothing
  --seeds N     draws of what is left to chance in virtual time (5)
  --trace       tell each verdict
  --out DIR     write contention.json, contention.md and the plots there; rows that were not run keep their old records
  --build DIR   where the agent, the library and the simulated GPU are (build)
`

func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("contentionbench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	var pattern string
	flags.StringVar(&pattern, "row", "", "")
	flags.BoolVar(&o.virtual, "virtual", false, "")
	flags.BoolVar(&o.real, "real", false, "")
	flags.BoolVar(&o.short, "short", false, "")
	flags.BoolVar(&o.list, "list", false, "")
	flags.BoolVar(&o.trace, "trace", false, "")
	flags.IntVar(&o.seeds, "seeds", 5, "")
	flags.StringVar(&o.out, "out", "", "")
	flags.StringVar(&o.build, "build", "build", "")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.virtual && o.real {
		return options{}, errors.New("--virtual and --real exclude each other")
	}
	if o.seeds < 1 || o.seeds > 1000 {
		return options{}, errors.New("--seeds: want 1 to 1000")
	}
	row, err := regexp.Compile(pattern)
	if err != nil {
		return options{}, fmt.Errorf("read --row: %w", err)
	}
	o.row = row
	if !o.virtual && !o.real {
		o.virtual, o.real = true, !o.short
	}
	return o, nil
}

func main() { os.Exit(mainCode(os.Args[1:], os.Stdout, os.Stderr)) }

func mainCode(args []string, stdout, stderr io.Writer) int {
	o, err := parseOptions(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "contentionbench: %v\n%s", err, usage)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := bench(ctx, o, stdout)
	if err != nil {
		fmt.Fprintf(stderr, "contentionbench: %v\n", err)
		return 1
	}
	if !ok {
		return 1
	}
	return 0
}

// bench runs what was chosen. False: a row of ours missed its target.
func bench(ctx context.Context, o options, stdout io.Writer) (bool, error) {
	rows := allRows()
	chosen := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !o.row.MatchString(r.id) || (o.short && !r.short) })
	if o.list {
		for _, r := range chosen {
			fmt.Fprintf(stdout, "%-16s %s: %s\n", r.id, r.title, r.target(ruleDefault))
		}
		return true, nil
	}
	if o.short {
		for i := range chosen {
			chosen[i] = chosen[i].shortened()
		}
	}
	var records []record
	var shown []outcome
	if o.virtual {
		records, shown = runVirtual(ctx, chosen, o, stdout)
	}
	if o.real && ctx.Err() == nil {
		fresh, plots, err := runReal(ctx, o, stdout)
		records, shown = append(records, fresh...), append(shown, plots...)
		if err != nil {
			return false, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	passed, failed := 0, 0
	for _, r := range records {
		switch {
		case r.Kind == kindPeer:
		case r.Pass:
			passed++
		default:
			failed++
		}
	}
	fmt.Fprintf(stdout, "%d rows of ours pass, %d fail\n", passed, failed)
	if o.out != "" {
		if err := write(o.out, records, shown, rows); err != nil {
			return false, err
		}
	}
	return failed == 0, nil
}

// oursNames are the rules of ours, in the order of tables.
var oursNames = []string{ruleDefault, ruleFast}

// runVirtual runs rows in virtual time, as many at once as there are cores.
func runVirtual(ctx context.Context, rows []row, o options, stdout io.Writer) ([]record, []outcome) {
	jobs := make(chan row)
	var mu sync.Mutex
	var records []record
	var shown []outcome
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for r := range jobs {
				trace := stdout
				if !o.trace {
					trace = io.Discard
				}
				fresh, first := runRow(r, o.seeds, &locked{w: trace, mu: &mu})
				mu.Lock()
				records, shown = append(records, fresh...), append(shown, first)
				for _, made := range fresh {
					if made.Kind == kindOurs {
						fmt.Fprintln(stdout, made.line())
					}
				}
				mu.Unlock()
			}
		})
	}
	for _, r := range rows {
		if ctx.Err() == nil {
			jobs <- r
		}
	}
	close(jobs)
	workers.Wait()
	return records, shown
}

// locked lets several write whole lines.
type locked struct {
	w  io.Writer
	mu *sync.Mutex
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}
