// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_run.go is the daemon's subcommand: configuration, logger, signals, and then app.go.

package main

import (
	"os/signal"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/amount"
)

// garbagePercent is how much garbage there may be before it is collected, of what is in use; memoryLimit is from where on
// it is collected sooner. A node of 8 cards and 50 containers has some 8 MiB in use.
const (
	garbagePercent = 400
	memoryLimit    = 32 << 20
)

func newRunCommand() *cobra.Command {
	var printConfig bool
	command := &cobra.Command{
		Use:   "run",
		Short: "Run the node agent",
		Long: `Run the agent of a GPU node: offer slices to the kubelet, keep the containers' pages, watch the GPUs and write
metrics. SIGTERM and SIGINT stop it in order; running containers stay limited.

Each option can also be given as VGPUD_<OPTION> in the environment, or as a key of the YAML file that --config names.

Amounts of memory are ` + amount.BytesRule + `.`,
		Example: `  vgpud run --slices-per-gpu 4 --textfile-dir /var/lib/prometheus/node-exporter
  vgpud run --contention report --compute-mode hard
  vgpud run --config /etc/vgpud.yaml --print-config`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := loadConfig(command, environment())
			if err != nil {
				return err
			}
			log := config.newLogger(command.ErrOrStderr())
			config.warn(log)
			if printConfig {
				return config.Print(command.OutOrStdout())
			}
			// The agent's memory is small and its garbage short-lived: collecting seldom saves half of what it costs.
			debug.SetGCPercent(garbagePercent)
			debug.SetMemoryLimit(memoryLimit)
			ctx, stop := signal.NotifyContext(command.Context(), unix.SIGTERM, unix.SIGINT)
			defer stop()
			return runAgent(ctx, config, log, parts{})
		},
	}
	addConfigFlags(command)
	command.Flags().BoolVar(&printConfig, "print-config", false, "print the merged, validated configuration as YAML and exit")
	return command
}
