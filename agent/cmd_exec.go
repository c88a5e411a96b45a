// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_exec.go is the subcommand that runs a command in a slice without Kubernetes; package standalone does it.

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/standalone"
)

// execHelp is the text of --help.
const execHelp = `Run a command that may hold at most --memory of device memory on one GPU, and use at most --cores percent of its
time, it and all its children together. At least one of the two is needed. The command sees the memory as if it were the
whole card's. No root is needed.

--cores is a cap on GPU time, whatever else runs on the card: a command that launches more is kept waiting before a
launch, never in the middle of one. What one long kernel takes too much is waited for afterwards, at most 10 s at once
(or as long as the next launch costs by itself, if that is more), and the rest later. 100 is no cap. There is no agent
here to compare the program's own measurements with the driver's; where other programs use the GPU at the same time,
these measurements are too high and the command gets less than its part.
--report says at the end, on standard error, what was used.

Without --gpu it is the first GPU that is visible: the first entry of CUDA_VISIBLE_DEVICES where that is set,
the card with index 0 otherwise. Indices are NVML's (nvidia-smi's). Every other GPU has the limit 0.
CUDA_VISIBLE_DEVICES is set to the chosen GPU unless it is set already. Where NVML cannot be loaded, the GPU has to be
given by its full UUID.

Signals are passed on, and the command's exit code is returned: 128+n when a signal n ended it; 125 when the slice
could not be made, 126 when the command cannot be executed, 127 when there is no such command. Programs that the command
leaves running stay limited; the slice's files go at a later vgpud exec.

Not limited are programs that do not load libvgpu, which is named in LD_PRELOAD: those that are linked statically or change
their user id, those that are started with an emptied environment (env -i) or another LD_PRELOAD, and what other services
start for the command (at, sbatch, docker run). A vgpud exec within another, or within a container, only lowers the limit.

AMOUNT is ` + amount.BytesRule + `.
PERCENT is ` + amount.PercentRule + `.`

func newExecCommand() *cobra.Command {
	var options standalone.Options
	var library string
	command := &cobra.Command{
		Use:   "exec [--memory AMOUNT] [--cores PERCENT] [--gpu UUID|INDEX] [--report] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a slice, without Kubernetes",
		Long:  execHelp,
		Example: `  vgpud exec --memory 4Gi -- gmx mdrun -s bench.tpr
  vgpud exec --memory 4Gi --cores 30 --report -- ffmpeg -hwaccel cuda -i in.mp4 out.mp4`,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return &exitError{standalone.ExitSetup, errors.New("no command: vgpud exec --memory 4Gi -- COMMAND")}
			}
			return nil
		},

		DisableFlagsInUseLine: true, // flags behind COMMAND are the command's
		RunE: func(command *cobra.Command, arguments []string) error {
			say := func(text string) { fmt.Fprintf(command.ErrOrStderr(), "vgpud: %s\n", text) }
			options.MemoryGiven, options.CoresGiven = command.Flags().Changed("memory"), command.Flags().Changed("cores")
			options.Environ = environment()
			options.Variables = environmentMap(options.Environ)
			options.Library = func() (string, error) {
				if library != "" {
					return library, nil
				}
				return findLibrary()
			}
			code, err := standalone.Run(command.Context(), options, arguments, say)
			if err == nil && code == 0 {
				return nil
			}
			return &exitError{code, err}
		},
	}
	command.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return &exitError{standalone.ExitSetup, seeHelp(command, err)}
	})
	flags := command.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&options.Memory, "memory", "", "`AMOUNT` of device memory that the command may hold, e.g. 4Gi")
	flags.StringVar(&options.Cores, "cores", "", "`PERCENT` of the GPU's time that the command may use, 1 to 100; default: not limited")
	flags.BoolVar(&options.Report, "report", false, "say at the end how much GPU time was granted, used and waited for")
	flags.StringVar(&options.GPU, "gpu", "", "`UUID|INDEX` of the GPU; default: the first visible one")
	flags.StringVar(&library, "library", "", "libvgpu.so to use, a `FILE`; default: beside this program, or in ../lib/vgpud")
	flags.StringVar(&options.NVMLLibrary, "nvml-library", "", "NVML library to load, a `FILE`; default: libnvidia-ml.so.1 as the loader finds it")
	return command
}
