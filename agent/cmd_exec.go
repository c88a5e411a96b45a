// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_exec.go runs a command in a slice without Kubernetes: the same pages and the same library, for root and for
// ordinary users. cmd_exec_gpu.go chooses the card, cmd_exec_slice.go keeps the files, cmd_exec_child.go the process.

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/nvml"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Exit codes of vgpud exec's own failures, as env(1) and shells have them.
const (
	exitSetup         = 125
	exitNotExecutable = 126
	exitNotFound      = 127
)

// execOptions are the flags of vgpud exec.
type execOptions struct {
	memory, cores, gpu, library, nvmlLibrary string

	memoryGiven, coresGiven bool // if only as an empty text
	report                  bool
}

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
	var options execOptions
	command := &cobra.Command{
		Use:   "exec [--memory AMOUNT] [--cores PERCENT] [--gpu UUID|INDEX] [--report] -- COMMAND [ARGUMENT...]",
		Short: "Run a command in a slice, without Kubernetes",
		Long:  execHelp,
		Example: `  vgpud exec --memory 4Gi -- gmx mdrun -s bench.tpr
  vgpud exec --memory 4Gi --cores 30 --report -- ffmpeg -hwaccel cuda -i in.mp4 out.mp4`,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return &exitError{exitSetup, errors.New("no command: vgpud exec --memory 4Gi -- COMMAND")}
			}
			return nil
		},

		DisableFlagsInUseLine: true, // flags behind COMMAND are the command's
		RunE: func(command *cobra.Command, arguments []string) error {
			say := func(text string) { fmt.Fprintf(command.ErrOrStderr(), "vgpud: %s\n", text) }
			options.memoryGiven, options.coresGiven = command.Flags().Changed("memory"), command.Flags().Changed("cores")
			code, err := runExec(command.Context(), options, arguments, environment(), say)
			if err == nil && code == 0 {
				return nil
			}
			return &exitError{code, err}
		},
	}
	command.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return &exitError{exitSetup, seeHelp(command, err)}
	})
	flags := command.Flags()
	flags.SetInterspersed(false)
	flags.StringVar(&options.memory, "memory", "", "`AMOUNT` of device memory that the command may hold, e.g. 4Gi")
	flags.StringVar(&options.cores, "cores", "", "`PERCENT` of the GPU's time that the command may use, 1 to 100; default: not limited")
	flags.BoolVar(&options.report, "report", false, "say at the end how much GPU time was granted, used and waited for")
	flags.StringVar(&options.gpu, "gpu", "", "`UUID|INDEX` of the GPU; default: the first visible one")
	flags.StringVar(&options.library, "library", "", "libvgpu.so to use, a `FILE`; default: beside this program, or in ../lib/vgpud")
	flags.StringVar(&options.nvmlLibrary, "nvml-library", "", "NVML library to load, a `FILE`; default: libnvidia-ml.so.1 as the loader finds it")
	return command
}

// grant is what the options ask for of a GPU, which is still to be found.
func (o execOptions) grant() (limiter.Device, error) {
	device := limiter.Device{SliceCount: 1, MemoryLimitBytes: limiter.MaxBytes}
	memory, memorySet, err := amount.ParseBytes(o.memory)
	if err != nil {
		return device, fmt.Errorf("--memory: %w", err)
	}
	cores, coresSet, err := amount.ParsePercent(o.cores)
	switch {
	case err != nil:
		return device, fmt.Errorf("--cores: %w", err)
	case o.memoryGiven && !memorySet:
		return device, errors.New("--memory is empty: want " + amount.BytesExamples)
	case o.coresGiven && !coresSet:
		return device, errors.New("--cores is empty: want " + amount.PercentRule)
	case !memorySet && !coresSet:
		return device, errors.New("--memory or --cores is needed: how much device memory the command may hold, e.g. 4Gi, " +
			"or how much of the GPU's time it may use, in percent")
	}
	if memorySet {
		device.MemoryLimitBytes = memory
	}
	if coresSet && cores < amount.WholePercent {
		share := uint32(cores) * (limiter.PPM / amount.WholePercent)
		device.Compute = limiter.Compute{Mode: limiter.ComputeHard, SharePPM: share, CeilingPPM: share}
	}
	return device, nil
}

// runExec makes the slice, runs the command and takes the slice away. The code is the command's when err is nil.
// say tells what is odd about the amount, and what was used.
func runExec(ctx context.Context, options execOptions, arguments, environ []string, say func(string)) (int, error) {
	device, err := options.grant()
	if err != nil {
		return exitSetup, err
	}
	variables := environmentMap(environ)
	program, code, err := findProgram(arguments[0])
	if err != nil {
		return code, err
	}
	library := options.library
	if library == "" {
		if library, err = findLibrary(); err != nil {
			return exitSetup, err
		}
	}
	gpu, err := findGPU(ctx, options, variables)
	if err != nil {
		return exitSetup, err
	}
	device.UUID = gpu.UUID
	if odd := oddAmount(options.memory, device.MemoryLimitBytes, gpu.TotalBytes); odd != "" {
		say(odd)
	}
	slice, err := newExecSlice(variables, library, device)
	if err != nil {
		return exitSetup, err
	}
	began := time.Now()
	code, left, err := runChild(program, arguments, slice.environment(environ, variables))
	if options.report && err == nil {
		slice.report(time.Since(began), left, say)
	}
	slice.Close(left)
	return code, err
}

// findProgram looks a command up as a shell would.
func findProgram(name string) (path string, code int, err error) {
	path, err = exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return "", exitNotExecutable, fmt.Errorf("%s: cannot be executed", name)
		}
		return "", exitNotFound, fmt.Errorf("%s: command not found", name)
	}
	path, err = filepath.Abs(path)
	return path, exitSetup, err
}

// findGPU asks NVML for the cards and chooses one.
func findGPU(ctx context.Context, options execOptions, variables map[string]string) (source.GPU, error) {
	reader := nvml.New(options.nvmlLibrary, nvml.ExecPatience, time.Now)
	gpus, err := reader.GPUs(ctx)
	gpu, chooseErr := chooseGPU(options.gpu, variables["CUDA_VISIBLE_DEVICES"], gpus, err)
	return gpu, errors.Join(chooseErr, reader.Close(ctx))
}

// oddAmount says why an amount is hardly what was meant; empty: it may well be. total is the card's size, 0 when it is not
// known. That nothing may be held (0) is said on purpose.
func oddAmount(text string, memory, total uint64) string {
	text = strings.TrimSpace(text)
	_, unit := amount.CutDigits(text)
	switch {
	case text == "":
		return ""
	case memory > 0 && memory < 1<<20 && unit == "":
		return fmt.Sprintf("--memory is %d bytes; did you mean %sMi?", memory, text)
	case memory > 0 && memory < 1<<20:
		return fmt.Sprintf("--memory is %d bytes, less than any program on a GPU needs", memory)
	case total > 0 && memory > total:
		return fmt.Sprintf("--memory %s is more than the GPU has (%s)", text, amount.FormatBytes(total))
	}
	return ""
}

// environment adds to environ what makes a program run in the slice. An LD_PRELOAD of the user stays, after ours.
func (s *execSlice) environment(environ []string, variables map[string]string) []string {
	preload := s.library
	if own := variables["LD_PRELOAD"]; own != "" {
		preload += ":" + own
	}
	added := map[string]string{"LD_PRELOAD": preload, plugin.AllocationVariable: s.key}
	if _, within := variables[plugin.ComputeVariable]; !within || s.device.Compute.Mode != limiter.ComputeNone {
		added[plugin.ComputeVariable] = plugin.ComputeText(ledger.Compute{Mode: s.device.Compute.Mode.String(), SharePPM: s.device.Compute.SharePPM})
	}
	if _, set := variables["CUDA_VISIBLE_DEVICES"]; !set {
		added["CUDA_VISIBLE_DEVICES"] = s.device.UUID
	}
	var result []string
	for _, line := range environ {
		name, _, _ := strings.Cut(line, "=")
		if _, replaced := added[name]; !replaced {
			result = append(result, line)
		}
	}
	for name, value := range added {
		result = append(result, name+"="+value)
	}
	return result
}
