// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// deepInDebt starts a program that will wait for ten seconds and more for its next launch, and returns when it does.
func deepInDebt(t *testing.T, c *card) (p *process, pid int) {
	t.Helper()
	p = c.limited(1, program(t, "flood"), "kernel=busy_200ms", "log=1", "sync=each", "seconds=120")
	pid = p.ready()
	p.await("launch", 1, patience)
	time.Sleep(time.Second)
	return p, pid
}

// A program that waits for GPU time answers signals at once, those that end it and those that it handles.
func TestWaitingProgramAnswersSignals(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		signal  syscall.Signal
		code    int
		handled bool
	}{
		{syscall.SIGINT, 130, true},
		{syscall.SIGTERM, 128 + 15, false},
		{syscall.SIGKILL, 128 + 9, false},
	} {
		t.Run(test.signal.String(), func(t *testing.T) {
			t.Parallel()
			p, pid := deepInDebt(t, newCard(t))
			sent := time.Now()
			if err := syscall.Kill(pid, test.signal); err != nil {
				t.Fatal(err)
			}
			p.wait(2 * time.Second)
			if took := time.Since(sent); took > time.Second {
				t.Errorf("the signal was answered after %s", took)
			}
			if code := p.exitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if handled := len(p.all("signal")) > 0; handled != test.handled {
				t.Errorf("the program's handler ran: %v, want %v", handled, test.handled)
			}
		})
	}
}

// Waiting is sleeping.
func TestWaitingTakesNoProcessorTime(t *testing.T) {
	t.Parallel()
	_, pid := deepInDebt(t, newCard(t))
	before := processorTime(t, pid)
	time.Sleep(3 * time.Second)
	if used := processorTime(t, pid) - before; used > 30*time.Millisecond {
		t.Errorf("%s of processor time in 3 s of waiting", used)
	}
}

// processorTime reads what a process has used, to 10 ms.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	sum := 0
	for _, word := range words[11:13] { // utime and stime, counted from the state
		n, err := strconv.Atoi(word)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return time.Duration(sum) * 10 * time.Millisecond
}

// Monotonic time may be another one in the container: it is moved by a time namespace. The simulated card lives by
// monotonic time, too, so whoever looks at it has to do so with the same offset.
func TestShareHoldsInAnotherTimeNamespace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, offset string
		whole        bool // vgpud exec is inside, too
	}{
		{"program ahead", "86400", false},
		{"all ahead", "86400", true},
		{"all behind", "-60", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			move := []string{require.Tool(t, "unshare"), "--time", "--monotonic", test.offset, "--"}
			err := exec.Command(move[0], append(move[1:], "true")...).Run()
			require.Need(t, "root", err == nil, "no time namespace can be made")
			flood := []string{program(t, "flood"), "kernel=busy_2ms", "seconds=60"}
			mustShare(t, 30, 2, func() used {
				c := newCardIn(t, move)
				arguments := flood
				if !test.whole {
					arguments = slices.Concat(move, flood)
				}
				command := c.limitedCommand(30, arguments[0], arguments[1:]...)
				if test.whole {
					command.Path, command.Args = move[0], slices.Concat(move, command.Args)
				}
				p := start(t, command)
				defer p.kill()
				p.ready()
				time.Sleep(settle)
				return c.over(4 * time.Second)
			})
		})
	}
}
