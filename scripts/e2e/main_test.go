// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package e2e tests vgpud from end to end: on a real cluster of one node (package cluster), whose two GPUs are
// simulated, with pods that run real programs. All tests share the cluster that TestMain brings up; README.md says
// what has to be built before, and run.sh does it.
package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vgpud/vgpud/scripts/e2e/cluster"
	"github.com/vgpud/vgpud/scripts/e2e/image"
	"github.com/vgpud/vgpud/scripts/e2e/node"
)

const upTimeout = 2 * time.Minute

// env is what the tests share. It is set once, before the first test.
var env struct {
	build   string // the project's build folder
	parts   string // copies of what is tested, so that a build beside the tests does not change it under them
	cluster *cluster.Cluster
	gpus    *gpus
	agent   *agent

	beside   sync.WaitGroup // tests that run at the same time
	removals errgroup.Group // of pods whose tests have ended; TestMain reports an error if no test does
}

func TestMain(m *testing.M) {
	node.RunInit()
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	clean := flag.Bool("e2e.clean", false, "only remove what a killed run has left behind")
	keep := flag.Bool("e2e.keep", false, "after the tests keep the cluster until a signal, to look around in it")
	flag.Parse()
	root, err := projectRoot()
	if err != nil {
		return complain(err)
	}
	env.build = filepath.Join(root, "build")
	dir := filepath.Join(env.build, "e2e", "run")
	if err := errors.Join(cluster.Clean(dir), removeFiles(dir)); err != nil || *clean {
		return complain(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer func() {
		if err := tearDown(dir); err != nil {
			code = max(code, complain(err))
		}
	}()
	if err := bringUp(ctx, dir); err != nil {
		return complain(err)
	}
	done := make(chan int, 1)
	go func() { done <- m.Run() }()
	select {
	case code = <-done:
		code = max(code, complain(env.removals.Wait()))
	case <-ctx.Done():
		return complain(errors.New("interrupted"))
	}
	if *keep {
		fmt.Printf("cluster kept; enter it with: nsenter -t %d --all; a signal ends it\n", env.cluster.Node.PID())
		<-ctx.Done()
	}
	return code
}

func complain(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return 0
}

// bringUp makes the images, the cluster, the simulated GPUs and the agent.
func bringUp(ctx context.Context, dir string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	start := time.Now()
	progress := func(format string, args ...any) {
		fmt.Printf("[%5.1f s] %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(filepath.Join(dir, "logs"), 0o755)); err != nil {
		return err
	}
	env.parts = filepath.Join(dir, "parts")
	if err := copyParts(); err != nil {
		return err
	}
	store := image.Store{Dir: filepath.Join(env.build, "e2e", "images")}
	archives, err := buildImages(&store)
	if err != nil {
		return err
	}
	progress("images made")
	binDir := filepath.Join(env.build, "e2e", "bin")
	env.cluster, err = cluster.Up(ctx, cluster.Config{Dir: dir, BinDir: binDir, Etcd: etcdPath(), Archives: archives,
		PauseImage: pauseImage, Progress: progress})
	if err != nil {
		return err
	}
	if env.gpus, err = makeGPUs(ctx); err != nil {
		return err
	}
	progress("%d simulated GPUs", len(env.gpus.uuids))
	env.agent = newAgent()
	if err := env.agent.start(ctx, nil); err != nil {
		return err
	}
	progress("agent offers its slices")
	return nil
}

// copyParts copies the programs and libraries under test.
func copyParts() error {
	for _, name := range []string{"vgpud", "libvgpu.so", "sim/gpusim", "sim/libcuda.so.1", "sim/libnvidia-ml.so.1"} {
		content, err := os.ReadFile(filepath.Join(env.build, name))
		if err != nil {
			return fmt.Errorf("run make build first: %w", err)
		}
		target := filepath.Join(env.parts, name)
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(target, content, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// tearDown ends the cluster and leaves log files only.
func tearDown(dir string) error {
	if env.cluster == nil {
		return nil
	}
	if env.agent != nil {
		_ = env.agent.process.Stop(syscall.SIGTERM, stopTimeout) // a test reports it if this is not clean
	}
	return errors.Join(env.cluster.Down(), removeFiles(dir))
}

// removeFiles removes all files of a run but its logs.
func removeFiles(dir string) (err error) {
	for _, name := range []string{"etc", "parts", "pki", "var-lib", "var-log"} {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
	}
	return err
}

// projectRoot is the folder above this module that holds the project's own go.mod.
func projectRoot() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(filepath.Dir(here))
	if _, err := os.Stat(filepath.Join(root, "libvgpu")); err != nil {
		return "", fmt.Errorf("run the tests in scripts/e2e: %w", err)
	}
	return root, nil
}
