// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package standalone

import (
	"errors"
	"strings"
	"testing"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/source"
)

const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000000"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000001"
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

// Amounts that are hardly meant are said, and taken.
func TestOddAmounts(t *testing.T) {
	const total = 80 << 30
	for text, want := range map[string]string{
		"4096":    "--memory is 4096 bytes; did you mean 4096Mi?",
		" 1 ":     "--memory is 1 bytes; did you mean 1Mi?",
		"4K":      "--memory is 4096 bytes, less than any program on a GPU needs",
		"81Gi":    "--memory 81Gi is more than the GPU has (80 GiB), and limits nothing",
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
