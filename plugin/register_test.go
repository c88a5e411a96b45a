// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of registration: whatever kubelet and directory do, the slices come back, once per kubelet, and the end is
// clean. Both models of a kubelet's bookkeeping are run where they differ.
package plugin

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/vgpud/vgpud/plugin/ledger"
)

var models = map[string]kubelettest.Model{"1.36": kubelettest.Model136, "1.37": kubelettest.Model137}

// forModels runs a test against both models.
func forModels(t *testing.T, run func(t *testing.T, model kubelettest.Model)) {
	for name, model := range models {
		t.Run(name, func(t *testing.T) { run(t, model) })
	}
}

// sockets lists our socket files in the plugin directory.
func (n *node) sockets() []string {
	n.t.Helper()
	names, err := filepath.Glob(filepath.Join(n.cfg.PluginDir(), "vgpud-*.sock"))
	must(n.t, err)
	return names
}

func TestRegistrationMessage(t *testing.T) {
	n := newNode(t)
	messages := make(chan kubelettest.Message, 100)
	k := n.kubelet(kubelettest.Options{Observe: func(m kubelettest.Message) { messages <- m }})
	stop := n.run()
	n.waitAllocatable(k, 20)
	// The kubelet dials back inside Register, so the options come first in its view.
	for _, method := range []string{"GetDevicePluginOptions", "Register", "ListAndWatch"} {
		m := <-messages
		if m.Method != method || m.Err != nil {
			t.Fatalf("%+v, want %s", m, method)
		}
		if request, ok := m.Request.(*v1beta1.RegisterRequest); ok {
			stem, err := endpointStem(n.cfg.PluginDir(), resource)
			must(t, err)
			if request.GetVersion() != "v1beta1" || request.GetResourceName() != resource || !isEndpoint(request.GetEndpoint(), stem) ||
				!request.GetOptions().GetPreStartRequired() || !request.GetOptions().GetGetPreferredAllocationAvailable() {
				t.Errorf("request %v", request)
			}
		}
	}
	if !n.srv.Status().Registered {
		t.Error("status says it is not registered")
	}
	stop()
	if left := n.sockets(); len(left) != 0 || n.srv.Status().Registered {
		t.Errorf("after the stop: sockets %v, status %+v", left, n.srv.Status())
	}
}

func TestListsAreSentOnChangeOnly(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	if l := <-k.Lists(); len(l.Message.GetDevices()) != 20 || l.Message.GetDevices()[0].GetTopology() != nil {
		t.Errorf("first list %v", l.Message)
	}
	gpus := twoGPUs()
	for range 50 { // ticks without news
		n.update(gpus...)
	}
	// Reasons do not appear on the wire: a change of reason alone is no news either.
	gpus[0].Health = Health{Reason: "contention"}
	n.update(gpus...)
	n.waitAllocatable(k, 10)
	gpus[0].Health = Health{Reason: "another"}
	n.update(gpus...)
	gpus[0].Health, gpus[0].NUMA = Health{}, 1
	n.update(gpus...)
	n.waitAllocatable(k, 20)
	var got []string
	for len(got) < 2 {
		l := <-k.Lists()
		healthy := 0
		for _, d := range l.Message.GetDevices() {
			if d.GetHealth() == v1beta1.Healthy {
				healthy++
			}
		}
		got = append(got, fmt.Sprint(healthy, " on ", l.Message.GetDevices()[0].GetTopology().GetNodes()))
	}
	if got[0] != "10 on []" || got[1] != "20 on [ID:1]" {
		t.Errorf("lists %q", got)
	}
	select {
	case l := <-k.Lists():
		t.Errorf("one list too many: %v", l.Message)
	default:
	}
}

// TestSlowKubeletMissesNoLastState: health changes faster than the kubelet reads; nothing blocks, the end is right.
func TestSlowKubeletMissesNoLastState(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{Observe: func(m kubelettest.Message) {
		if m.Method == "ListAndWatch" {
			time.Sleep(50 * time.Millisecond)
		}
	}})
	n.run()
	n.waitAllocatable(k, 20)
	gpus := twoGPUs()
	start := time.Now()
	for i := range 200 {
		gpus[0].Health = Health{}
		if i%2 == 0 {
			gpus[0].Health = Health{Reason: "contention"}
		}
		n.update(gpus...)
	}
	gpus[1].Health = Health{Reason: "contention"}
	gpus[1].Slices = 7
	n.update(gpus...)
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("updates waited for the kubelet: %v", took)
	}
	eventually(t, "17 devices, 10 of them healthy", func() bool {
		capacity, allocatable := k.Counts(resource)
		return capacity == 17 && allocatable == 10
	})
}

// TestKubeletRestarts is C32 (a) and (b): one registration per kubelet, containers' allocations stay.
func TestKubeletRestarts(t *testing.T) {
	forModels(t, func(t *testing.T, model kubelettest.Model) {
		n, k := running(t, kubelettest.Options{Model: model})
		a, err := k.Allocate(t.Context(), pod("u1"), app, resource, 1)
		must(t, err)
		for i, pause := range []time.Duration{500 * time.Millisecond, 0, 0, 20 * time.Millisecond, 0} {
			must(t, k.Restart(pause))
			n.waitAllocatable(k, 20)
			if got := k.Registrations(resource); got != i+2 {
				t.Errorf("%d registrations with %d kubelets", got, i+2)
			}
		}
		if k.Attempts() != k.Registrations(resource) {
			t.Errorf("%d attempts", k.Attempts())
		}
		if records := n.books.Snapshot(); len(records) != 1 || records[0].Key != keyOf(a) {
			t.Errorf("records %v", records)
		}
		if len(n.sockets()) != 1 {
			t.Errorf("sockets %v", n.sockets())
		}
	})
}

// TestOwnSocketDeleted is C32 (c).
func TestOwnSocketDeleted(t *testing.T) {
	forModels(t, func(t *testing.T, model kubelettest.Model) {
		n, k := running(t, kubelettest.Options{Model: model})
		for i := range 3 {
			before := n.sockets()
			must(t, os.Remove(before[0]))
			eventually(t, "a registration under a new name", func() bool { return k.Registrations(resource) == i+2 })
			n.waitAllocatable(k, 20)
			if after := n.sockets(); len(after) != 1 || after[0] == before[0] {
				t.Errorf("sockets before %v, after %v", before, after)
			}
		}
	})
}

// TestPluginBeforeKubelet is C32 (d), with a stale socket file in the way, and no directory at first.
func TestPluginBeforeKubelet(t *testing.T) {
	n := newNode(t)
	n.run()
	time.Sleep(150 * time.Millisecond) // there is nothing to see: it has to do nothing for a while
	must(t, os.MkdirAll(n.cfg.PluginDir(), 0o750))
	deadSocket(t, n.cfg.KubeletSocket())
	time.Sleep(150 * time.Millisecond)
	if st := n.srv.Status(); st.RegistrationFailures != 0 || len(n.sockets()) != 0 {
		t.Errorf("without a kubelet: %+v, sockets %v", st, n.sockets())
	}
	k := n.kubelet(kubelettest.Options{})
	n.waitAllocatable(k, 20)
	if k.Attempts() != 1 {
		t.Errorf("%d registrations", k.Attempts())
	}
}

// TestKubeletReplacedDuringRegistration is C32 (e): the socket becomes another kubelet's after it was looked at.
func TestKubeletReplacedDuringRegistration(t *testing.T) {
	n := newNode(t)
	must(t, os.MkdirAll(n.cfg.PluginDir(), 0o750))
	// A kubelet that answers Register only when it is told to, and by then is not the one at kubelet.sock.
	slow := &stubKubelet{arrived: make(chan struct{}, 10), answer: make(chan error)}
	stopSlow := slow.serve(t, n.cfg.KubeletSocket())
	n.run()
	<-slow.arrived
	k := n.kubelet(kubelettest.Options{})
	close(slow.answer)
	n.waitAllocatable(k, 20)
	if k.Attempts() != 1 {
		t.Errorf("%d registrations with the new kubelet", k.Attempts())
	}
	stopSlow()
}

// TestDirectoryReplaced is C32 (f).
func TestDirectoryReplaced(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	for range 2 {
		k.Stop()
		must(t, os.Rename(n.cfg.PluginDir(), fmt.Sprintf("%s.%d", n.cfg.PluginDir(), time.Now().UnixNano())))
		must(t, k.Resume())
		n.waitAllocatable(k, 20)
	}
	// And once more with the kubelet alive all the time: its stream is kept while no kubelet.sock is there.
	must(t, os.Remove(n.cfg.KubeletSocket()))
	before := k.Registrations(resource)
	time.Sleep(200 * time.Millisecond)
	if _, allocatable := k.Counts(resource); allocatable != 20 || k.Registrations(resource) != before {
		t.Errorf("without kubelet.sock: allocatable %d", allocatable)
	}
}

// TestAgentRestarts: 30 restarts without a gap, under fresh names, with both models.
func TestAgentRestarts(t *testing.T) {
	forModels(t, func(t *testing.T, model kubelettest.Model) {
		n := newNode(t)
		k := n.kubelet(kubelettest.Options{Model: model})
		for range 30 {
			stop := n.run()
			n.waitAllocatable(k, 20)
			stop()
			n.waitAllocatable(k, 0)
			n.reopen()
		}
		if k.Attempts() != 30 || k.Registrations(resource) != 30 {
			t.Errorf("%d attempts, %d registrations", k.Attempts(), k.Registrations(resource))
		}
	})
}

// TestOverlap: a successor starts before its predecessor stops. 1.37 copes with it; the predecessor must not take
// the successor's socket along. (On 1.36 the kubelet itself loses the resource: see kubelettest, and D4.)
func TestOverlap(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{})
	stopOld := n.run()
	n.waitAllocatable(k, 20)
	n.reopen()
	n.run()
	eventually(t, "two registrations", func() bool { return k.Registrations(resource) == 2 })
	stopOld()
	n.waitAllocatable(k, 20)
	if len(n.sockets()) != 1 {
		t.Errorf("sockets %v", n.sockets())
	}
	_, err := k.Allocate(t.Context(), pod("u"), app, resource, 1)
	must(t, err)
}

// TestLostStreamIsNoticed: the kubelet accepts twice and never opens the list.
func TestLostStreamIsNoticed(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{IgnoreLists: func(attempt int) bool { return attempt <= 2 }})
	n.run()
	n.waitAllocatable(k, 20)
	if st := n.srv.Status(); k.Attempts() != 3 || st.RegistrationFailures != 2 || st.Registrations != 1 || st.LastError != "" {
		t.Errorf("%d attempts, status %+v", k.Attempts(), st)
	}
}

// TestRefusedRegistrationBacksOff: no storm, and the reason is in the status.
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
	if st := n.srv.Status(); !strings.Contains(st.LastError, "no thanks") || len(n.sockets()) != 0 {
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

// TestOversizeListIsRefusedBeforeRegistering is C33 at the server.
func TestOversizeListIsRefusedBeforeRegistering(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{})
	gpu := GPU{GPU: ledger.GPU{UUID: uuidA, UsableBytes: 80 * gib, Slices: 81920}}
	if err := n.srv.Update([]GPU{gpu}); err == nil || !strings.Contains(err.Error(), "81920 devices") {
		t.Errorf("error %v", err)
	}
	if k.Attempts() != 0 || len(n.srv.Slots()) != 20 {
		t.Error("the refused list had an effect")
	}
	gpus := twoGPUs()
	gpus[0].Slices, gpus[1].Slices = 1280, 1280
	n.update(gpus...)
	n.run()
	n.waitAllocatable(k, 2560)
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
