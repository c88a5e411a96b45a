// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/internal/require"
)

// BenchmarkAgentAtRest is what the whole agent costs, as it is configured by default, with 50 containers on 8 simulated
// cards that do nothing. The in-process kubelet is part of it. One iteration is a second.
func BenchmarkAgentAtRest(b *testing.B) {
	n := newNode(b)
	config, err := load(b, nil, nil, "")
	if err != nil {
		b.Fatal(err)
	}
	config.KubeletDir, config.StateDir, config.PagesDir, config.TextfileDir = n.config.KubeletDir, n.config.StateDir, n.config.PagesDir, n.config.TextfileDir
	config.Library, config.ControlSocket = n.config.Library, filepath.Join(filepath.Dir(n.config.StateDir), "sock")
	config.NVMLLibrary = filepath.Join(require.Sim(b), "libnvidia-ml.so.1")
	n.config = config
	n.parts = parts{mountPages: store.MakePagesDir, timing: n.parts.timing}
	simulation := b.TempDir()
	if err := os.WriteFile(filepath.Join(simulation, "config"), []byte("gpus = 8\nmemory = 80GiB\nmodel = H100\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	b.Setenv("GPUSIM_DIR", simulation)
	agent := n.start()
	agent.allocatable(80)
	for i := range 50 {
		agent.allocate(fmt.Sprintf("pod-%02d", i), 1)
	}
	agent.eventually("all are known", func() bool {
		_, known := n.value("vgpud_slice_info", "pod=pod-49")
		return known
	})
	time.Sleep(3 * time.Second) // until it rests
	began, used := time.Now(), processTime(b)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	b.ReportMetric(100*(processTime(b)-used).Seconds()/time.Since(began).Seconds(), "%core")
}

// processTime is what this process has used of the CPU.
func processTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
