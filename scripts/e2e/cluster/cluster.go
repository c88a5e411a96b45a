// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package cluster brings up a real Kubernetes cluster of one node on one machine: etcd, the control plane, containerd
// and kubelet, all in the namespaces of package node, from binaries that the caller has built. Nothing of it is
// reachable from outside, and nothing but log files outlives it.
package cluster

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/vgpud/vgpud/scripts/e2e/node"
)

const (
	apiAddress  = "127.0.0.1:6443"
	etcdAddress = "http://127.0.0.1:2379"
	stopTimeout = 10 * time.Second
)

// Config is what a cluster is made from. All paths are absolute.
type Config struct {
	Dir        string // an empty folder for all files of the cluster; logs are in Dir/logs
	BinDir     string // kubelet, kube-apiserver, …, containerd, ctr
	Etcd       string // the etcd program
	PauseImage string // the name of the sandbox's image
	Archives   []string
	Progress   func(format string, args ...any)
}

// Cluster is a running cluster. Tests may stop and start Kubelet.
type Cluster struct {
	Node    *node.Node
	API     kubernetes.Interface
	Kubelet *node.Process

	config     Config
	rest       *rest.Config
	http       *http.Client // its connections start inside the node
	cgroup     string
	adminToken string

	mu       sync.Mutex
	services []*node.Process // those that run until Down; guarded by mu
}

// Up starts a cluster and returns when its node is ready. The caller ends it with Down; when Up fails it has done so.
func Up(ctx context.Context, config Config) (_ *Cluster, err error) {
	c := &Cluster{config: config, cgroup: cgroupName(config.Dir)}
	for _, dir := range []string{"logs", "etc/cni"} {
		if err := os.MkdirAll(filepath.Join(config.Dir, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := makeCgroups(c.cgroup); err != nil {
		return nil, errors.Join(err, removeCgroups(c.cgroup))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Down())
		}
	}()
	if c.Node, err = node.Start(config.Dir); err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: &http.Transport{DialContext: c.Node.DialContext, DisableKeepAlives: true}}
	if c.adminToken, err = writePKI(filepath.Join(config.Dir, "pki")); err != nil {
		return nil, err
	}
	if err := c.writeConfigs(); err != nil {
		return nil, err
	}
	work, workCtx := errgroup.WithContext(ctx)
	work.Go(func() error { return c.startControlPlane(workCtx) })
	work.Go(func() error { return c.startRuntime(workCtx) })
	if err := work.Wait(); err != nil {
		return nil, err
	}
	work, workCtx = errgroup.WithContext(ctx)
	work.Go(func() error { return c.startKubelet(workCtx) })
	work.Go(func() error { return c.awaitServiceAccount(workCtx) })
	return c, work.Wait()
}

// Down ends the cluster and removes its cgroups, mounts and processes; log files stay. Idempotent.
func (c *Cluster) Down() error {
	var err error
	if c.Node != nil {
		err = c.Node.Close()
	}
	return errors.Join(err, removeCgroups(c.cgroup))
}

// Clean removes what a cluster in dir has left behind when its process was killed: its cgroups. Its processes and
// mounts have ended with the process.
func Clean(dir string) error { return removeCgroups(cgroupName(dir)) }

//go:embed etc
var templates embed.FS

func (c *Cluster) writeConfigs() error {
	all, err := template.ParseFS(templates, "etc/*")
	if err != nil {
		return err
	}
	values := map[string]string{"EtcDir": c.path("etc"), "PauseImage": c.config.PauseImage, "Cgroup": c.cgroup,
		"Address": node.Address}
	for name, target := range map[string]string{"containerd.toml": "etc/containerd.toml",
		"kubelet.yaml": "etc/kubelet.yaml", "cni.conflist": "etc/cni/10-e2e.conflist"} {
		file, err := os.Create(c.path(target))
		if err != nil {
			return err
		}
		if err := errors.Join(all.ExecuteTemplate(file, name, values), file.Close()); err != nil {
			return fmt.Errorf("write %s: %w", target, err)
		}
	}
	return nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.config.Dir, name) }

func (c *Cluster) bin(name string) string { return filepath.Join(c.config.BinDir, name) }

// start starts a service that runs until Down.
func (c *Cluster) start(name string, args ...string) error {
	return c.startProcess(c.Node.NewProcess(name, args...))
}

func (c *Cluster) startProcess(p *node.Process) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services = append(c.services, p)
	return p.Start()
}

// deadService names a service that has ended though it should not have.
func (c *Cluster) deadService() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.services {
		if !p.Running() {
			return fmt.Errorf("%s has ended (%s), see %s", p.Name, p.State(), p.LogPath())
		}
	}
	return nil
}

// await calls done every 50 ms until it says so. It fails when ctx ends or a service of the cluster dies.
func (c *Cluster) await(ctx context.Context, what string, done func() bool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		if err := c.deadService(); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// RestartKubelet stops kubelet and starts it again, and returns when it is healthy.
func (c *Cluster) RestartKubelet(ctx context.Context) error {
	if err := c.Kubelet.Stop(syscall.SIGTERM, stopTimeout); err != nil {
		return err
	}
	return c.StartKubelet(ctx)
}
