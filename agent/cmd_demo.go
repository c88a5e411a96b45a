// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_demo.go is the subcommand that walks a newcomer through vgpud; package demo has the story.

package main

import (
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/vgpud/vgpud/agent/demo"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/plugin"
)

// exitNoReader is what a shell shows of a program whose reader has gone.
const exitNoReader = 128 + int(unix.SIGPIPE)

// demoSignals end the demo. Under nohup it outlives its terminal.
func demoSignals() []os.Signal {
	signals := []os.Signal{unix.SIGTERM, unix.SIGINT}
	if !signal.Ignored(unix.SIGHUP) {
		signals = append(signals, unix.SIGHUP)
	}
	return signals
}

func newDemoCommand() *cobra.Command {
	var options demo.Options
	command := &cobra.Command{
		Use:   "demo",
		Short: "Walk through vgpud on a simulated GPU",
		Long: `Walk through vgpud on two simulated GPUs with an in-process kubelet: registration, lists, a GPU that fails and
recovers, an allocation, what a program in the slice sees, where it is refused, and the metrics. It needs no GPU, no
cluster and no root, takes some seconds, and leaves nothing behind.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), demoSignals()...)
			defer stop()
			// A reader that has gone (| head) is an error of the write, which cleans up, and not the end of the process.
			signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
			if err := completeDemo(command, &options); err != nil {
				return err
			}
			err := demo.Run(ctx, options)
			if errors.Is(err, demo.ErrNoReader) {
				if err.Error() == demo.ErrNoReader.Error() {
					err = nil // no other fault came with it
				}
				return &exitError{exitNoReader, err}
			}
			return err
		},
	}
	command.Flags().BoolVar(&options.JSON, "json", false, "print one JSON object per step")
	command.Flags().BoolVar(&options.DryRun, "dry-run", false,
		"show the protocol messages alone: no other process, made-up GPUs")
	return command
}

// completeDemo fills in what depends on where the program is and on what it writes to.
func completeDemo(command *cobra.Command, options *demo.Options) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	options.Program, options.SimDir = program, filepath.Join(filepath.Dir(program), "sim")
	if options.Library, err = findLibrary(); err != nil {
		return err
	}
	options.Environ = environment()
	options.Out = command.OutOrStdout()
	options.Pages = func(dir string) plugin.Pages {
		return store.NewPages(dir, store.MakePagesDir, slog.New(slog.DiscardHandler))
	}
	variables := environmentMap(options.Environ)
	file, isFile := options.Out.(*os.File)
	options.Colour = isFile && term.IsTerminal(int(file.Fd())) && variables["NO_COLOR"] == "" && variables["TERM"] != "dumb"
	return nil
}
