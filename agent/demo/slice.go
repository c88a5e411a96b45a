// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The steps that happen in the slice: what a program sees, where it is refused, what the node's metrics say.

package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/limiter"
)

// cudaOutOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const cudaOutOfMemory = 2

// Metrics that are shown, and the one that is waited for.
const (
	metricPrefix = "vgpud_slice_memory_"
	metricUsed   = "vgpud_slice_memory_used_bytes{"
)

// gpuView is how one GPU looks to a program.
type gpuView struct {
	CUDATotal uint64 `json:"cuda_total_bytes"`
	CUDAFree  uint64 `json:"cuda_free_bytes"`
	NVMLTotal uint64 `json:"nvml_total_bytes"`
	NVMLFree  uint64 `json:"nvml_free_bytes"`
}

func (s *stage) showView(ctx context.Context) error {
	if err := s.enterContainer(); err != nil {
		return err
	}
	bare, err := s.look(s.container.bare(ctx, "info"))
	if err != nil {
		return err
	}
	slice, err := s.look(s.container.command(ctx, "info"))
	if err != nil {
		return err
	}
	if want := (gpuView{s.limit, s.limit, s.limit, s.limit}); slice[0] != want {
		return fmt.Errorf("a program in a slice of %d bytes sees %+v", s.limit, slice[0])
	}
	if slice[1] != (gpuView{}) {
		return fmt.Errorf("a program sees %+v of a card that it was not given", slice[1])
	}
	row := func(who string, views []gpuView) string {
		return fmt.Sprintf("%-13s GPU 0: CUDA %s, NVML %s   GPU 1: CUDA %s", who,
			bytesText(views[0].CUDATotal), bytesText(views[0].NVMLTotal), bytesText(views[1].CUDATotal))
	}
	return s.show(Step{Name: "view", Title: "What a program in the slice sees",
		Data: map[string]any{"limit_bytes": s.limit, "without_vgpud": bare, "in_the_slice": slice},
		Prose: "The same program twice: without vgpud, and with the files of the answer in place. It asks the CUDA driver " +
			"and NVML how much memory there is. GPU 1 is not in its pages: if a container sees such a card at all, its limit is 0.",
		Lines: []string{row("without vgpud", bare), row("in the slice", slice)}})
}

// enterContainer does what the kubelet and a container runtime do with the answer, and reads the limit from the page.
func (s *stage) enterContainer() error {
	var err error
	s.container, err = layOut(filepath.Join(pagesRoot(s.dir), "container"), s.answer, filepath.Join(s.SimDir, "client"), s.cards)
	if err != nil {
		return err
	}
	limits, err := limiter.ReadLimits(pagesDir(s.answer))
	if err != nil {
		return fmt.Errorf("read the limits page: %w", err)
	}
	if len(limits.Devices) != 1 {
		return fmt.Errorf("the limits page has %d GPUs, 1 slice was asked for", len(limits.Devices))
	}
	s.limit = limits.Devices[0].MemoryLimitBytes
	return nil
}

// pagesDir is the host's directory of the pages that the answer names.
func pagesDir(answer *v1beta1.ContainerAllocateResponse) string {
	for _, m := range answer.GetMounts() {
		if filepath.Base(m.GetContainerPath()) == limiter.LimitsFile {
			return filepath.Dir(m.GetHostPath())
		}
	}
	return ""
}

// look runs "client info" and returns one view per card.
func (s *stage) look(cmd *exec.Cmd) ([]gpuView, error) {
	lines, err := run(cmd)
	if err != nil {
		return nil, err
	}
	views := make([]gpuView, cardCount)
	for i := range views {
		for _, field := range []struct {
			to        *uint64
			api, name string
		}{
			{&views[i].CUDATotal, "cuda", "total"}, {&views[i].CUDAFree, "cuda", "free"},
			{&views[i].NVMLTotal, "nvml", "total"}, {&views[i].NVMLFree, "nvml", "free"},
		} {
			if *field.to, err = value(lines, field.name, field.api, fmt.Sprint(i)); err != nil {
				return nil, err
			}
		}
	}
	return views, nil
}

func (s *stage) showRefusal(ctx context.Context) error {
	if _, err := s.cards.control(ctx, "reset-high-water"); err != nil {
		return err
	}
	filled, code, err := s.fill(ctx)
	if err != nil {
		return err
	}
	status, err := s.cards.status(ctx)
	if err != nil {
		return err
	}
	if status[0].HighWater != s.limit {
		return fmt.Errorf("the card held %d bytes at most, the limit is %d", status[0].HighWater, s.limit)
	}
	return s.show(Step{Name: "refusal", Title: "Where it is refused",
		Data: map[string]any{"limit_bytes": s.limit, "allocated_bytes": filled, "refusal_code": code,
			"card_high_water_bytes": status[0].HighWater},
		Prose: "The program now allocates in pieces that get smaller at each refusal, down to single bytes. It is given its " +
			"limit to the last byte, and the next one is refused with the driver's own out-of-memory. The card keeps its own " +
			"record of the most that was ever in use at once, and agrees.",
		Lines: []string{
			fmt.Sprintf("limit                   %12d bytes", s.limit),
			fmt.Sprintf("allocated in total      %12d bytes", filled),
			fmt.Sprintf("one byte more           %12s: CUDA_ERROR_OUT_OF_MEMORY", "refused"),
			fmt.Sprintf("most ever on the card   %12d bytes, says the card", status[0].HighWater),
		}})
}

// fill runs "client fill" in the slice, and checks that it ends exactly at the limit.
func (s *stage) fill(ctx context.Context) (filled, code uint64, err error) {
	lines, err := run(s.container.command(ctx, "fill"))
	if err != nil {
		return 0, 0, err
	}
	if filled, err = value(lines, "filled", "", ""); err != nil {
		return 0, 0, err
	}
	if code, err = value(lines, "refusal", "", ""); err != nil {
		return 0, 0, err
	}
	if filled != s.limit || code != cudaOutOfMemory {
		return 0, 0, fmt.Errorf("the program was given %d bytes of %d and then the driver's code %d", filled, s.limit, code)
	}
	return filled, code, nil
}

func (s *stage) showMetrics(ctx context.Context) (err error) {
	holder, err := startHolder(s.container.command(ctx, "hold", "all"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.stop()) }()
	lines, err := s.waitForMetrics(ctx, func(line string) bool {
		used, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		return err == nil && used == float64(s.limit) && strings.HasPrefix(line, metricUsed) &&
			strings.Contains(line, fmt.Sprintf("pod=%q", podName))
	})
	if err != nil {
		return err
	}
	return s.show(Step{Name: "metrics", Title: "What the node says of it", Data: map[string]any{"samples": lines}, Lines: lines,
		Prose: "While the program holds everything that it may: the agent reads the usage page from outside and publishes " +
			"each slice for node-exporter's textfile collector, under the pod's name."})
}

// waitForMetrics reads the metrics file until a line of it is as wanted, and returns the lines about slices.
func (s *stage) waitForMetrics(ctx context.Context, wanted func(string) bool) ([]string, error) {
	path := filepath.Join(textfileDir(s.dir), "vgpud.prom")
	var lines []string
	err := poll(ctx, func() (bool, error) {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		lines = lines[:0]
		found := false
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, metricPrefix) {
				lines = append(lines, line)
				found = found || wanted(line)
			}
		}
		return found, err
	})
	if err != nil {
		return nil, fmt.Errorf("wait for the slice's use in %s: %w; it says %q", path, err, lines)
	}
	return lines, nil
}

func (s *stage) showStop(ctx context.Context) error {
	if err := s.node.stop(); err != nil {
		return err
	}
	filled, _, err := s.fill(ctx)
	if err != nil {
		return err
	}
	return s.show(Step{Name: "stop", Title: "The agent stops; the limit stays",
		Data: map[string]any{"limit_bytes": s.limit, "allocated_bytes": filled},
		Prose: "The limit is in the page, and what enforces it is in the program's own process: an agent that stops leaves " +
			"the containers running, and limited. The same program once more, without an agent:",
		Lines: []string{fmt.Sprintf("allocated in total      %12d bytes, one byte more refused", filled)}})
}

// holder is a client that keeps its memory until it is stopped.
type holder struct{ cmd *exec.Cmd }

// startHolder returns once the client has said that it holds.
func startHolder(cmd *exec.Cmd) (*holder, error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start client: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start client: %w", err)
	}
	h := &holder{cmd}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "held=") {
			return h, nil
		}
	}
	return nil, errors.Join(errNoValue, h.stop())
}

func (h *holder) stop() error {
	if err := h.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop client: %w", err)
	}
	if err := h.cmd.Wait(); err != nil {
		return fmt.Errorf("stop client: %w", err)
	}
	return nil
}

// poll asks until done, an error, or the end of ctx.
func poll(ctx context.Context, done func() (bool, error)) error {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// bytesText is for people: whole GiB where it is one.
func bytesText(n uint64) string {
	const gib = 1 << 30
	if n%gib == 0 {
		return fmt.Sprintf("%d GiB", n/gib)
	}
	return fmt.Sprintf("%.2f GiB", float64(n)/gib)
}
