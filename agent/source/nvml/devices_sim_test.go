// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The counters as the real library's API gives them: the simulated driver under go-nvml, with traffic of real processes.

package nvml

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/require"
)

var child = flag.Bool("child", false, "this process is for one test alone")

// simulated is a machine with simulated cards.
type simulated struct {
	t         *testing.T
	build     string
	directory string
}

// inChild says whether the test is in a process of its own; else it has run there. The library remembers the cards of the
// first directory that it saw.
func inChild(t *testing.T) bool {
	t.Helper()
	if *child {
		return true
	}
	require.Sim(t)
	command := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-child", "-test.timeout=5m")
	if out, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func newSimulated(t *testing.T, config string) *simulated {
	t.Helper()
	s := &simulated{t: t, build: require.Sim(t), directory: t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.directory, "config"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GPUSIM_DIR", s.directory)
	return s
}

func (s *simulated) reader() *Reader {
	s.t.Helper()
	reader := New(filepath.Join(s.build, "libnvidia-ml.so.1"), time.Minute, time.Now)
	s.t.Cleanup(func() {
		if err := reader.Close(s.t.Context()); err != nil && s.t.Context().Err() == nil {
			s.t.Error(err)
		}
	})
	return reader
}

// command runs a program of the simulation beside the test.
func (s *simulated) command(name string, arguments ...string) *exec.Cmd {
	command := exec.Command(filepath.Join(s.build, name), arguments...)
	command.Env = append(os.Environ(), "LD_LIBRARY_PATH="+s.build)
	return command
}

func (s *simulated) set(arguments ...string) {
	s.t.Helper()
	if out, err := s.command("gpusim", append([]string{"set"}, arguments...)...).CombinedOutput(); err != nil {
		s.t.Fatalf("gpusim set %v: %v\n%s", arguments, err, out)
	}
}

// flood runs a program that copies or launches until the test ends.
func (s *simulated) flood(arguments ...string) *exec.Cmd {
	s.t.Helper()
	command := s.command("flood", arguments...)
	if err := command.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	return command
}

// until reads until a card satisfies the condition, at the pace of quick looks.
func (s *simulated) until(reader *Reader, what string, quick []string, condition func(source.DeviceSample) bool) source.DeviceSample {
	s.t.Helper()
	var last []source.DeviceSample
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(120 * time.Millisecond) {
		if last = devices(s.t, reader, quick...); len(last) > 0 && condition(last[0]) {
			return last[0]
		}
	}
	s.t.Fatalf("never: %s; last %+v", what, last)
	return source.DeviceSample{}
}

// A card with GPM: each figure is a mean over what lies between two looks, and shows what runs.
func TestSimulatedGPM(t *testing.T) {
	if !inChild(t) {
		return
	}
	s := newSimulated(t, "gpus = 2\nmemory = 80GiB\nmodel = H100\ncopies = timed\ncontext_overhead = 300MiB\n")
	reader := s.reader()
	idle := s.until(reader, "GPM of an idle card", nil, func(d source.DeviceSample) bool { return d.DRAM.Known && d.PCIeRX.Known && d.Busy.Known })
	if idle.DRAM.Period < gpmLeast || idle.DRAM.Value > 0.05 || idle.Err != nil || idle.Sharing != source.SharingTimeSliced || idle.Throttle != 0 {
		t.Errorf("idle: %+v", idle)
	}
	if idle.LinkGeneration == 0 || idle.LinkGeneration > idle.LinkGenerationMax || idle.LinkWidth == 0 || idle.SMClockMHz == 0 || idle.MemoryClockMaxMHz == 0 {
		t.Errorf("link and clocks: %+v", idle)
	}
	program := s.flood("kernel=busy_2ms_dram60")
	busy := s.until(reader, "a kernel that uses the memory", []string{idle.GPUUUID}, func(d source.DeviceSample) bool { return d.DRAM.Value > 0.4 && d.Busy.Value > 0.7 })
	if busy.DRAM.Value > 0.75 || busy.DRAM.Period < gpmLeast || busy.DRAM.Period > 5*time.Second {
		t.Errorf("it uses 60 %% of the bandwidth: %+v", busy.DRAM)
	}
	memories, err := reader.ProcessMemory(t.Context())
	if err != nil || len(memories) != 1 || memories[0].PID != program.Process.Pid || memories[0].UsedBytes < 300<<20 {
		t.Errorf("processes %+v, %v; want %d", memories, err, program.Process.Pid)
	}
	_ = program.Process.Kill()
	s.flood("kernel=none", "copy=htod", "copy_bytes=67108864", "pinned=1")
	s.until(reader, "copies to the card", nil, func(d source.DeviceSample) bool { return d.PCIeRX.Value > 5e9 && d.PCIeTX.Value < d.PCIeRX.Value/10 })
}

// What changes on a card while the agent runs is seen by the next look at all cards.
func TestSimulatedChanges(t *testing.T) {
	if !inChild(t) {
		return
	}
	s := newSimulated(t, "gpus = 1\nmemory = 80GiB\nmodel = H100\n")
	reader := s.reader()
	before := s.until(reader, "a card", nil, func(d source.DeviceSample) bool { return d.LinkWidth > 0 })
	for _, change := range []struct {
		what string
		set  []string
		seen func(source.DeviceSample) bool
	}{
		{"the link is trained down", []string{"link_generation=3", "link_width=8"}, func(d source.DeviceSample) bool {
			return d.LinkGeneration == 3 && d.LinkWidth == 8 && d.LinkWidthMax == before.LinkWidthMax
		}},
		{"too hot", []string{"throttle=0x40", "clock_permille=500"}, func(d source.DeviceSample) bool {
			return d.Throttle&source.ThrottleThermal != 0 && d.SMClockMHz < d.SMClockMaxMHz
		}},
		{"exclusive", []string{"compute_mode=3"}, func(d source.DeviceSample) bool { return d.Sharing == source.SharingExclusive }},
	} {
		s.set(change.set...)
		s.until(reader, change.what, nil, change.seen)
	}
}

// Processes that share a card through MPS show how it is shared.
func TestSimulatedMPS(t *testing.T) {
	if !inChild(t) {
		return
	}
	s := newSimulated(t, "gpus = 1\nmemory = 80GiB\nsharing = mps\n")
	s.flood("kernel=busy_1ms")
	s.until(s.reader(), "MPS", nil, func(d source.DeviceSample) bool { return d.Sharing == source.SharingMPS })
}

// A card without GPM: PCIe by the counter that blocks, no bandwidth of its memory.
func TestSimulatedOlderCard(t *testing.T) {
	if !inChild(t) {
		return
	}
	s := newSimulated(t, "gpus = 1\nmemory = 40GiB\nmodel = A100-PCIE-40GB\ncopies = timed\n")
	reader := s.reader()
	s.flood("kernel=none", "copy=dtoh", "copy_bytes=67108864", "pinned=1")
	seen := s.until(reader, "copies from the card", nil, func(d source.DeviceSample) bool { return d.PCIeTX.Value > 5e9 })
	if seen.DRAM.Known || seen.PCIeTX.Period != throughputPeriod || !seen.MemoryBusy.Known {
		t.Errorf("%+v", seen)
	}
}

// A counter that the driver refuses is a figure that is missing, and no fault of the others.
func TestSimulatedRefusal(t *testing.T) {
	if !inChild(t) {
		return
	}
	s := newSimulated(t, "gpus = 1\nmemory = 40GiB\nmodel = A100-PCIE-40GB\n")
	reader := s.reader()
	devices(t, reader)
	if out, err := s.command("gpusim", "fault", "set", "--call", "nvmlDeviceGetPcieThroughput", "--result", "3").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := devices(t, reader)[0]; got.PCIeRX.Known || !got.Busy.Known || got.LinkWidth == 0 || got.Err != nil {
		t.Errorf("%+v", got)
	}
}
