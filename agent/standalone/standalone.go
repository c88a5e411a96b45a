// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package standalone runs a command in a slice without Kubernetes: the same pages and the same library, for root and for
// ordinary users. gpu.go chooses the card, allocation.go keeps the files, child.go the process.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/nvml"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Exit codes of our own failures, as env(1) and shells have them.
const (
	ExitSetup         = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// Options say what the command may have, and of what.
type Options struct {
	Memory, Cores, GPU, NVMLLibrary string // texts of the user; empty: not given, or the default

	MemoryGiven, CoresGiven bool                   // if only as an empty text
	Report                  bool                   // say at the end what was used
	Library                 func() (string, error) // finds libvgpu.so
	Environ                 []string               // of the command
	Variables               map[string]string      // the same by name
}

// grant is what the options ask for of a GPU, which is still to be found.
func (o Options) grant() (limiter.Device, error) {
	device := limiter.Device{SliceCount: 1, MemoryLimitBytes: limiter.MaxBytes}
	memory, memorySet, err := amount.ParseBytes(o.Memory)
	if err != nil {
		return device, fmt.Errorf("--memory: %w", err)
	}
	cores, coresSet, err := amount.ParsePercent(o.Cores)
	switch {
	case err != nil:
		return device, fmt.Errorf("--cores: %w", err)
	case o.MemoryGiven && !memorySet:
		return device, errors.New("--memory is empty: want " + amount.BytesExamples)
	case o.CoresGiven && !coresSet:
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

// Run makes the slice, runs the command and takes the slice away. The code is the command's when err is nil, else one of
// the above. say tells what is odd about the amount, and what was used.
func Run(ctx context.Context, options Options, arguments []string, say func(string)) (int, error) {
	device, err := options.grant()
	if err != nil {
		return ExitSetup, err
	}
	program, code, err := findProgram(arguments[0])
	if err != nil {
		return code, err
	}
	library, err := options.Library()
	if err != nil {
		return ExitSetup, err
	}
	gpu, err := findGPU(ctx, options)
	if err != nil {
		return ExitSetup, err
	}
	device.UUID = gpu.UUID
	if odd := oddAmount(options.Memory, device.MemoryLimitBytes, gpu.TotalBytes); odd != "" {
		say(odd)
	}
	held, err := newAllocation(options.Variables, library, device)
	if err != nil {
		return ExitSetup, err
	}
	began := time.Now()
	code, left, err := runChild(program, arguments, held.environment(options.Environ, options.Variables))
	if options.Report && err == nil {
		held.report(time.Since(began), left, say)
	}
	held.Close(left)
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
			return "", ExitNotExecutable, fmt.Errorf("%s: cannot be executed", name)
		}
		return "", ExitNotFound, fmt.Errorf("%s: command not found", name)
	}
	path, err = filepath.Abs(path)
	return path, ExitSetup, err
}

// findGPU asks NVML for the cards and chooses one.
func findGPU(ctx context.Context, options Options) (source.GPU, error) {
	reader := nvml.New(options.NVMLLibrary, nvml.ExecPatience, time.Now)
	gpus, err := reader.GPUs(ctx)
	gpu, chooseErr := chooseGPU(options.GPU, options.Variables["CUDA_VISIBLE_DEVICES"], gpus, err)
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
		return fmt.Sprintf("--memory %s is more than the GPU has (%s), and limits nothing", text, amount.FormatBytes(total))
	}
	return ""
}

// environment adds to environ what makes a program run in the slice. An LD_PRELOAD of the user stays, after ours.
func (s *allocation) environment(environ []string, variables map[string]string) []string {
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
