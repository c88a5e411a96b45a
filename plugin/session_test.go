// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of sessions and their sockets: refused registrations, an orderly end whatever hangs, names and leftovers.

package plugin

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin/kubelettest"
)

// TestRefusedRegistrationBacksOff: no storm, and the reason is logged.
func TestRefusedRegistrationBacksOff(t *testing.T) {
	n := newNode(t)
	must(t, os.MkdirAll(n.cfg.PluginDir(), 0o750))
	stub := &stubKubelet{arrived: make(chan struct{}, 1000), answer: make(chan error)}
	go func() {
		for {
			select {
			case stub.answer <- errors.New("no thanks"):
			case <-t.Context().Done():
				return
			}
		}
	}()
	stopStub := stub.serve(t, n.cfg.KubeletSocket())
	stop := n.run()
	time.Sleep(2 * time.Second)
	stop()
	stopStub()
	// 0, 150, 450, 1050, 2250 ms: four at most fit into two seconds.
	if got := len(stub.arrived); got < 2 || got > 5 {
		t.Errorf("%d attempts in 2 s", got)
	}
	if st := n.srv.Status(); st.RegistrationFailures == 0 || !strings.Contains(n.log.String(), "no thanks") || len(n.sockets()) != 0 {
		t.Errorf("status %+v, sockets %v", st, n.sockets())
	}
}

// TestStopWhileTheKubeletReadsNothing: a full list stream must not hold up the end.
func TestStopWhileTheKubeletReadsNothing(t *testing.T) {
	n := newNode(t, func(c *Config) { c.Timing.Stop = 300 * time.Millisecond })
	gpus := twoGPUs()
	gpus[0].Slices, gpus[1].Slices = 1280, 1280
	n.update(gpus...)
	release := make(chan struct{})
	var stuck atomic.Bool
	k := n.kubelet(kubelettest.Options{Observe: func(m kubelettest.Message) {
		if m.Method == "ListAndWatch" && m.Response != nil && stuck.Load() {
			<-release
		}
	}})
	defer close(release)
	stop := n.run()
	n.waitAllocatable(k, 2560)
	stuck.Store(true)
	for i := range 20 { // each list has 160 kB, the stream's window 64 kB
		gpus[0].Health = Health{Reason: "contention"}
		if i%2 == 0 {
			gpus[0].Health = Health{}
		}
		n.update(gpus...)
		time.Sleep(10 * time.Millisecond)
	}
	start := time.Now()
	stop()
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
}

func TestRunEndsWhereverItIs(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		n := newNode(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must(t, n.srv.Run(ctx))
	})
	t.Run("inside Register", func(t *testing.T) {
		n := newNode(t)
		must(t, os.MkdirAll(n.cfg.PluginDir(), 0o750))
		stub := &stubKubelet{arrived: make(chan struct{}, 10), answer: make(chan error)}
		stopStub := stub.serve(t, n.cfg.KubeletSocket())
		stop := n.run()
		<-stub.arrived
		stop()
		stopStub()
		if len(n.sockets()) != 0 {
			t.Errorf("sockets %v", n.sockets())
		}
	})
}

func TestLeftovers(t *testing.T) {
	dir := shortDir(t)
	stem, err := endpointStem(dir, "a.com/gpu")
	must(t, err)
	dead, live, young := stem+"000000000001.sock", stem+"000000000002.sock", stem+"000000000003.sock"
	other := "vgpud-a.com-gpu-mem-000000000004.sock"
	plain := stem + "000000000005.sock"
	for _, name := range []string{dead, other, young} {
		deadSocket(t, filepath.Join(dir, name))
	}
	overwrite(t, filepath.Join(dir, plain), []byte("not a socket"))
	listener, err := net.Listen("unix", filepath.Join(dir, live))
	must(t, err)
	defer listener.Close()
	old := time.Now().Add(-time.Minute)
	for _, name := range []string{dead, other, live, plain} {
		must(t, os.Chtimes(filepath.Join(dir, name), old, old))
	}
	removed, err := removeLeftovers(dir, "a.com/gpu", 10*time.Second, time.Now())
	must(t, err)
	if len(removed) != 1 || removed[0] != dead {
		t.Errorf("removed %v, want only %s", removed, dead)
	}
	left, err := os.ReadDir(dir)
	must(t, err)
	if len(left) != 4 {
		t.Errorf("left %v", left)
	}
}

func TestForeignSocketIsNotRemoved(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	deadSocket(t, path)
	id, err := identify(path)
	must(t, err)
	must(t, os.Rename(path, path+".old")) // keeps the inode taken
	deadSocket(t, path)
	must(t, removeSocket(path, id))
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the successor's socket: %v", err)
	}
}

func TestEndpointFitsTheSocketAddress(t *testing.T) {
	long := strings.Repeat("a", 60) + ".example.com/" + strings.Repeat("b", 63)
	name, err := freshEndpoint("/var/lib/kubelet/device-plugins", long)
	must(t, err)
	if path := "/var/lib/kubelet/device-plugins/" + name; len(path) > maxSocketPath || !strings.HasPrefix(name, "vgpud-") {
		t.Errorf("%d characters: %s", len(path), path)
	}
	again, err := freshEndpoint("/var/lib/kubelet/device-plugins", long)
	must(t, err)
	if again == name {
		t.Error("the same name twice")
	}
	if _, err := freshEndpoint("/"+strings.Repeat("d", 90), resource); err == nil {
		t.Error("a directory that leaves no room was accepted")
	}
}

// deadSocket leaves a socket file that nobody listens on.
func deadSocket(t *testing.T, path string) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	must(t, listener.Close())
}

// stubKubelet is a registration server that answers when and what the test says.
type stubKubelet struct {
	v1beta1.UnimplementedRegistrationServer
	arrived chan struct{}
	answer  chan error
}

func (s *stubKubelet) Register(ctx context.Context, _ *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	s.arrived <- struct{}{}
	select {
	case err := <-s.answer:
		return &v1beta1.Empty{}, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *stubKubelet) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	return func() {
		server.Stop()
		<-done
	}
}
