// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_top.go is the subcommand that shows GPUs and slices live, or once for scripts; package top draws.

package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/top"
)

// Exit codes of the commands that ask the agent, beside 1 for other faults.
const (
	exitNoAgent   = 3
	exitForbidden = 4
	exitNotFrozen = 5
)

// socketVariable names the agent's socket, for `vgpud run` and for those who ask it.
const socketVariable = environmentPrefix + "CONTROL_SOCKET"

func newTopCommand() *cobra.Command {
	var socket string
	var once, asJSON bool
	var interval time.Duration
	command := &cobra.Command{
		Use:   "top",
		Short: "Show GPUs and slices live: who uses what, who waits, who is in whose way",
		Long: `Show the GPUs of this node and the slices on them, as the agent sees them: memory, GPU time used and granted, traffic,
pressure, health and why. Needs root, and an agent that runs (vgpud run).

` + top.Legend + `

Keys: ? lists them. enter shows why of the selected row, tab goes between GPUs and slices, s sorts by the next column,
/ filters (words of a name, gpu0, a verdict; all have to match), space holds the picture, q quits.

With --once it prints tables to any output and ends; with --once --json the agent's view, whose fields keep their names
and meaning: a script finds all figures there, e.g.

  vgpud top --once --json | jq -r '.slices[] | select(.verdicts != []) | [.namespace, .pod, .verdicts[].kind] | @tsv'

Exit codes: 0 shown; 3 no agent answers; 4 not allowed to ask it; 1 another fault.`,
		Example: `  vgpud top
  vgpud top --once
  vgpud top --once --json | jq '.gpus[].health'`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if interval < 200*time.Millisecond || interval > time.Minute {
				return seeHelp(command, fmt.Errorf("--interval %s: want a duration from 200ms to 1m", interval))
			}
			client := control.NewClient(socketPath(socket))
			defer client.Close()
			if once || asJSON {
				return asked(top.Once(command.Context(), client, command.OutOrStdout(), asJSON))
			}
			in, out, err := terminal(command)
			if err != nil {
				return err
			}
			// What keeps it from ever showing anything is told before the screen is taken.
			if _, err := client.View(command.Context()); err != nil && !errors.Is(err, control.ErrStarting) {
				return asked(err)
			}
			err = top.Live(command.Context(), client, top.Options{Interval: interval, In: in, Out: out, Environ: environment()})
			if errors.Is(err, top.ErrInterrupted) {
				return &exitError{code: exitInterrupted}
			}
			return err
		},
	}
	flags := command.Flags()
	addSocketFlag(command, &socket)
	flags.BoolVar(&once, "once", false, "print one view as tables and end")
	flags.BoolVar(&asJSON, "json", false, "with --once: print the view as JSON")
	flags.DurationVar(&interval, "interval", time.Second, "how often to look, 200ms to 1m")
	return command
}

// exitInterrupted is what a shell shows of a program that SIGINT ended.
const exitInterrupted = 130

func addSocketFlag(command *cobra.Command, socket *string) {
	command.Flags().StringVar(socket, "socket", "", "the agent's control socket; default: "+socketVariable+" of the environment, or "+control.DefaultPath)
}

// socketPath is where the agent is asked: the flag, the environment, the default.
func socketPath(flag string) string {
	for _, path := range []string{flag, environmentMap(environment())[socketVariable]} {
		if path != "" {
			return path
		}
	}
	return control.DefaultPath
}

// terminal is where a live view is shown, or why it cannot be.
func terminal(command *cobra.Command) (in, out *os.File, err error) {
	in, isIn := command.InOrStdin().(*os.File)
	out, isOut := command.OutOrStdout().(*os.File)
	switch {
	case !isOut || !term.IsTerminal(int(out.Fd())):
		return nil, nil, errors.New("the output is no terminal: --once prints one view to any output")
	case !isIn || !term.IsTerminal(int(in.Fd())):
		return nil, nil, errors.New("the input is no terminal, and a live view is steered by keys: --once prints one view")
	}
	if name := environmentMap(environment())["TERM"]; name == "" || strings.HasPrefix(name, "dumb") {
		return nil, nil, fmt.Errorf("the terminal is of type %q, which cannot show a live view: --once prints one view", name)
	}
	return in, out, nil
}

// asked gives an answer that did not come its exit code.
func asked(err error) error {
	for is, code := range map[error]int{control.ErrNoAgent: exitNoAgent, control.ErrForbidden: exitForbidden, control.ErrNotFrozen: exitNotFrozen} {
		if errors.Is(err, is) {
			return &exitError{code, err}
		}
	}
	return err
}
