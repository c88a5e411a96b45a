// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// patience is how long a program may take to print what it is to print, beyond the time that it works.
const patience = 20 * time.Second

// process is a program that was started, and what it has printed: lines of key=value pairs.
type process struct {
	t       *testing.T
	command *exec.Cmd
	input   io.WriteCloser
	stderr  bytes.Buffer // to be read after wait
	ended   chan struct{}
	err     error // how it ended

	mu    sync.Mutex
	lines []string
}

// fields is one line.
type fields map[string]string

// bare runs a program on the card without vgpud.
func (c *card) bare(program string, arguments ...string) *process {
	c.t.Helper()
	command := exec.Command(program, arguments...)
	command.Env = append(cleanEnvironment(), c.environment()...)
	return start(c.t, command)
}

// limited runs a program under `vgpud exec` with this percentage of the card's time.
func (c *card) limited(percent int, program string, arguments ...string) *process {
	c.t.Helper()
	return start(c.t, c.limitedCommand(percent, program, arguments...))
}

func (c *card) limitedCommand(percent int, program string, arguments ...string) *exec.Cmd {
	c.t.Helper()
	build := require.Build(c.t)
	command := exec.Command(filepath.Join(build, "vgpud"), append([]string{"exec", "--memory=1000Mi",
		"--cores=" + strconv.Itoa(percent), "--gpu=" + c.uuid, "--library=" + filepath.Join(build, "libvgpu.so"),
		"--nvml-library=" + filepath.Join(c.sim, "libnvidia-ml.so.1"), "--", program}, arguments...)...)
	command.Env = append(cleanEnvironment(), c.environment()...)
	command.Env = append(command.Env, "XDG_RUNTIME_DIR="+filepath.Dir(c.dir))
	return command
}

// cleanEnvironment is this process's, without what would lead a program to other cards or limits.
func cleanEnvironment() (kept []string) {
	for _, line := range os.Environ() {
		name, _, _ := strings.Cut(line, "=")
		switch {
		case strings.HasPrefix(name, "CUDA_"), strings.HasPrefix(name, "VGPU"), strings.HasPrefix(name, "GPUSIM_"),
			name == "LD_PRELOAD", name == "LD_LIBRARY_PATH", name == "NVIDIA_VISIBLE_DEVICES":
		default:
			kept = append(kept, line)
		}
	}
	return kept
}

// start starts the command; it is killed, with all that it has started, when the test ends.
func start(t *testing.T, command *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, command: command, ended: make(chan struct{})}
	command.Stderr = &p.stderr
	ownGroup(command)
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if p.input, err = command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, scanner.Text())
			p.mu.Unlock()
		}
		p.err = command.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// startInto is start for a service that writes into a file.
func startInto(t *testing.T, command *exec.Cmd, log *os.File) *process {
	t.Helper()
	p := &process{t: t, command: command, ended: make(chan struct{})}
	command.Stdout, command.Stderr = log, log
	ownGroup(command)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = command.Wait()
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

func ownGroup(command *exec.Cmd) {
	if command.SysProcAttr == nil {
		command.SysProcAttr = &syscall.SysProcAttr{}
	}
	command.SysProcAttr.Setpgid = true
}

// kill ends the process and all of its group.
func (p *process) kill() {
	select {
	case <-p.ended:
	default:
		_ = syscall.Kill(-p.command.Process.Pid, syscall.SIGKILL)
		<-p.ended
	}
}

// printed is all that was printed by now.
func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// all returns the lines that begin with key=.
func (p *process) all(key string) (found []fields) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range p.lines {
		if strings.HasPrefix(line, key+"=") {
			f := fields{}
			for word := range strings.FieldsSeq(line) {
				name, value, _ := strings.Cut(word, "=")
				f[name] = value
			}
			found = append(found, f)
		}
	}
	return found
}

// await waits until count lines begin with key=, and returns them.
func (p *process) await(key string, count int, timeout time.Duration) []fields {
	p.t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		found := p.all(key)
		if len(found) >= count {
			return found
		}
		over := time.Now().After(deadline)
		select {
		case <-p.ended:
			over = len(p.all(key)) < count
		default:
		}
		if over {
			p.fail("does not print %s", key)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// ready waits until a program is at work and returns its process number.
func (p *process) ready() int {
	p.t.Helper()
	return int(p.await("ready", 1, patience)[0].number(p.t, "pid"))
}

// done waits for the program's good end and returns its last line.
func (p *process) done(timeout time.Duration) fields {
	p.t.Helper()
	p.wait(timeout)
	if p.err != nil {
		p.fail("ended: %v", p.err)
	}
	found := p.all("done")
	if len(found) == 0 {
		p.fail("has no last line")
	}
	return found[len(found)-1]
}

// wait waits for the end.
func (p *process) wait(timeout time.Duration) {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(timeout):
		p.fail("has not ended after %s", timeout)
	}
}

// exitCode is that of a program that has ended, 128+n if signal n ended it.
func (p *process) exitCode() int {
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) {
		return 0
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// goOn gives the program the line on standard input that it waits for.
func (p *process) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.input, "\n"); err != nil {
		p.fail("takes no input: %v", err)
	}
}

// fail ends the test with what is known of the program.
func (p *process) fail(format string, arguments ...any) {
	p.t.Helper()
	p.kill()
	p.t.Fatalf("%s %s\nstdout:\n%s\nstderr:\n%s", strings.Join(p.command.Args, " "), fmt.Sprintf(format, arguments...),
		p.printed(), p.stderr.String())
}

// number reads a number of a line.
func (f fields) number(t *testing.T, key string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(f[key], 64)
	if err != nil {
		t.Fatalf("line %v: %s: %v", f, key, err)
	}
	return n
}
