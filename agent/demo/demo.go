// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package demo is what `vgpud demo` shows: one node with two simulated GPUs, an in-process kubelet, the real agent as
// a process of its own, and a program that runs in a slice. Nothing is faked but the kubelet and the cards, and every
// statement that is printed was checked first: a demo that cannot show what it says ends with an error.
//
// Everything lies in one temporary directory and is gone afterwards. No root, no containers: a container is a
// directory with the files of the allocation at their container paths.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin"
)

// Timeout bounds the whole demo; it takes some ten seconds.
const Timeout = 60 * time.Second

// Options is what the demo needs from outside.
type Options struct {
	Program string                        // this program, which is also the agent
	Library string                        // libvgpu.so
	SimDir  string                        // the simulated driver's libraries, gpusim, and the programs client and flood
	Environ []string                      // environment of the programs that it runs
	Pages   func(dir string) plugin.Pages // for the rehearsal: makes pages below dir
	Out     io.Writer                     // where the story goes
	JSON    bool                          // one object per line, one line per step
	Colour  bool
	DryRun  bool // protocol messages alone: no other process, made-up cards
}

// node is what the kubelet talks to: the real agent, or in a rehearsal its plugin alone.
type node interface {
	// start begins to serve below kubeletDir.
	start(ctx context.Context, kubeletDir string) error
	// fail makes one card fail; recover takes that back. It returns the failed card's UUID.
	fail(ctx context.Context) (uuid string, err error)
	recover(ctx context.Context) error
	// explain is what it has to say when a step failed; may be empty.
	explain() string
	// stop ends it in order; a second call does nothing.
	stop() error
}

// stage holds what the steps share.
type stage struct {
	Options
	narrator
	dir     string
	kubelet *kubelet
	node    node
	cards   cards

	firstCard string   // UUID of the card that the slice is taken from; empty in a rehearsal: any
	slices    []string // device IDs of the first list
	answer    *v1beta1.ContainerAllocateResponse
	container *container
	limit     uint64 // bytes that the slice may hold
}

// Run shows the demo. It returns an error when any step did not come out as it should.
func Run(ctx context.Context, o Options) (err error) {
	// The kernel takes the end of the thread that started a process for the end of its parent (Pdeathsig).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	ctx, ended := context.WithCancelCause(ctx)
	defer ended(nil)
	dir, err := os.MkdirTemp("", "vgpud-demo-")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, unmount(dir), os.RemoveAll(dir)) }()
	s := &stage{Options: o, dir: dir,
		narrator: narrator{out: o.Out, asJSON: o.JSON, colour: o.Colour, began: time.Now()}}
	s.cards = cards{dir: filepath.Join(dir, "cards"), libs: o.SimDir, env: cleanEnviron(o.Environ)}
	steps := []func(context.Context) error{s.showRegistration, s.showFirstList, s.showFailure, s.showRecovery, s.showAllocate}
	if o.DryRun {
		s.node = &rehearsal{dir: dir, library: o.Library, pages: o.Pages}
	} else {
		if err := s.checkBuilt(); err != nil {
			return err
		}
		s.node = &agentNode{options: o, dir: dir, cards: s.cards, ended: ended}
		steps = append([]func(context.Context) error{s.showCards}, steps...)
		steps = append(steps, s.showView, s.showRefusal, s.showMetrics, s.showSharing, s.showCap, s.showStop)
	}
	defer func() {
		stopped := s.node.stop()
		if ctx.Err() == nil { // an agent that is interrupted at its very start has nothing to stop in order
			err = errors.Join(err, stopped)
		}
	}()
	if s.kubelet, err = startKubelet(filepath.Join(dir, "kubelet")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.kubelet.stop()) }()
	s.say("")
	for _, step := range steps {
		if err := step(ctx); err != nil {
			s.say("%s", s.node.explain())
			return err
		}
	}
	s.say("%d steps in %.1f s, each checked; everything the demo made is gone again.", s.count, time.Since(s.began).Seconds())
	return nil
}

// checkBuilt looks for what only a build has, so that the message is about that and not about a failed exec.
func (s *stage) checkBuilt() error {
	for _, path := range []string{s.Library, filepath.Join(s.SimDir, "gpusim"), filepath.Join(s.SimDir, "client"), filepath.Join(s.SimDir, "flood"),
		filepath.Join(s.SimDir, "libcuda.so.1"), filepath.Join(s.SimDir, "libnvidia-ml.so.1")} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the demo needs the simulated GPU (make build): %w", err)
		}
	}
	return nil
}

// cleanEnviron leaves out what would steer the programs that the demo runs.
func cleanEnviron(environ []string) []string {
	prefixes := []string{"VGPUD_", "GPUSIM_", "CUDA_", "NVIDIA_", "CLIENT_", "LD_"}
	return slices.DeleteFunc(slices.Clone(environ), func(line string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(line, prefix) })
	})
}
