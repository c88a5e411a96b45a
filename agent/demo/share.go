// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The steps about GPU time: two containers that share a card, and a cap without an agent. What is printed is the card's
// own account of how long each process ran.

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/vgpud/vgpud/plugin"
)

// capPercent is what vgpud exec is given.
const capPercent = 30

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
