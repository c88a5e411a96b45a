// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command computebench measures how exactly shares of GPU time are held: the acceptance table, with the shipped limiter and the
// shipped steering, on a model of cards in virtual time and on the simulated GPU in real time. Two other laws run the
// same rows for comparison. docs/benchmarks/compute.md tells more; --help lists what can be chosen.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/vgpud/vgpud/scripts/computebench/virtual"
)

// options is the command line.
type options struct {
	row           *regexp.Regexp
	virtual, real bool
	short, list   bool
	trace         bool
	seed          uint64
	out           string // directory of the results; "": nothing is written
	build         string // directory of what `make build` builds
}

const usage = `usage: computebench [--row REGEXP] [--virtual | --real] [--short] [--list] [--seed N] [--trace] [--out DIR] [--build DIR]

Runs the rows of the compute benchmark and prints one line for each. Exit code 1: a row of ours misses its target.

  --row REGEXP  only rows whose name matches
  --virtual     only in virtual time: the model
  --real        only in real time: agent, library and simulated GPU (root; needs make build)
  --short       a handful of rows in virtual time
  --list        print the rows and their targets, and run nothing
  --seed N      other draws of what is left to chance in virtual time
  --trace       tell each rate that is published in virtual time
  --out DIR     write compute.json, compute.md and the plots there; rows that were not run keep their old records
  --build DIR   where the agent, the library and the simulated GPU are (build)
`

func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("computebench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	var pattern string
	flags.StringVar(&pattern, "row", "", "")
	flags.BoolVar(&o.virtual, "virtual", false, "")
	flags.BoolVar(&o.real, "real", false, "")
	flags.BoolVar(&o.short, "short", false, "")
	flags.BoolVar(&o.list, "list", false, "")
	flags.BoolVar(&o.trace, "trace", false, "")
	flags.Uint64Var(&o.seed, "seed", 0, "")
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
	if o.out != "" && (o.short || o.seed != 0) {
		return options{}, errors.New("--out is for whole scenes with their own seeds: without --short and --seed")
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
		fmt.Fprintf(stderr, "computebench: %v\n%s", err, usage)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := bench(ctx, o, stdout)
	if err != nil {
		fmt.Fprintf(stderr, "computebench: %v\n", err)
		return 1
	}
	if !ok {
		return 1
	}
	return 0
}

// runKind is one way in which a row is run.
type runKind struct{ kind, law, clock string }

var laws = map[string]virtual.Law{lawOurs: virtual.Ours, lawBlock: virtual.BlockBucket, lawPID: virtual.PIDBucket}

func runsOf(r row) []runKind {
	runs := []runKind{{kindOurs, lawOurs, clockVirtual}}
	if r.real {
		runs = append(runs, runKind{kindOurs, lawOurs, clockReal})
	}
	if r.peers {
		runs = append(runs, runKind{kindPeer, lawBlock, clockVirtual}, runKind{kindPeer, lawPID, clockVirtual})
	}
	return runs
}

// bench runs what was chosen. False: a row of ours missed its target.
func bench(ctx context.Context, o options, stdout io.Writer) (bool, error) {
	rows := allRows()
	chosen := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !o.row.MatchString(r.id) || (o.short && !r.short) })
	if o.list {
		for _, r := range chosen {
			fmt.Fprintf(stdout, "%-18s %s: %s\n", r.id, r.title, r.criteria)
		}
		return true, nil
	}
	for i := range chosen {
		chosen[i].scene.Seed += o.seed
		if o.short {
			chosen[i] = chosen[i].shortened()
		}
	}
	var records []record
	if o.virtual {
		records = append(records, runVirtual(ctx, chosen, o, stdout)...)
	}
	if o.real && ctx.Err() == nil {
		fresh, err := runReal(ctx, chosen, o.build, stdout)
		records = append(records, fresh...)
		if err != nil {
			return false, err
		}
	}
	if err := context.Cause(ctx); err != nil {
		return false, err
	}
	passed, failed, peers := 0, 0, 0
	for _, r := range records {
		switch {
		case r.Kind == kindPeer:
			peers++
		case r.Pass:
			passed++
		default:
			failed++
		}
	}
	fmt.Fprintf(stdout, "%d rows of ours pass, %d fail; %d of peers\n", passed, failed, peers)
	if o.out != "" {
		if err := write(o.out, records, rows); err != nil {
			return false, err
		}
	}
	return failed == 0, nil
}

// runVirtual runs rows in virtual time, as many at once as there are cores. One line each, as they come.
func runVirtual(ctx context.Context, rows []row, o options, stdout io.Writer) []record {
	type job struct {
		row row
		run runKind
	}
	trace := io.Discard
	if o.trace {
		trace = stdout
	}
	jobs := make(chan job)
	var mu sync.Mutex
	var records []record
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for j := range jobs {
				r := runOneVirtual(j.row, j.run, trace)
				mu.Lock()
				records = append(records, r)
				fmt.Fprintln(stdout, r.line())
				mu.Unlock()
			}
		})
	}
	for _, r := range rows {
		for _, run := range runsOf(r) {
			if run.clock == clockVirtual && (run.kind == kindOurs || !o.short) && ctx.Err() == nil {
				jobs <- job{r, run}
			}
		}
	}
	close(jobs)
	workers.Wait()
	return records
}

func runOneVirtual(r row, run runKind, trace io.Writer) (result record) {
	failed := func(err error) record {
		return record{Kind: run.kind, Law: run.law, Clock: run.clock, Row: r.id, Title: r.title, Target: r.criteria.String(), err: err,
			Missed: []string{err.Error()}}
	}
	dir, err := os.MkdirTemp("", "computebench-")
	if err != nil {
		return failed(err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			result = failed(err)
		}
	}()
	o, err := virtual.Run(r.scene, laws[run.law], filepath.Join(dir, "pages"), trace)
	if err != nil {
		return failed(err)
	}
	return r.record(run.kind, run.law, run.clock, o)
}
