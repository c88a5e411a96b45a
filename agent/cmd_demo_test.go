// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/demo"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
)

// demoStep is one line of `vgpud demo --json`, with the data that the tests look at.
type demoStep struct {
	Name string `json:"step"`
	Data struct {
		GPUs []struct {
			TotalBytes uint64 `json:"total_bytes"`
		} `json:"gpus"`
		ResourceName string `json:"resource_name"`
		Endpoint     string `json:"endpoint"`
		Healthy      int    `json:"healthy"`
		Unhealthy    int    `json:"unhealthy"`
		Response     struct {
			Envs   map[string]string `json:"envs"`
			Mounts []struct {
				ContainerPath string `json:"container_path"`
				ReadOnly      bool   `json:"read_only"`
			} `json:"mounts"`
		} `json:"response"`
		Without []struct {
			CUDATotal uint64 `json:"cuda_total_bytes"`
		} `json:"without_vgpud"`
		Inside []struct {
			CUDATotal uint64 `json:"cuda_total_bytes"`
			NVMLTotal uint64 `json:"nvml_total_bytes"`
		} `json:"in_the_slice"`
		Limit     uint64    `json:"limit_bytes"`
		Allocated uint64    `json:"allocated_bytes"`
		HighWater uint64    `json:"card_high_water_bytes"`
		Refusal   int       `json:"refusal_code"`
		Samples   []string  `json:"samples"`
		Rules     []string  `json:"rules"`
		Alone     float64   `json:"alone_percent"`
		Together  []float64 `json:"together_percent"`
		Cores     float64   `json:"cores_percent"`
		Measured  float64   `json:"measured_percent"`
		Report    []string  `json:"report"`
	} `json:"data"`
}

// decodeDemo reads what the demo printed, and checks that there was nothing else.
func decodeDemo(t *testing.T, output []byte) map[string]demoStep {
	t.Helper()
	steps := map[string]demoStep{}
	for d := json.NewDecoder(bytes.NewReader(output)); ; {
		var step demoStep
		err := d.Decode(&step)
		if errors.Is(err, io.EOF) {
			return steps
		}
		if err != nil {
			t.Fatalf("output is not one JSON object per step: %v\n%s", err, output)
		}
		steps[step.Name] = step
	}
}

// checkProtocol holds the messages that every form of the demo shows.
func checkProtocol(t *testing.T, steps map[string]demoStep) {
	t.Helper()
	if got := steps["registration"].Data; got.ResourceName != "nvidia.com/gpu" || got.Endpoint == "" {
		t.Errorf("registration of %q at %q", got.ResourceName, got.Endpoint)
	}
	for name, want := range map[string][2]int{"first-list": {8, 0}, "second-list": {4, 4}, "third-list": {8, 0}} {
		if got := [2]int{steps[name].Data.Healthy, steps[name].Data.Unhealthy}; got != want {
			t.Errorf("%s: healthy and unhealthy %v, want %v", name, got, want)
		}
	}
	response := steps["allocate"].Data.Response
	key := response.Envs[plugin.AllocationVariable]
	readOnly := map[string]bool{}
	for _, m := range response.Mounts {
		readOnly[m.ContainerPath] = m.ReadOnly
	}
	if diff := cmp.Diff(map[string]bool{
		"/usr/local/vgpud/libvgpu.so": true,
		plugin.PreloadFile:            true,
		"/usr/local/vgpud/alloc/" + key + "/" + limiter.LimitsFile: true,
		"/usr/local/vgpud/alloc/" + key + "/" + limiter.UsageFile:  false,
	}, readOnly); diff != "" {
		t.Errorf("mounts by container path, read-only or not (-want +got):\n%s", diff)
	}
}

func TestDemoDryRun(t *testing.T) {
	build := require.Build(t, "libvgpu.so")
	var out bytes.Buffer
	err := demo.Run(t.Context(), demo.Options{
		Library: filepath.Join(build, "libvgpu.so"), Out: &out, JSON: true, DryRun: true,
		Pages: func(dir string) plugin.Pages {
			return store.NewPages(dir, store.MakePagesDir, slog.New(slog.DiscardHandler))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	steps := decodeDemo(t, out.Bytes())
	checkProtocol(t, steps)
	if len(steps) != 5 {
		t.Errorf("a dry run has %d steps, want the 5 protocol messages", len(steps))
	}
}

// TestDemo runs the built program as a newcomer does, and again as an ordinary user where the test may.
func TestDemo(t *testing.T) {
	build := require.Build(t)
	sim := require.Sim(t)
	for _, program := range []string{"client", "flood"} {
		_, err := os.Stat(filepath.Join(sim, program))
		require.Need(t, "sim", err == nil, "build/sim/"+program+" is not built (make build)")
	}

	t.Run("as this user", func(t *testing.T) { testDemo(t, exec.Command(filepath.Join(build, "vgpud"), "demo", "--json")) })
	t.Run("as nobody", func(t *testing.T) {
		require.Root(t)
		cmd := exec.Command(filepath.Join(build, "vgpud"), "demo", "--json")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		testDemo(t, cmd)
	})
}

func testDemo(t *testing.T, cmd *exec.Cmd) {
	// Go's own temporary directory: t.TempDir is private to this user and too long for sockets.
	tmp, err := os.MkdirTemp("", "demo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	if err := os.Chmod(tmp, 0o777); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp, "VGPUD_SLICES_PER_GPU=7", "CUDA_DEVICE_MEMORY_LIMIT=1m")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	began := time.Now()
	output, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, output, stderr.String())
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("the demo took %v, want less than 30 s", took)
	}
	if stderr.Len() > 0 {
		t.Errorf("on stderr: %s", stderr.String())
	}
	steps := decodeDemo(t, output)
	checkProtocol(t, steps)
	const card, slice = 80 << 30, 20 << 30
	if gpus := steps["cards"].Data.GPUs; len(gpus) != 2 || gpus[0].TotalBytes != card {
		t.Errorf("cards: %+v", gpus)
	}
	view := steps["view"].Data
	if len(view.Without) != 2 || len(view.Inside) != 2 || view.Without[0].CUDATotal != card ||
		view.Inside[0].CUDATotal != slice || view.Inside[0].NVMLTotal != slice || view.Inside[1].CUDATotal != 0 {
		t.Errorf("view: %+v without, %+v inside", view.Without, view.Inside)
	}
	if got := steps["refusal"].Data; got.Limit != slice || got.Allocated != slice || got.HighWater != slice || got.Refusal != 2 {
		t.Errorf("refusal: %+v", got)
	}
	if !slices.ContainsFunc(steps["metrics"].Data.Samples, func(line string) bool {
		return strings.Contains(line, `pod="md-benchmem-01"`)
	}) {
		t.Errorf("metrics without the pod's name: %q", steps["metrics"].Data.Samples)
	}
	checkShares(t, steps)
	if got := steps["stop"].Data.Allocated; got != slice {
		t.Errorf("without the agent %d bytes were allocated, want %d", got, uint64(slice))
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind in the temporary directory: %v, %v", left, err)
	}
}

// checkShares holds what the card measured against what was promised. How far off it may be is the demo's to say, which
// fails otherwise.
func checkShares(t *testing.T, steps map[string]demoStep) {
	t.Helper()
	sharing := steps["sharing"].Data
	if diff := cmp.Diff([]string{"elastic share=25 ceiling=100", "elastic share=50 ceiling=100"}, sharing.Rules); diff != "" {
		t.Error(diff)
	}
	if len(sharing.Together) != 2 || sharing.Alone < 80 || sharing.Together[0] >= sharing.Together[1] || sharing.Together[0] < 20 {
		t.Errorf("alone %v percent, together %v", sharing.Alone, sharing.Together)
	}
	if got := steps["cap"].Data; got.Cores != 30 || got.Measured < 20 || got.Measured > 40 || len(got.Report) < 3 ||
		!strings.Contains(got.Report[0], "granted 30 % of the GPU (hard)") {
		t.Errorf("cap: %+v", got)
	}
}

// TestDemoInterrupted: whoever ends it early finds nothing left either.
func TestDemoInterrupted(t *testing.T) {
	build := require.Build(t)
	require.Sim(t)
	tmp, err := os.MkdirTemp("", "demo")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	cmd := exec.Command(filepath.Join(build, "vgpud"), "demo", "--json")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "first-list") { // the agent runs, and more is to come
			if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("interrupted, the demo ended with %v, want exit code 1", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("left behind in the temporary directory: %v, %v", left, err)
	}
}

// buildDemo prepares `vgpud demo` of the build, with a temporary directory of its own.
func buildDemo(t *testing.T, arguments ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	build := require.Build(t)
	require.Sim(t)
	tmp = shortTemp(t)
	t.Cleanup(func() {
		mounts, _ := filepath.Glob(filepath.Join(tmp, "*", "pages"))
		for _, path := range mounts {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
	})
	cmd = exec.Command(filepath.Join(build, "vgpud"), append([]string{"demo"}, arguments...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return cmd, tmp
}

// processesNaming counts the processes whose command line has text in it.
func processesNaming(t *testing.T, text string) (count int) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte(text)) {
			count++
		}
	}
	return count
}

// TestDemoWithoutReader: `vgpud demo | head` leaves no process, no directory and no mount, and says nothing.
func TestDemoWithoutReader(t *testing.T) {
	for _, test := range []struct {
		name, after string // the line after which nobody reads; empty: from the start
		arguments   []string
	}{
		{"text", "2. ", nil},
		{"JSON", "registration", []string{"--json"}},
		{"never read", "", []string{"--json"}},
		{"dry run", "", []string{"--dry-run"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, tmp := buildDemo(t, test.arguments...)
			output, end, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			var stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = end, &stderr
			if test.after == "" {
				output.Close()
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			end.Close()
			if test.after != "" {
				found := false
				for lines := bufio.NewScanner(output); !found && lines.Scan(); {
					found = strings.Contains(lines.Text(), test.after)
				}
				if !found {
					t.Errorf("no line with %q", test.after)
				}
				output.Close()
			}
			if code := exitCode(t, cmd.Wait()); code != exitNoReader || stderr.Len() > 0 {
				t.Errorf("exit code %d, want %d; stderr %q, want nothing", code, exitNoReader, stderr.String())
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left behind in the temporary directory: %v, %v", left, err)
			}
			if count := processesNaming(t, tmp); count != 0 {
				t.Errorf("%d processes are left", count)
			}
		})
	}
}

// TestDemoKilled: not even a demo that is killed leaves its agent.
func TestDemoKilled(t *testing.T) {
	cmd, tmp := buildDemo(t, "--json")
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(output); lines.Scan() && !strings.Contains(lines.Text(), "registration"); {
		continue
	}
	if count := processesNaming(t, tmp); count != 1 {
		t.Errorf("%d agents before, want one", count)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for deadline := time.Now().Add(15 * time.Second); processesNaming(t, tmp) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the agent outlives its demo")
		}
	}
}

// TestDemoSaysWhatIsMissing: without a simulator the error is about that.
func TestDemoSaysWhatIsMissing(t *testing.T) {
	err := demo.Run(t.Context(), demo.Options{Library: os.Args[0], SimDir: t.TempDir(), Out: io.Discard})
	if err == nil || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "make build") {
		t.Errorf("error %v, want one that names make build", err)
	}
}
