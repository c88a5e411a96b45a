// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The steps about GPU time: two containers that share a card, and a cap without an agent. What is printed is the card's
// own account of how long each process ran.

package demo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vgpud/vgpud/plugin"
)

// How long programs are watched, after a time in which they may get under way.
const (
	warmUp   = 300 * time.Millisecond
	watchFor = 1500 * time.Millisecond
)

// tolerance is how far beyond what is said a measured part of the card may be, in percent of the card. On a machine that
// is busy with other things programs launch too late to use all that they may, so what is said is tried several times.
const (
	tolerance = 5
	tries     = 4
)

// part is what a process should have of a card, in percent.
type part struct {
	pid         int
	least, most float64
}

// Kernels of the two programs: of different length, so that counting launches would not do.
const (
	shortKernel = "kernel=busy_200us"
	longKernel  = "kernel=busy_500us"
)

// capPercent is what vgpud exec is given.
const capPercent = 30

// account is what a card says of its time.
type account struct {
	at   time.Duration         // CLOCK_MONOTONIC
	busy map[int]time.Duration // by pid
}

// account reads the card's counters.
func (c cards) account(ctx context.Context, card int) (account, error) {
	status, err := c.read(ctx)
	if err != nil {
		return account{}, err
	}
	read := account{at: time.Duration(status.Monotonic), busy: map[int]time.Duration{}}
	for _, client := range status.GPUs[card].Clients {
		read.busy[client.PID] = time.Duration(client.Busy)
	}
	return read, nil
}

// parts watches processes until each has the part of the card's time that it should have, and returns these parts in
// percent.
func (c cards) parts(ctx context.Context, card int, wanted ...part) ([]float64, error) {
	for try := 1; ; try++ {
		got, err := c.watch(ctx, card, wanted)
		if err != nil {
			return nil, err
		}
		right := true
		for i, want := range wanted {
			right = right && got[i] >= want.least-tolerance && got[i] <= want.most+tolerance
		}
		if right {
			return got, nil
		}
		if try == tries {
			return nil, fmt.Errorf("parts of the card's time: measured %.1f percent, wanted by process, least and most %v", got, wanted)
		}
	}
}

// watch measures once.
func (c cards) watch(ctx context.Context, card int, wanted []part) ([]float64, error) {
	if err := rest(ctx, warmUp); err != nil {
		return nil, err
	}
	before, err := c.account(ctx, card)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, watchFor); err != nil {
		return nil, err
	}
	after, err := c.account(ctx, card)
	if err != nil {
		return nil, err
	}
	var parts []float64
	for _, want := range wanted {
		if _, known := after.busy[want.pid]; !known {
			return nil, fmt.Errorf("the card knows no process %d", want.pid)
		}
		percent := 100 * float64(after.busy[want.pid]-before.busy[want.pid]) / float64(after.at-before.at)
		parts = append(parts, math.Round(percent*10)/10)
	}
	return parts, nil
}

// rest waits, or ends early with ctx.
func rest(ctx context.Context, duration time.Duration) error {
	select {
	case <-time.After(duration):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *stage) showSharing(ctx context.Context) (err error) {
	second, rule, err := s.secondContainer(ctx)
	if err != nil {
		return err
	}
	first, err := startFlood(s.container.flood(ctx, shortKernel))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, first.stop()) }()
	alone, err := s.cards.parts(ctx, 0, part{first.pid, 90, 100})
	if err != nil {
		return err
	}
	other, err := startFlood(second.flood(ctx, longKernel))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, other.stop()) }()
	// The least is what is promised, the most what it comes to when all that is left is lent.
	promised := []int{100 / slicesPerCard, 200 / slicesPerCard}
	both, err := s.cards.parts(ctx, 0, part{first.pid, float64(promised[0]), 100. / 3}, part{other.pid, float64(promised[1]), 200. / 3})
	if err != nil {
		return err
	}
	return s.show(Step{Name: "sharing", Title: "Two containers share the time of a GPU",
		Data: map[string]any{"rules": []string{s.rule(), rule}, "promised_percent": promised, "alone_percent": alone[0], "together_percent": both},
		Prose: "A second container is given two slices of the same card. Both launch kernels without a pause, one of 0.2 ms, the " +
			"other of 0.5 ms. A slice promises its part of the card's time; what nobody wants is lent, by the same weights, and " +
			"comes back at once when it is wanted. The figures are the card's own.",
		Lines: []string{
			fmt.Sprintf("%-16s  %-30s  %9s  %6s  %s", "container", plugin.ComputeVariable, "promised", "alone", "both busy"),
			fmt.Sprintf("%-16s  %-30s  %7d %%  %4.0f %%  %7.1f %%", podName, s.rule(), promised[0], alone[0], both[0]),
			fmt.Sprintf("%-16s  %-30s  %7d %%  %6s  %7.1f %%", secondPodName, rule, promised[1], "–", both[1]),
		}})
}

// rule is what the first container is told of its GPU time.
func (s *stage) rule() string { return s.answer.GetEnvs()[plugin.ComputeVariable] }

// secondContainer admits another pod with two slices of the first card, which are not those of the first pod.
func (s *stage) secondContainer(ctx context.Context) (box *container, rule string, err error) {
	var ids []string
	for _, id := range s.slices {
		if strings.HasPrefix(id, s.firstCard) {
			ids = append(ids, id)
		}
	}
	answer, err := s.kubelet.allocate(ctx, secondPod, ids[1:3])
	if err != nil {
		return nil, "", err
	}
	box, err = layOut(filepath.Join(pagesRoot(s.dir), "container-2"), answer, s.container.client, s.cards)
	return box, answer.GetEnvs()[plugin.ComputeVariable], err
}

func (s *stage) showCap(ctx context.Context) (err error) {
	cmd := exec.CommandContext(ctx, s.Program, "exec", "--cores", strconv.Itoa(capPercent), "--report", "--gpu", "1", "--library", s.Library,
		"--nvml-library", filepath.Join(s.SimDir, "libnvidia-ml.so.1"), "--", filepath.Join(s.SimDir, "flood"), longKernel, "seconds=30")
	cmd.Env = s.cards.environ("XDG_RUNTIME_DIR=" + s.dir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // which it passes on
	var report bytes.Buffer
	cmd.Stderr = &report
	flood, err := startFlood(cmd)
	if err != nil {
		return fmt.Errorf("%w: %s", err, report.String())
	}
	parts, err := s.cards.parts(ctx, 1, part{flood.pid, capPercent, capPercent})
	if err = errors.Join(err, flood.stop()); err != nil {
		return fmt.Errorf("%w; the report says: %s", err, report.String())
	}
	lines := []string{fmt.Sprintf("$ vgpud exec --cores %d --report --gpu 1 -- flood %s", capPercent, longKernel)}
	for line := range strings.Lines(report.String()) {
		lines = append(lines, strings.TrimSpace(line))
	}
	lines = append(lines, fmt.Sprintf("measured by the card: %.1f %%", parts[0]))
	return s.show(Step{Name: "cap", Title: "A cap on GPU time, without Kubernetes", Lines: lines,
		Data: map[string]any{"cores_percent": capPercent, "measured_percent": parts[0], "report": lines[1 : len(lines)-1]},
		Prose: "vgpud exec puts any command into a slice of its own; no agent is needed and no root. Here the other card is " +
			"idle, and the cap holds all the same: the program is kept waiting before its launches. At the end it is told why."})
}

// flood is a program that keeps a card busy until it is stopped.
type flood struct {
	cmd *exec.Cmd
	pid int // of the process that launches
}

// flood prepares the program in the container.
func (b *container) flood(ctx context.Context, kernel string) *exec.Cmd {
	return client(ctx, filepath.Join(b.cards.libs, "flood"), b.cards.environ(append(b.env, "LD_PRELOAD="+b.preload)...), kernel, "seconds=30")
}

// startFlood returns once the program says that it launches.
func startFlood(cmd *exec.Cmd) (*flood, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start flood: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start flood: %w", err)
	}
	f := &flood{cmd: cmd}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "ready=") {
			continue
		}
		pid, err := value(parseLines(lines.Text()), "pid", "", "")
		if err != nil {
			return nil, errors.Join(err, f.stop())
		}
		f.pid = int(pid)
		return f, nil
	}
	return nil, errors.Join(errNoValue, f.stop())
}

// stop ends the program; that it was ended by a signal is no fault.
func (f *flood) stop() error {
	if err := f.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop flood: %w", err)
	}
	err := f.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, known := exit.Sys().(syscall.WaitStatus)
		if known && (status.Signaled() && status.Signal() == syscall.SIGTERM || status.ExitStatus() == 128+int(syscall.SIGTERM)) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("stop flood: %w", err)
	}
	return nil
}
