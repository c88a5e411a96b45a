// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of registration: whatever kubelet and directory do, the slices come back, once per kubelet, and the end is
// clean. Both models of a kubelet's bookkeeping are run where they differ.

package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
	n := newNode(t, func(c *Config) { c.Timing.Stop = time.Minute }) // a stop that needs force would be noticed
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
	eventually(t, "registered, by the status", func() bool { return n.srv.Status().Registered })
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
	time.Sleep(100 * time.Millisecond) // time for the list that must not come
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

// TestKubeletRestarts: one registration per kubelet, containers' allocations stay.
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

// TestStreamEndsAlone: the kubelet drops the list stream and lives on, as it does with a list it cannot take.
func TestStreamEndsAlone(t *testing.T) {
	forModels(t, func(t *testing.T, model kubelettest.Model) {
		n, k := running(t, kubelettest.Options{Model: model})
		k.DropLists(resource)
		eventually(t, "a second registration", func() bool { return k.Registrations(resource) == 2 })
		n.waitAllocatable(k, 20)
	})
}

// TestOwnSocketDeleted: a session whose socket file is gone ends, and the next one registers.
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

// TestPluginBeforeKubelet: with a stale socket file in the way, and no directory at first.
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

// TestKubeletReplacedDuringRegistration: the socket becomes another kubelet's after it was looked at.
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

// TestNewKubeletSocketAlone: another kubelet.sock, our own socket and the old stream untouched.
func TestNewKubeletSocketAlone(t *testing.T) {
	n, _ := running(t, kubelettest.Options{})
	must(t, os.Rename(n.cfg.KubeletSocket(), n.cfg.KubeletSocket()+".old")) // keeps the inode taken
	stub := &stubKubelet{arrived: make(chan struct{}, 10), answer: make(chan error)}
	stopStub := stub.serve(t, n.cfg.KubeletSocket())
	defer stopStub()
	select {
	case <-stub.arrived:
	case <-time.After(10 * time.Second):
		t.Error("the new kubelet saw no registration")
	}
}

// TestDirectoryReplaced: sockets are found in the directory that has the name now.
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
// the successor's socket along. (On 1.36 the kubelet itself loses the resource: see kubelettest.)
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
	eventually(t, "registered, by the status", func() bool { return n.srv.Status().Registered })
	if st := n.srv.Status(); k.Attempts() != 3 || st.RegistrationFailures != 2 || st.Registrations != 1 {
		t.Errorf("%d attempts, status %+v", k.Attempts(), st)
	}
}

// TestBadGPUWithdrawsOnlyItself: whatever is wrong with one, the other is offered as it is now.
func TestBadGPUWithdrawsOnlyItself(t *testing.T) {
	for name, spoil := range map[string]func(*GPU){
		"too small":      func(g *GPU) { g.UsableBytes, g.Slices = 500<<20, 1000 },
		"no slices":      func(g *GPU) { g.Slices = 0 },
		"no UUID":        func(g *GPU) { g.UUID = "" },
		"long UUID":      func(g *GPU) { g.UUID = strings.Repeat("x", 64) },
		"UUID not UTF-8": func(g *GPU) { g.UUID = "GPU-\xff" },
		"two in one":     func(g *GPU) { g.UUID = "GPU-1,GPU-2" },
		"duplicate":      func(g *GPU) { g.UUID = uuidA },
		"list too large": func(g *GPU) { g.Slices = 60000 },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			gpus := twoGPUs()
			if err := n.srv.Update(gpus[:1]); err != nil {
				t.Fatal(err)
			}
			spoil(&gpus[1])
			gpus[0].Health = Health{Reason: "gpu-lost", Hard: true}
			if err := n.srv.Update(gpus); err == nil || errors.Is(err, ErrListTooLarge) != (name == "list too large") {
				t.Errorf("error %v", err)
			}
			listed := n.srv.Slices()
			if len(listed) != 10 || slices.ContainsFunc(listed, Slice.Healthy) {
				t.Errorf("%d slices; the lost GPU's 10 must stand, none healthy", len(listed))
			}
			if _, err := n.srv.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{
				{DevicesIds: []string{uuidA + "::0"}}}}); status.Code(err) != codes.Unavailable {
				t.Errorf("allocate on the lost GPU: %v", err)
			}
			if err := n.srv.Update(twoGPUs()); err != nil || len(n.srv.Slices()) != 20 {
				t.Errorf("put right: %v, %d slices", err, len(n.srv.Slices()))
			}
		})
	}
}

// TestOversizeListIsRefusedBeforeRegistering: the server says the numbers and sends nothing.
func TestOversizeListIsRefusedBeforeRegistering(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{})
	gpu := GPU{GPU: ledger.GPU{UUID: uuidA, UsableBytes: 80 * gib, Slices: 81920}}
	if err := n.srv.Update([]GPU{gpu}); !errors.Is(err, ErrListTooLarge) || !strings.Contains(err.Error(), "81920 devices") {
		t.Errorf("error %v", err)
	}
	if k.Attempts() != 0 || len(n.srv.Slices()) != 0 {
		t.Errorf("%d slices, %d attempts: the list before must not stand", len(n.srv.Slices()), k.Attempts())
	}
	gpus := twoGPUs()
	gpus[0].Slices, gpus[1].Slices = 1280, 1280
	n.update(gpus...)
	n.run()
	n.waitAllocatable(k, 2560)
}
