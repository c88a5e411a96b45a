// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of vgpud exec. The test binary stands for vgpud: with the variable below it runs the command line.

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
)

// What the test binary is to be when it is started by a test: vgpud, or a program that nobody may look into, which says
// its process number and waits.
const (
	beVgpud  = "VGPUD_TEST_BE_VGPUD"
	beHidden = "VGPUD_TEST_BE_HIDDEN"
)

func TestMain(m *testing.M) {
	if os.Getenv(beHidden) == "1" {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			panic(err)
		}
		fmt.Println(os.Getpid())
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	if os.Getenv(beVgpud) == "1" {
		if err := os.Unsetenv(beVgpud); err != nil {
			panic(err)
		}
		os.Exit(execute(newRootCommand(), os.Args[1:]))
	}
	os.Exit(m.Run())
}

// vgpudExec prepares `vgpud exec` with a slice of 1 GiB on a card that is named in full, so that no NVML is needed.
// Files are kept below a directory that is returned.
func vgpudExec(t *testing.T, arguments ...string) (command *exec.Cmd, base string) {
	t.Helper()
	runtime := shortTemp(t)
	library := filepath.Join(require.Build(t, "libvgpu.so"), "libvgpu.so")
	command = exec.Command(os.Args[0], append([]string{"exec", "--memory=1Gi", "--gpu=" + gpuA, "--library=" + library,
		"--nvml-library=/nonexistent/libnvidia-ml.so.1"}, arguments...)...)
	command.Env = append(withoutVariables(os.Environ(), "LD_PRELOAD", "CUDA_VISIBLE_DEVICES"), beVgpud+"=1", "XDG_RUNTIME_DIR="+runtime)
	return command, filepath.Join(runtime, "vgpud")
}

func shortTemp(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "exec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	return directory
}

func withoutVariables(environ []string, names ...string) []string {
	var kept []string
	for _, line := range environ {
		name, _, _ := strings.Cut(line, "=")
		drop := false
		for _, unwanted := range names {
			drop = drop || name == unwanted
		}
		if !drop {
			kept = append(kept, line)
		}
	}
	return kept
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err == nil {
		return 0
	}
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// checkEmpty fails when something of a slice is left.
func checkEmpty(t *testing.T, base string) {
	t.Helper()
	entries, err := os.ReadDir(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if len(entries) != 0 {
		t.Errorf("left in %s: %v", base, entries)
	}
}

func TestExecExitCodes(t *testing.T) {
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		message   string
	}{
		{"success", []string{"--", "true"}, 0, ""},
		{"no dashes", []string{"sh", "-c", "exit 7"}, 7, ""},
		{"failure", []string{"--", "sh", "-c", "exit 3"}, 3, ""},
		{"signal", []string{"--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{"killed", []string{"--", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{"no such command", []string{"--", "no-such-command"}, 127, "vgpud: no-such-command: command not found\n"},
		{"no such file", []string{"--", "./no/such/file"}, 127, "vgpud: ./no/such/file: command not found\n"},
		{"not executable", []string{"--", "/etc/passwd"}, 126, "vgpud: /etc/passwd: cannot be executed\n"},
		{"no command", []string{"--"}, 125, "vgpud: no command: vgpud exec --memory 4Gi -- COMMAND\n"},
		{"unknown flag", []string{"--mem=4Gi", "--", "true"}, 125, "vgpud: unknown flag: --mem; see vgpud exec --help\n"},
		{"bytes", []string{"--memory=4096", "--", "true"}, 0, "vgpud: --memory is 4096 bytes; did you mean 4096Mi?\n"},
		{"bad amount", []string{"--memory=4Gx", "--", "true"}, 125, `--memory: "4Gx"`},
		{"no amount", []string{"--memory=", "--", "true"}, 125, "vgpud: --memory is empty: want e.g. 4Gi, "},
		{"no amount beside a share", []string{"--memory=", "--cores=30", "--", "true"}, 125, "vgpud: --memory is empty"},
		{"a share", []string{"--cores=30", "--", "true"}, 0, ""},
		{"a share of nothing", []string{"--cores=0", "--", "true"}, 125, `vgpud: --cores: "0" is no share of a GPU: want ` + amount.PercentRule + "\n"},
		{"a share above the whole", []string{"--cores=101", "--", "true"}, 125, `--cores: "101"`},
		{"a negative share", []string{"--cores=-5", "--", "true"}, 125, `--cores: "-5"`},
		{"a fraction", []string{"--cores=12.5", "--", "true"}, 125, `--cores: "12.5"`},
		{"a percent sign", []string{"--cores=50%", "--", "true"}, 125, `--cores: "50%"`},
		{"no number", []string{"--cores=all", "--", "true"}, 125, `--cores: "all"`},
		{"an empty share", []string{"--cores=", "--", "true"}, 125, "vgpud: --cores is empty: want " + amount.PercentRule + "\n"},
		{"a blank share", []string{"--cores= ", "--", "true"}, 125, "vgpud: --cores is empty"},
		{"GPU not in full", []string{"--gpu=0", "--", "true"}, 125,
			"vgpud: no GPU found: /nonexistent/libnvidia-ml.so.1 was not found (driver not installed? --nvml-library?); with --gpu and a full UUID"},
		{"no library", []string{"--library=/nonexistent/libvgpu.so", "--", "true"}, 125, "/nonexistent/libvgpu.so"},
	} {
		t.Run(test.name, func(t *testing.T) {
			command, base := vgpudExec(t, test.arguments...)
			var stderr bytes.Buffer
			command.Stderr = &stderr
			if code := exitCode(t, command.Run()); code != test.code {
				t.Errorf("exit code %d, want %d (%s)", code, test.code, stderr.String())
			}
			if got := stderr.String(); !strings.Contains(got, test.message) || (test.message == "" && got != "") {
				t.Errorf("stderr %q, want %q", got, test.message)
			}
			checkEmpty(t, base)
		})
	}
}

// What the command finds: our library before the user's, its pages with the limit, everything private to the user.
func TestExecSlice(t *testing.T) {
	command, base := vgpudExec(t, "--", "sh", "-c", `echo "$LD_PRELOAD $`+plugin.AllocationVariable+` $CUDA_VISIBLE_DEVICES $OWN"; read line`)
	command.Env = append(command.Env, "LD_PRELOAD=libc.so.6", "OWN=kept")
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 4096)
	count, err := stdout.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(line[:count]))
	if len(words) != 4 || words[2] != gpuA || words[3] != "kept" {
		t.Fatalf("the command's environment: %q", words)
	}
	key := words[1]
	if want := filepath.Join(base, key, "libvgpu.so") + ":libc.so.6"; words[0] != want {
		t.Errorf("LD_PRELOAD %q, want %q", words[0], want)
	}
	limits, err := limiter.ReadLimits(filepath.Join(base, key, "alloc", key))
	if err != nil || len(limits.Devices) != 1 || limits.Devices[0].UUID != gpuA || limits.Devices[0].MemoryLimitBytes != 1<<30 {
		t.Errorf("limits %+v, %v", limits, err)
	}
	if info, err := os.Stat(base); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the base directory: %v, %v", info.Mode(), err)
	}
	stdin.Close()
	if err := command.Wait(); err != nil && exitCode(t, err) != 1 { // read fails at the end of input
		t.Error(err)
	}
	checkEmpty(t, base)
}

// What --memory and --cores come to in the pages, and what the command is told of it.
func TestExecGrants(t *testing.T) {
	for _, test := range []struct {
		name      string
		arguments []string
		memory    uint64
		compute   limiter.Compute
		text      string
	}{
		{"memory alone", []string{"--memory=2Gi"}, 2 << 30, limiter.Compute{}, "none"},
		{"cores alone", []string{"--cores=30"}, limiter.MaxBytes, limiter.Compute{Mode: limiter.ComputeHard, SharePPM: 300_000, CeilingPPM: 300_000}, "hard share=30"},
		{"both", []string{"--memory=2Gi", "--cores", " 1 "}, 2 << 30, limiter.Compute{Mode: limiter.ComputeHard, SharePPM: 10_000, CeilingPPM: 10_000}, "hard share=1"},
		{"the whole is no cap", []string{"--cores=100"}, limiter.MaxBytes, limiter.Compute{}, "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			command, base := vgpudExec(t)
			command.Args = slices.DeleteFunc(command.Args, func(argument string) bool { return argument == "--memory=1Gi" })
			script := `echo "$` + plugin.ComputeVariable + `"; cp -r "` + base + `/$` + plugin.AllocationVariable + `/alloc" "$KEEP"`
			command.Args = append(append(command.Args, test.arguments...), "--", "sh", "-c", script)
			keep := filepath.Join(t.TempDir(), "alloc")
			command.Env = append(command.Env, "KEEP="+keep)
			command.Stderr = os.Stderr
			out, err := command.Output()
			if err != nil || strings.TrimSpace(string(out)) != test.text {
				t.Errorf("%s=%s (%v), want %s", plugin.ComputeVariable, out, err, test.text)
			}
			kept, _ := filepath.Glob(keep + "/*")
			if len(kept) != 1 {
				t.Fatalf("pages kept: %v", kept)
			}
			limits, err := limiter.ReadLimits(kept[0])
			if err != nil || limits.Devices[0].MemoryLimitBytes != test.memory || limits.Devices[0].Compute != test.compute {
				t.Errorf("%+v (%v), want %d bytes and %+v", limits, err, test.memory, test.compute)
			}
		})
	}
}

// A vgpud exec without --cores inside a slice leaves what the command is told of the outer one.
func TestExecWithinASliceKeepsTheRule(t *testing.T) {
	for _, test := range []struct{ cores, want string }{{"--report=false", "elastic share=30 ceiling=100"}, {"--cores=20", "hard share=20"}} {
		command, _ := vgpudExec(t, test.cores, "--", "sh", "-c", "echo $"+plugin.ComputeVariable)
		command.Env = append(command.Env, plugin.ComputeVariable+"=elastic share=30 ceiling=100")
		if out, err := command.Output(); err != nil || strings.TrimSpace(string(out)) != test.want {
			t.Errorf("%q (%v), want %q", out, err, test.want)
		}
	}
}

func TestExecKeepsVisibleDevices(t *testing.T) {
	command, _ := vgpudExec(t, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
	command.Env = append(command.Env, "CUDA_VISIBLE_DEVICES="+gpuB+","+gpuA)
	out, err := command.Output()
	if err != nil || strings.TrimSpace(string(out)) != gpuB+","+gpuA {
		t.Errorf("%q, %v", out, err)
	}
}

// Signals reach the command; it decides what becomes of them.
func TestExecForwardsSignals(t *testing.T) {
	for _, number := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGQUIT} {
		t.Run(unix.SignalName(number), func(t *testing.T) {
			name := strings.TrimPrefix(unix.SignalName(number), "SIG")
			command, base := vgpudExec(t, "--", "sh", "-c", `trap "exit 42" `+name+`; echo ready; while :; do sleep 0.05; done`)
			command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal sends signals of its own
			stdout, err := command.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := command.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := stdout.Read(make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
			if err := command.Process.Signal(number); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(t, command.Wait()); code != 42 {
				t.Errorf("exit code %d: the command did not get the signal", code)
			}
			checkEmpty(t, base)
		})
	}
}

// What a killed vgpud exec leaves stays while its command runs, and goes with the next vgpud exec after that.
func TestExecRemovesStaleDirectories(t *testing.T) {
	killed, base := vgpudExec(t, "--", "sh", "-c", "echo $$; exec sleep 60")
	stdout, err := killed.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(stdout, &pid); err != nil {
		t.Fatal(err)
	}
	orphan, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = orphan.Kill() })
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = killed.Process.Wait()
	runAgain := func() int {
		again, _ := vgpudExec(t, "--", "true")
		again.Env = append(again.Env, "XDG_RUNTIME_DIR="+filepath.Dir(base))
		if err := again.Run(); err != nil {
			t.Fatal(err)
		}
		entries, err := os.ReadDir(base)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	if left := runAgain(); left != 1 {
		t.Fatalf("%d directories while the orphan runs, want its one", left)
	}
	if err := orphan.Kill(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); runAgain() != 0; {
		if time.Now().After(deadline) {
			t.Fatal("the directory of a dead vgpud exec stays")
		}
	}
}

// ordinaryUser prepares `vgpud exec` for a user who is not root, on a card that is named in full. Its base directory is
// returned.
func ordinaryUser(t *testing.T, arguments ...string) (command *exec.Cmd, base string) {
	t.Helper()
	require.Root(t) // to become somebody else
	directory := shortTemp(t)
	if err := os.Chmod(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(require.Build(t, "libvgpu.so"), "libvgpu.so")
	for name, from := range map[string]string{"vgpud": os.Args[0], "libvgpu.so": library} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	temporary := filepath.Join(directory, "tmp")
	if err := errors.Join(os.Mkdir(temporary, 0o777), os.Chmod(temporary, 0o777|fs.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	command = exec.Command(filepath.Join(directory, "vgpud"), append([]string{"exec", "--memory=1Gi", "--gpu=" + gpuA,
		"--nvml-library=/nonexistent/libnvidia-ml.so.1"}, arguments...)...)
	command.Dir = directory
	command.Env = append(withoutVariables(os.Environ(), "LD_PRELOAD", "XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES"), beVgpud+"=1", "TMPDIR="+temporary)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return command, filepath.Join(temporary, "vgpud-65534")
}

// No root is needed: the slice lies in a directory of the user's own below TMPDIR, whatever the umask.
func TestExecAsOrdinaryUser(t *testing.T) {
	for _, umask := range []string{"022", "777"} {
		command, base := ordinaryUser(t, "--", "sh", "-c", `id -u; echo "$LD_PRELOAD"; grep -c libvgpu.so /proc/self/maps`)
		command.Args = append([]string{"sh", "-c", "umask " + umask + `; exec "$0" "$@"`, command.Path}, command.Args[1:]...)
		command.Path = "/bin/sh"
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("umask %s: %v\n%s", umask, err, out)
		}
		words := strings.Fields(string(out))
		if len(words) != 3 || words[0] != "65534" || !strings.HasPrefix(words[1], base+"/") || words[2] == "0" {
			t.Errorf("umask %s: user, library and mappings of it: %q", umask, words)
		}
		checkEmpty(t, base)
	}
}

// The help says what is not held, and where the flags end.
func TestExecHelp(t *testing.T) {
	command, _ := vgpudExec(t, "--help")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(string(out)), " ")
	for _, part := range []string{"linked statically", "change their user id", "env -i", "another LD_PRELOAD", "sbatch", "-- COMMAND [ARGUMENT...] Examples:"} {
		if !strings.Contains(words, part) {
			t.Errorf("the help lacks %q:\n%s", part, out)
		}
	}
}
