// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command agentbench measures what the agent costs: a soak of `vgpud run` at its defaults on eight simulated cards with fifty
// containers, in two phases, and a CPU profile of each. docs/benchmarks/agent.md is what it writes; --help lists what can be
// chosen.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// options is the command line.
type options struct {
	build, out        string
	cards, containers int
	measure, profile  time.Duration
	warm              time.Duration
	phase             string   // "": all
	agent             []string // further flags of the agent
}

const usageText = `usage: agentbench [--cards N] [--containers N] [--measure D] [--profile D] [--warm D] [--phase NAME] [--out DIR] [--build DIR] [-- AGENT-FLAG...]

Runs the agent beside containers that rest, and then beside the same ones at work, and prints what it took of one core and of
memory. Exit code 1: more than the target. Root; needs make build.

  --cards N       simulated cards (8)
  --containers N  containers, dealt to the cards in turn (50)
  --measure D     how long each phase is measured, without a profile (1m)
  --profile D     and how long it is profiled after that (3m); 0: not
  --warm D        how long each phase settles before (45s)
  --phase NAME    idle or light alone
  --out DIR       write agent.json and agent.md there
  --build DIR     where the agent, the library and the simulated GPU are (build)
`

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("agentbench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usageText) }
	flags.StringVar(&o.build, "build", "build", "")
	flags.StringVar(&o.out, "out", "", "")
	flags.IntVar(&o.cards, "cards", 8, "")
	flags.IntVar(&o.containers, "containers", 50, "")
	flags.DurationVar(&o.measure, "measure", time.Minute, "")
	flags.DurationVar(&o.profile, "profile", 3*time.Minute, "")
	flags.DurationVar(&o.warm, "warm", 45*time.Second, "")
	flags.StringVar(&o.phase, "phase", "", "")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.agent = flags.Args()
	switch {
	case o.cards < 1 || o.cards > 16:
		return o, fmt.Errorf("--cards %d: want 1 to 16", o.cards)
	case o.containers < 1 || o.containers > o.cards*slicesPerCard:
		return o, fmt.Errorf("--containers %d: want 1 to %d, a slice for each", o.containers, o.cards*slicesPerCard)
	case o.measure < time.Second || o.profile < 0 || o.warm < 0:
		return o, errors.New("--measure wants a second at least, --profile and --warm none below 0")
	case len(phases(o.phase)) == 0:
		return o, fmt.Errorf("--phase %s: want idle or light", o.phase)
	case o.out != "" && (o.phase != "" || len(o.agent) > 0 || o.measure < time.Minute || o.profile < time.Minute):
		return o, errors.New("--out is for the agent at its defaults, in all phases, measured and profiled for a minute each at least")
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
		fmt.Fprintf(stderr, "agentbench: %v\n%s", err, usageText)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	records, err := soak(ctx, o, stdout)
	if err == nil && o.out != "" {
		err = write(o.out, records)
	}
	if err != nil {
		fmt.Fprintf(stderr, "agentbench: %v\n", err)
		return 1
	}
	for _, r := range records {
		if !r.Pass {
			return 1
		}
	}
	return 0
}
