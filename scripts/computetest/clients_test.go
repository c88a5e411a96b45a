// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// mustBeEqualAndSlowed runs a program of somebody else, which prints the same each time, on the bare card and under 30
// percent of it: it prints the same, takes as much of the card, and that is 30 percent of the time.
func mustBeEqualAndSlowed(t *testing.T, settings []string, environment func(*card) []string, arguments ...string) {
	t.Helper()
	run := func(c *card, command *exec.Cmd) (output string, busy time.Duration, share used) {
		command.Env = append(slices.DeleteFunc(command.Env, func(line string) bool { return strings.HasPrefix(line, "LD_LIBRARY_PATH=") }),
			environment(c)...)
		p := start(t, command)
		first, last := c.watch(p)
		if p.err != nil {
			p.fail("ended: %v", p.err)
		}
		return p.printed(), last.busy, last.since(first)
	}
	c := newCard(t, settings...)
	command := exec.Command(arguments[0], arguments[1:]...)
	command.Env = append(cleanEnvironment(), c.environment()...)
	want, wantBusy, whole := run(c, command)
	if whole.percent < 60 {
		t.Fatalf("without a limit the card is busy %.1f %% of the time: the program does not depend on it", whole.percent)
	}
	// A program that waits for the card after each frame cannot use all that it has.
	mustShare(t, 28, 5, func() used {
		c := newCard(t, settings...)
		got, busy, share := run(c, c.limitedCommand(30, arguments[0], arguments[1:]...))
		if got != want {
			t.Errorf("under a limit it prints\n%s\nwithout\n%s", got, want)
		}
		if busy < wantBusy*99/100 || busy > wantBusy*101/100 {
			t.Errorf("under a limit the card was busy for %s, without for %s", busy, wantBusy)
		}
		return share
	})
}

// watch waits for the program's end and returns the first and the last reading between which the card was at work.
func (c *card) watch(p *process) (first, last mark) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		ended := false
		select {
		case <-p.ended:
			ended = true
		case <-time.After(50 * time.Millisecond):
		}
		now := c.mark()
		if first.busy == 0 {
			first = now
		}
		if now.busy > last.busy {
			last = now
		}
		if ended {
			return first, last
		}
		if time.Now().After(deadline) {
			p.fail("has not ended after a minute")
		}
	}
}

func TestFFmpegIsSlowedAndGivesTheSameFrames(t *testing.T) {
	t.Parallel()
	ffmpeg := require.Tool(t, "ffmpeg")
	arguments := append([]string{ffmpeg}, strings.Fields("-hide_banner -loglevel error -nostdin -init_hw_device cuda=gpu:0 "+
		"-filter_hw_device gpu -f lavfi -i testsrc2=size=640x360:rate=10:duration=4 -f lavfi -i testsrc=size=160x90:rate=10:duration=4 "+
		"-filter_complex [0]format=nv12,hwupload[a];[1]format=nv12,hwupload[b];[a][b]overlay_cuda,hwdownload,format=nv12 -f framemd5 -")...)
	// overlay_cuda launches its kernel twice for each of 40 frames.
	mustBeEqualAndSlowed(t, []string{"kernel_ns=20000000"}, (*card).environment, arguments...)
}

func TestPyCUDAIsSlowedAndGivesTheSameResults(t *testing.T) {
	t.Parallel()
	const python = "/usr/bin/python3" // Debian's, for which its PyCUDA is built
	root := require.RepoRoot(t)
	unpacked := filepath.Join(root, "build", "e2e", "tools", "usr", "lib")
	environment := func(c *card) []string {
		return []string{"PYTHONPATH=" + filepath.Join(unpacked, "python3", "dist-packages"), "GPUSIM_DIR=" + c.dir,
			"LD_LIBRARY_PATH=" + c.sim + ":" + filepath.Join(unpacked, "x86_64-linux-gnu")}
	}
	c := newCard(t)
	probe := exec.Command(python, "-c", "import pycuda.driver")
	probe.Env = append(cleanEnvironment(), environment(c)...)
	out, err := probe.CombinedOutput()
	require.Need(t, "pycuda", err == nil, "PyCUDA cannot be loaded (scripts/e2e/packages.sh fetches it): "+string(out))
	mustBeEqualAndSlowed(t, nil, environment, python, filepath.Join(root, "scripts", "computetest", "testdata", "pycuda_client.py"))
}
