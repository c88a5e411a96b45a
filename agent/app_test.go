// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The whole agent, from Register over Allocate to the metrics file, against an in-process kubelet. The cards are
// scripted; TestAgentOnSimulatedDriver has the simulated driver under the real NVML adapter.

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
)

// From Register over Allocate to the metrics file, and back when the pod is gone.
func TestWholeAgent(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	agent.shows(1, "vgpud_plugin_registered")
	agent.shows(10, "vgpud_slices", "gpu_uuid="+gpuA, "state=free")
	key, devices := agent.allocate("benchmem-01", 1)
	uuid, _, _ := strings.Cut(devices[0], "::")

	book, err := limiter.OpenBook(n.pages(key))
	if err != nil {
		t.Fatal(err)
	}
	defer book.Close()
	if limit := book.LimitBytes(0); limit != sliceSize {
		t.Errorf("limit %d, want %d", limit, sliceSize)
	}
	if err := book.Reserve(0, limiter.KindDevice, sliceSize); err != nil {
		t.Fatal(err)
	}
	if err := book.Reserve(0, limiter.KindDevice, 1); !errors.Is(err, limiter.ErrOverLimit) {
		t.Errorf("the byte beyond the limit: %v", err)
	}
	labels := []string{"allocation=" + key, "gpu_uuid=" + uuid, "namespace=md", "pod=benchmem-01", "container=gmx"}
	agent.shows(sliceSize, "vgpud_slice_memory_limit_bytes", labels...)
	agent.shows(sliceSize, "vgpud_slice_memory_used_bytes", labels...)
	agent.shows(1, "vgpud_slice_memory_refusals_total", labels...)
	agent.shows(1, "vgpud_slice_memory_allocations_total", labels...)
	agent.shows(1, "vgpud_slice_info", append(labels, "slice="+devices[0])...)
	agent.shows(1, "vgpud_slices", "gpu_uuid="+uuid, "state=allocated")
	agent.shows(9, "vgpud_slices", "gpu_uuid="+uuid, "state=free")
	agent.shows(sliceSize, "vgpud_gpu_memory_held_bytes", "gpu_uuid="+uuid)
	agent.shows(1, "vgpud_allocations_total", "result=success")
	if text := n.prom(); !strings.Contains(text, "vgpud_allocate_duration_seconds_count 1\n") || !strings.Contains(text, `vgpud_allocate_duration_seconds_bucket{le="5"} 1`) {
		t.Errorf("the histogram of Allocate lacks the call:\n%s", text)
	}
	for _, name := range []string{monitor.SourceNVML, monitor.SourceKubelet, monitor.SourcePodResources, monitor.SourcePods, monitor.SourcePages, monitor.SourceProcs} {
		agent.shows(1, "vgpud_source_up", "source="+name)
	}

	if err := n.kubelet.RemovePod("uid-benchmem-01"); err != nil {
		t.Fatal(err)
	}
	agent.eventually("the pages are removed", func() bool {
		_, err := os.Stat(n.pages(key))
		return errors.Is(err, fs.ErrNotExist)
	})
	agent.shows(0, "vgpud_gpu_memory_held_bytes", "gpu_uuid="+uuid)
	agent.shows(10, "vgpud_slices", "gpu_uuid="+uuid, "state=free")
	if text := n.prom(); strings.Contains(text, key) {
		t.Errorf("the metrics still name the allocation:\n%s", text)
	}
	agent.stop()
	if _, err := os.Stat(filepath.Join(n.config.TextfileDir, metrics.FileName)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the metrics file after an orderly stop: %v", err)
	}
}

// A card that fails is withdrawn, and returns; what is allocated on it stays.
func TestGPUFailsAndRecovers(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	broken := card(gpuA, 0)
	broken.Err, broken.TotalBytes = errors.New("read memory: injected"), 0
	n.gpus.Set(broken, card(gpuB, 1))
	agent.allocatable(10)
	agent.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+gpuA, "reason=gpu-unreadable")
	agent.shows(10, "vgpud_slices", "gpu_uuid="+gpuA, "state=withdrawn")
	n.gpus.Set(card(gpuA, 0), card(gpuB, 1))
	agent.allocatable(20)
	agent.shows(1, "vgpud_gpu_healthy", "gpu_uuid="+gpuA, "reason=ok")
	n.gpus.Fail(errors.New("the driver went away"))
	agent.allocatable(0)
	agent.shows(0, "vgpud_source_up", "source=nvml")
	n.gpus.Set(card(gpuA, 0), card(gpuB, 1))
	agent.allocatable(20)
	if got := strings.Count(agent.log.String(), "the driver went away"); got > 4 {
		t.Errorf("a lasting fault was logged %d times", got)
	}
}

// Without a driver the agent registers with nothing to offer, and offers when the driver comes.
func TestDriverComesLate(t *testing.T) {
	n := newNode(t)
	n.gpus.Fail(errors.New("no driver yet"))
	agent := n.start()
	agent.shows(1, "vgpud_plugin_registered")
	agent.shows(0, "vgpud_source_up", "source=nvml")
	n.gpus.Set(card(gpuA, 0))
	agent.allocatable(10)
}

// Whatever happens to a usage page, the agent goes on, the page is put right and the limit is never raised.
func TestTamperedPages(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 1)
	usage := filepath.Join(n.pages(key), limiter.UsageFile)
	info, err := os.Stat(usage)
	if err != nil {
		t.Fatal(err)
	}
	for name, tamper := range map[string]func() error{
		"truncated": func() error { return os.Truncate(usage, 0) },
		"cut":       func() error { return os.Truncate(usage, info.Size()/2) },
		"grown":     func() error { return os.Truncate(usage, info.Size()*16) },
		"zeroed":    func() error { return overwrite(usage, make([]byte, info.Size())) },
		"garbage":   func() error { return overwrite(usage, bytes.Repeat([]byte{0xa5, 0x00, 0xff}, int(info.Size())/3)) },
		"unlinked":  func() error { return os.Remove(usage) },
		"both gone": func() error {
			return errors.Join(os.Remove(usage), os.Remove(filepath.Join(n.pages(key), limiter.LimitsFile)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent.nextTick() // or the tick that restored the last one would mend this one, too, and count it once
			if err := tamper(); err != nil {
				t.Fatal(err)
			}
			agent.eventually("the page is readable and of its size", func() bool {
				now, statErr := os.Stat(usage)
				_, readErr := limiter.ReadUsage(n.pages(key))
				return statErr == nil && readErr == nil && now.Size() == info.Size()
			})
			limits, err := limiter.ReadLimits(n.pages(key))
			if err != nil || len(limits.Devices) != 1 || limits.Devices[0].MemoryLimitBytes != sliceSize {
				t.Errorf("limits %+v, %v", limits, err)
			}
		})
	}
	agent.eventually("tampering is counted", func() bool {
		count, _ := n.value("vgpud_tampered_pages_total")
		return count >= 5
	})
}

func overwrite(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// Allocations outlive the agent, and their pages outlive even a reboot that empties the tmpfs.
func TestRestartAndReboot(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 2)
	agent.shows(sliceSize, "vgpud_slice_memory_limit_bytes", "allocation="+key, "gpu_uuid="+gpuA, "pod=p")
	agent.stop()
	before, err := limiter.ReadLimits(n.pages(key))
	if err != nil {
		t.Fatalf("the pages after the agent has stopped: %v", err)
	}
	again := n.start()
	again.allocatable(20)
	again.shows(sliceSize, "vgpud_slice_memory_limit_bytes", "allocation="+key, "gpu_uuid="+gpuB, "pod=p")
	if after, err := limiter.ReadLimits(n.pages(key)); err != nil || after.Epoch != before.Epoch {
		t.Errorf("a restart of the agent touched the pages of a running container: %+v %+v %v", before, after, err)
	}
	again.stop()
	if err := os.RemoveAll(n.config.PagesDir); err != nil {
		t.Fatal(err)
	}
	rebooted := n.start()
	rebooted.eventually("the pages are there again", func() bool {
		limits, err := limiter.ReadLimits(n.pages(key))
		return err == nil && len(limits.Devices) == 2 && limits.Devices[0].MemoryLimitBytes == sliceSize
	})
	if _, err := n.kubelet.StartContainer(t.Context(), "uid-p", "gmx"); err != nil {
		t.Error(err)
	}
}

func TestOrphanedPagesAreRemovedAtStart(t *testing.T) {
	n := newNode(t)
	if err := os.Mkdir(n.config.PagesDir, 0o711); err != nil {
		t.Fatal(err)
	}
	orphan := strings.Repeat("ab", 16)
	if err := limiter.Create(n.pages(orphan), limiter.Limits{Key: orphan, Devices: []limiter.Device{{UUID: gpuA, SliceCount: 1}}}); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.pages("lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	agent := n.start()
	agent.allocatable(20)
	if _, err := os.Stat(n.pages(orphan)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("pages without a record: %v", err)
	}
	if _, err := os.Stat(n.pages("lost+found")); err != nil {
		t.Errorf("a directory that is not ours: %v", err)
	}
}

func TestSecondAgentIsRefused(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	err := runAgent(t.Context(), n.config, slog.New(slog.DiscardHandler), n.parts)
	if err == nil || !strings.Contains(err.Error(), n.config.StateDir) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("error %v, want the directory and the process that holds it", err)
	}
	agent.allocatable(20)
}

// What cannot be offered ends the start with the numbers, before anything is registered.
func TestImpossibleConfigurationIsRefusedAtStart(t *testing.T) {
	for name, change := range map[string]func(*node){
		"list too large":     func(n *node) { n.config.SlicesPerGPU = 60000 },
		"library missing":    func(n *node) { n.config.Library = "/nonexistent/libvgpu.so" },
		"library no library": func(n *node) { n.config.Library = "/proc/self/cmdline" },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			change(n)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			log := &logtest.Buffer{}
			if err := runAgent(ctx, n.config, slog.New(slog.NewTextHandler(log, nil)), n.parts); err == nil {
				t.Error("the agent ran")
			}
			if strings.Contains(log.String(), "stopped") {
				t.Errorf("what never started says that it has stopped:\n%s", log)
			}
			if attempts := n.kubelet.Attempts(); attempts != 0 {
				t.Errorf("%d registrations", attempts)
			}
		})
	}
}

// A margin that leaves nothing of a card, and a card that is too small for its slices, are said with their numbers and
// keep no other card back.
func TestCardsWithoutUsableMemory(t *testing.T) {
	n := newNode(t)
	n.config.MemoryMarginBytes = 1 << 30
	small := card("GPU-cccccccc-0000-4000-8000-000000000002", 2)
	small.TotalBytes = 1<<30 + 5<<20
	margin := card("GPU-dddddddd-0000-4000-8000-000000000003", 3)
	margin.TotalBytes = 1 << 30
	reserve := card("GPU-eeeeeeee-0000-4000-8000-000000000004", 4)
	reserve.ReservedBytes = reserve.TotalBytes + 1
	n.gpus.Set(card(gpuA, 0), small, margin, reserve)
	agent := n.start()
	agent.allocatable(10)
	for _, gpu := range []source.GPU{small, margin, reserve} {
		agent.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+gpu.UUID, "reason=no-usable-memory")
		line := fmt.Sprintf("gpu=%s reason=no-usable-memory detail=\"of %d bytes the driver keeps %d and the margin is %d",
			gpu.UUID, gpu.TotalBytes, gpu.ReservedBytes, n.config.MemoryMarginBytes)
		if got := strings.Count(agent.log.String(), line); got != 1 {
			t.Errorf("%q is in the log %d times", line, got)
		}
	}
}

// Without a usable textfile directory the agent serves, and says so once.
func TestTextfileDirectoryMissing(t *testing.T) {
	n := newNode(t)
	if err := os.Remove(n.config.TextfileDir); err != nil {
		t.Fatal(err)
	}
	agent := n.start()
	agent.allocatable(20)
	agent.allocate("p", 1)
	agent.eventually("the fault is logged", func() bool { return strings.Contains(agent.log.String(), n.config.TextfileDir) })
	time.Sleep(5 * testTick) // further ticks, in which it must not be said again
	if got := strings.Count(agent.log.String(), `msg="metrics not written" component=metrics stage=publish error=`); got != 1 {
		t.Errorf("said %d times, want once", got)
	}
	if got := strings.Count(agent.log.String(), "level=WARN"); got != 1 {
		t.Errorf("%d warnings of one fault:\n%s", got, agent.log)
	}
	agent.stop() // in order: there is nothing to remove
	agent = n.start()
	if err := os.Mkdir(n.config.TextfileDir, 0o755); err != nil {
		t.Fatal(err)
	}
	agent.shows(1, "vgpud_plugin_registered")
}

// A node on which the kubelet has not started yet has one fault, not one per thing that the kubelet would tell.
func TestNoKubeletYet(t *testing.T) {
	n := newNode(t)
	n.config.KubeletDir = filepath.Join(t.TempDir(), "none")
	agent := n.start()
	agent.shows(0, "vgpud_source_up", "source="+monitor.SourcePods)
	agent.nextTick()
	if got := strings.Count(agent.log.String(), "level=WARN"); got != 1 || !strings.Contains(agent.log.String(), "the kubelet is not there yet") {
		t.Errorf("%d warnings, want one that the kubelet is not there:\n%s", got, agent.log)
	}
}

// A kubelet that restarts finds all slices again, and the running container keeps its allocation.
func TestKubeletRestarts(t *testing.T) {
	n := newNode(t)
	agent := n.start()
	agent.allocatable(20)
	key, _ := agent.allocate("p", 1)
	if err := n.kubelet.Restart(5 * testTick); err != nil {
		t.Fatal(err)
	}
	agent.allocatable(20)
	agent.shows(sliceSize, "vgpud_slice_memory_limit_bytes", "allocation="+key)
}

// The same from NVML up: the simulated driver under the real adapter.
func TestAgentOnSimulatedDriver(t *testing.T) {
	n := newNode(t)
	n.config.NVMLLibrary = filepath.Join(require.Sim(t), "libnvidia-ml.so.1")
	n.parts.gpus = nil
	simulation := t.TempDir()
	if err := os.WriteFile(filepath.Join(simulation, "config"), []byte("gpus = 2\nmemory = 80GiB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUSIM_DIR", simulation)
	agent := n.start()
	agent.allocatable(20)
	key, devices := agent.allocate("p", 1)
	uuid, _, _ := strings.Cut(devices[0], "::")
	agent.shows(sliceSize, "vgpud_slice_memory_limit_bytes", "allocation="+key, "gpu_uuid="+uuid, "pod=p")
	agent.shows(80<<30, "vgpud_gpu_memory_total_bytes", "gpu_uuid="+uuid)
}
