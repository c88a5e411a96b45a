// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of which card vgpud exec takes, and of the whole way on the simulated driver.

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/require"
)

func TestChooseGPU(t *testing.T) {
	gpus := []source.GPU{{UUID: gpuA}, {UUID: gpuB, Index: 1}, {UUID: "GPU-cc", Index: 2, Err: errors.New("broken")}}
	down := errors.New("no driver")
	for _, test := range []struct {
		name, request, visible string
		gpus                   []source.GPU
		nvmlErr                error
		want, fault            string
	}{
		{"first", "", "", gpus, nil, gpuA, ""},
		{"index", "1", "", gpus, nil, gpuB, ""},
		{"UUID", gpuB, "", gpus, nil, gpuB, ""},
		{"beginning of a UUID", "GPU-bb", "", gpus, nil, gpuB, ""},
		{"first visible", "", "1,0", gpus, nil, gpuB, ""},
		{"first visible by UUID", "", gpuB, gpus, nil, gpuB, ""},
		{"flag wins over visible", "0", "1", gpus, nil, gpuA, ""},
		{"ambiguous", "GPU-", "", gpus, nil, "", "more than one"},
		{"no such index", "7", "", gpus, nil, "", "no such GPU"},
		{"negative", "-1", "", gpus, nil, "", "no such GPU"},
		{"text", "a100", "", gpus, nil, "", "no such GPU"},
		{"none visible", "", "-1", gpus, nil, "", "CUDA_VISIBLE_DEVICES"},
		{"broken card", "2", "", gpus, nil, "", "broken"},
		{"no card", "", "", nil, nil, "", "there is no GPU"},
		{"no NVML, full UUID", gpuA, "", nil, down, gpuA, ""},
		{"no NVML, visible UUID", "", gpuB, nil, down, gpuB, ""},
		{"no NVML, index", "0", "", nil, down, "", "full UUID"},
		{"no NVML, nothing", "", "", nil, down, "", "no driver"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := chooseGPU(test.request, test.visible, test.gpus, test.nvmlErr)
			if got.UUID != test.want || (err == nil) != (test.fault == "") || (err != nil && !strings.Contains(err.Error(), test.fault)) {
				t.Errorf("%q, %v; want %q, %q", got.UUID, err, test.want, test.fault)
			}
		})
	}
}

// The whole way on the simulated driver: the card is found through NVML, the program sees the slice and is refused at
// the byte beyond it.
func TestExecOnSimulatedGPU(t *testing.T) {
	simulator := require.Sim(t)
	client := filepath.Join(require.Build(t, "libvgpu.so", "sim/client"), "sim", "client")
	simulation := t.TempDir()
	if err := os.WriteFile(filepath.Join(simulation, "config"), []byte("gpus = 2\nmemory = 80GiB\nmemory_backing = none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, gpu := range []string{"", "1"} {
		command, base := vgpudExec(t, "--gpu="+gpu, "--nvml-library=", "--", client, "fill")
		command.Env = append(command.Env, "GPUSIM_DIR="+simulation, "LD_LIBRARY_PATH="+simulator)
		out, err := command.Output()
		if err != nil || !strings.Contains(string(out), "filled=1073741824 ") {
			t.Errorf("GPU %q: %s, %v; want 1 GiB and no byte more", gpu, out, err)
		}
		checkEmpty(t, base)
	}
}

// Amounts that are hardly meant are said, and taken.
func TestOddAmounts(t *testing.T) {
	const total = 80 << 30
	for text, want := range map[string]string{
		"4096":    "--memory is 4096 bytes; did you mean 4096Mi?",
		" 1 ":     "--memory is 1 bytes; did you mean 1Mi?",
		"4K":      "--memory is 4096 bytes, less than any program on a GPU needs",
		"81Gi":    "--memory 81Gi is more than the GPU has (80 GiB)",
		"80Gi":    "",
		"1Mi":     "",
		"0":       "",
		"2000000": "",
	} {
		memory, set, err := amount.ParseBytes(text)
		if err != nil || !set {
			t.Fatal(err)
		}
		if got := oddAmount(text, memory, total); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := oddAmount("81Gi", 81<<30, 0); got != "" {
		t.Errorf("on a card of unknown size: %q", got)
	}
}
