// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of which card vgpud exec takes, and of the whole way on the simulated driver.

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpud/vgpud/internal/require"
)

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
