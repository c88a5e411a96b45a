// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of Allocate, PreStartContainer and GetPreferredAllocation through the in-process kubelet.

package plugin

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin/kubelettest"
	"github.com/vgpud/vgpud/plugin/ledger"
)

func pod(uid string) kubelettest.Pod {
	return kubelettest.Pod{UID: uid, Namespace: "default", Name: "pod-" + uid}
}

var app = kubelettest.Container{Name: "app"}

// running brings a node and a kubelet up and waits for the twenty slices.
func running(t *testing.T, opts kubelettest.Options) (*node, *kubelettest.Kubelet) {
	t.Helper()
	n := newNode(t)
	k := n.kubelet(opts)
	n.run()
	n.waitAllocatable(k, 20)
	return n, k
}

func keyOf(a kubelettest.Allocation) string { return a.Response.GetEnvs()[AllocationVariable] }

func TestAllocateAnswersInFull(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	n.books.SetCompute(ledger.ComputePolicy{Mode: ledger.ComputeElastic, CeilingPPM: ledger.WholePPM})
	a, err := k.Allocate(t.Context(), pod("u1"), app, resource, 2)
	must(t, err)
	rec := n.books.Snapshot()[0]
	if rec.Key != keyOf(a) || rec.Library != n.cfg.library() || rec.Resource != resource {
		t.Errorf("record %+v, response key %s", rec, keyOf(a))
	}
	// Two slices are spread over the two GPUs, and the response names both.
	if got := a.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"]; got != uuidA+","+uuidB {
		t.Errorf("visible devices %q", got)
	}
	compute := ledger.Compute{Mode: ledger.ComputeElastic, SharePPM: 100_000, CeilingPPM: ledger.WholePPM}
	for _, g := range rec.Grants {
		if g.MemoryLimitBytes != 8*gib || g.Compute != compute {
			t.Errorf("grant %+v", g)
		}
	}
	const rule = "elastic share=10 ceiling=100" // of both GPUs
	if got := a.Response.GetEnvs()[ComputeVariable]; got != rule {
		t.Errorf("%s=%q, want %q", ComputeVariable, got, rule)
	}
	if !strings.Contains(n.log.String(), rule) {
		t.Errorf("the log does not tell the rule in force:\n%s", n.log)
	}
	for _, m := range a.Response.GetMounts() {
		if info, err := os.Lstat(m.GetHostPath()); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: %v", m.GetHostPath(), err)
		}
	}
	_, err = k.StartContainer(t.Context(), "u1", "app")
	must(t, err)
	if n.pages.epoch(rec.Key) != 1 {
		t.Errorf("epoch raised %d times", n.pages.epoch(rec.Key))
	}
	if st := n.srv.Status(); st.Allocations != 1 || st.AllocationFailures != 0 {
		t.Errorf("status %+v", st)
	}
}

// TestEqualRequestsKeepTheirSlices: concurrent equal requests, each answer for its own device IDs.
func TestEqualRequestsKeepTheirSlices(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	for round := range 5 {
		ids := make([]string, 0, 20)
		for i := range 10 {
			ids = append(ids, ledger.SliceID(uuidA, i), ledger.SliceID(uuidB, i))
		}
		rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		var wg sync.WaitGroup
		for i := 0; i < len(ids); { // one and three slices, as in the case
			size := min([]int{1, 3}[i%2], len(ids)-i)
			mine := ids[i : i+size]
			i += size
			wg.Go(func() {
				a, err := k.AllocateIDs(t.Context(), pod(fmt.Sprintf("%d-%s", round, mine[0])), app, resource, mine)
				if err != nil {
					t.Error(err)
					return
				}
				checkOwn(t, n, a, mine)
			})
		}
		wg.Wait()
		for _, rec := range n.books.Snapshot() {
			must(t, n.books.Release(rec.Key))
		}
	}
}

// checkOwn checks that record, pages and visible devices of an answer match the device IDs of its request.
func checkOwn(t *testing.T, n *node, a kubelettest.Allocation, ids []string) {
	t.Helper()
	records := n.books.ByDeviceIDs(ids)
	if len(records) != 1 || records[0].Key != keyOf(a) {
		t.Errorf("%v: answered with %s, on record %v", ids, keyOf(a), records)
		return
	}
	var uuids []string
	var bytes uint64
	for _, g := range records[0].Grants {
		uuids = append(uuids, g.UUID)
		bytes += g.MemoryLimitBytes
	}
	if a.Response.GetEnvs()["NVIDIA_VISIBLE_DEVICES"] != strings.Join(uuids, ",") || bytes != uint64(len(ids))*8*gib {
		t.Errorf("%v: %v with %d bytes", ids, a.Response.GetEnvs(), bytes)
	}
	for _, m := range a.Response.GetMounts()[2:] {
		if !strings.HasPrefix(m.GetHostPath(), filepath.Join(n.cfg.PagesDir, keyOf(a))+"/") {
			t.Errorf("%v: page %s", ids, m.GetHostPath())
		}
	}
}

// TestInitContainersAndSidecars, as far as a kubelet shows it: who shares, who keeps.
func TestInitContainersAndSidecars(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	gpu := twoGPUs()[0]
	gpu.Slices, gpu.UsableBytes = 2, 16*gib
	n.update(gpu)
	n.waitAllocatable(k, 2)

	first, err := k.Allocate(t.Context(), pod("u1"), kubelettest.Container{Name: "init", Kind: kubelettest.Init}, resource, 1)
	must(t, err)
	second, err := k.Allocate(t.Context(), pod("u1"), app, resource, 1)
	must(t, err)
	if !slices.Equal(first.DeviceIDs, second.DeviceIDs) || keyOf(first) == keyOf(second) {
		t.Errorf("init container %v %s, app container %v %s", first.DeviceIDs, keyOf(first), second.DeviceIDs, keyOf(second))
	}
	if held := n.books.Books()[0].HeldBytes; held != 8*gib {
		t.Errorf("held %d bytes, want one slice", held)
	}
	for range 2 { // the start of one raises both: they never run at once
		_, err = k.StartContainer(t.Context(), "u1", "app")
		must(t, err)
	}
	if a, b := n.pages.epoch(keyOf(first)), n.pages.epoch(keyOf(second)); a != 2 || b != 2 {
		t.Errorf("epochs %d and %d", a, b)
	}

	_, err = k.Allocate(t.Context(), pod("u2"), kubelettest.Container{Name: "side", Kind: kubelettest.Sidecar}, resource, 1)
	must(t, err)
	if _, err = k.Allocate(t.Context(), pod("u2"), app, resource, 1); !errors.Is(err, kubelettest.ErrNoDevices) {
		t.Errorf("a sidecar's device was handed on: %v", err)
	}
}

func TestRefusalsAreErrorsAndLeaveNothing(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	boom := errors.New("no space left on device")
	for _, c := range []struct {
		name string
		ids  []string
		fail error
		code codes.Code
	}{
		{"unknown slice", []string{uuidA + "::10"}, nil, codes.InvalidArgument},
		{"unknown GPU", []string{"GPU-x::0"}, nil, codes.InvalidArgument},
		{"no slices", nil, nil, codes.InvalidArgument},
		{"twice the same", []string{uuidA + "::0", uuidA + "::0"}, nil, codes.InvalidArgument},
		{"pages fail", []string{uuidA + "::0"}, boom, codes.Internal},
	} {
		n.pages.setFail(c.fail)
		_, err := k.AllocateIDs(t.Context(), pod("u"), app, resource, c.ids)
		n.pages.setFail(nil)
		if status.Code(errors.Unwrap(err)) != c.code {
			t.Errorf("%s: %v, want code %v", c.name, err, c.code)
		}
		if len(n.books.Held()) != 0 {
			t.Errorf("%s: left %v", c.name, n.books.Held())
		}
		if entries, err := os.ReadDir(n.cfg.PagesDir); err == nil && len(entries) != 0 {
			t.Errorf("%s: left pages %v", c.name, entries)
		}
	}
	// Of several containers in one request all are granted or none.
	_, err := n.srv.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{
		{DevicesIds: []string{uuidA + "::0"}}, {DevicesIds: []string{"GPU-x::0"}}}})
	if err == nil || len(n.books.Held()) != 0 || len(n.books.Snapshot()) != 0 {
		t.Errorf("half an answer: %v, held %v", err, n.books.Held())
	}
	if _, err := n.srv.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{uuidB + "::7"}}); err == nil {
		t.Error("a container without an allocation on record may start")
	}
}

// TestRecordCannotBeWritten fails the ledger's disk.
func TestRecordCannotBeWritten(t *testing.T) {
	n := newNode(t)
	must(t, os.RemoveAll(n.dir+"/ledger"))
	_, err := n.srv.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{uuidA + "::0"}}}})
	if err == nil || len(n.books.Held()) != 0 {
		t.Errorf("error %v, held %v", err, n.books.Held())
	}
	if entries, err := os.ReadDir(n.cfg.PagesDir); err == nil && len(entries) != 0 {
		t.Errorf("left pages %v", entries)
	}
}

func TestHardFaultsRefuseSoftOnesServe(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	gpus := twoGPUs()
	gpus[0].Health = Health{Reason: "contention"}
	gpus[1].Health = Health{Reason: "gpu-lost", Hard: true}
	n.update(gpus...)
	n.waitAllocatable(k, 0)
	// The kubelet chose these an instant before.
	_, err := k.AllocateIDs(t.Context(), pod("u1"), app, resource, []string{uuidA + "::0"})
	must(t, err)
	n.waitAllocatable(k, 1) // a soft fault does not mark what is allocated
	_, err = k.AllocateIDs(t.Context(), pod("u2"), app, resource, []string{uuidB + "::0"})
	if status.Code(errors.Unwrap(err)) != codes.Unavailable || !strings.Contains(err.Error(), "gpu-lost") {
		t.Errorf("a slice of a lost GPU: %v", err)
	}
	n.update(twoGPUs()...)
	n.waitAllocatable(k, 20)
}

// TestMemoryCommittedWithdrawsInTheOpen cuts a GPU anew while larger slices are held.
func TestMemoryCommittedWithdrawsInTheOpen(t *testing.T) {
	n, k := running(t, kubelettest.Options{})
	for i := range 9 {
		_, err := k.AllocateIDs(t.Context(), pod(fmt.Sprint(i)), app, resource, []string{ledger.SliceID(uuidA, i)})
		must(t, err)
	}
	gpus := twoGPUs()[:1]
	gpus[0].Slices = 20 // 8 GiB are left: room for two slices of 4 GiB, eleven IDs are free
	n.update(gpus...)
	n.waitAllocatable(k, 11)
	withdrawn := 0
	for _, slice := range n.srv.Slices() {
		if slice.Reason == ReasonMemoryCommitted {
			withdrawn++
		}
	}
	if withdrawn != 9 {
		t.Errorf("%d slices withdrawn as %s, want 9", withdrawn, ReasonMemoryCommitted)
	}
	// One that the kubelet chose although it was withdrawn is served while the book allows, then refused.
	for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
		_, err := k.AllocateIDs(t.Context(), pod(fmt.Sprint("x", i)), app, resource, []string{ledger.SliceID(uuidA, 19-i)})
		if status.Code(errors.Unwrap(err)) != want {
			t.Errorf("withdrawn slice %d: %v, want %v", i, err, want)
		}
	}
	n.waitAllocatable(k, 11) // eleven are held, none of the free ones is offered
}

// TestCDIDevicesHaveToResolve: only GPUs that a spec file defines are offered and granted.
func TestCDIDevicesHaveToResolve(t *testing.T) {
	specs := t.TempDir()
	n := newNode(t, func(c *Config) { c.Strategy, c.CDISpecDirs = StrategyCDI, []string{specs} })
	k := n.kubelet(kubelettest.Options{})
	n.run()
	eventually(t, "20 devices, none of them healthy", func() bool {
		capacity, allocatable := k.Counts(resource)
		return capacity == 20 && allocatable == 0
	})
	spec := "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- name: " + uuidB + "\n  containerEdits:\n    env: [A=b]\n"
	overwrite(t, specs+"/nvidia.yaml", []byte(spec))
	n.srv.checkCDI()
	n.waitAllocatable(k, 10)
	a, err := k.Allocate(t.Context(), pod("u1"), app, resource, 1)
	must(t, err)
	if devices := a.Response.GetCdiDevices(); len(devices) != 1 || devices[0].GetName() != "nvidia.com/gpu="+uuidB {
		t.Errorf("CDI devices %v", devices)
	}
	if _, err := k.AllocateIDs(t.Context(), pod("u2"), app, resource, []string{uuidA + "::0"}); err == nil || !strings.Contains(err.Error(), ReasonCDI) {
		t.Errorf("a GPU that does not resolve: %v", err)
	}
	_, err = unresolvedCDI("nvidia.com/gpu", []string{uuidA, uuidB}, []string{specs})
	if err == nil || !strings.Contains(err.Error(), "nvidia.com/gpu="+uuidA) || strings.Contains(err.Error(), uuidB) {
		t.Errorf("error %v", err)
	}
}

// TestAllocateIsQuick: nothing is asked over a network, the answer is there in well under a second.
func TestAllocateIsQuick(t *testing.T) {
	n := newNode(t)
	start := time.Now()
	for i := range 10 {
		_, err := n.srv.Allocate(t.Context(), &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{ledger.SliceID(uuidA, i)}}}})
		must(t, err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("ten allocations took %v", took)
	}
}

// TestOldPodRestartsAfterUpgrade: a container of an older build starts again with its cached answer.
func TestOldPodRestartsAfterUpgrade(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{})
	stop := n.run()
	n.waitAllocatable(k, 20)
	old, err := k.Allocate(t.Context(), pod("old"), app, resource, 1)
	must(t, err)
	stop()

	n.cfg.BuildID = n.install([]byte{5, 6, 7, 8})
	n.reopen()
	inUse := map[string]bool{n.cfg.BuildID: true}
	for _, rec := range n.books.Snapshot() {
		inUse[rec.Library.BuildID] = true
	}
	removed, err := SweepLibraries(n.cfg.LibraryDir, func(id string) bool { return inUse[id] })
	must(t, err)
	if len(removed) != 0 {
		t.Errorf("swept %v while an allocation names it", removed)
	}
	n.run()
	n.waitAllocatable(k, 20)
	responses, err := k.StartContainer(t.Context(), "old", "app")
	must(t, err)
	for _, m := range responses[resource].GetMounts() {
		if _, err := os.Stat(m.GetHostPath()); err != nil {
			t.Error(err)
		}
	}
	fresh, err := k.Allocate(t.Context(), pod("new"), app, resource, 1)
	must(t, err)
	if fresh.Response.GetMounts()[0].GetHostPath() == old.Response.GetMounts()[0].GetHostPath() {
		t.Error("the new pod got the old library")
	}
}

// TestRecordsAreCheckedByTheirOwn: neither another container directory nor an older record with a fault refuses a start.
func TestRecordsAreCheckedByTheirOwn(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{})
	stop := n.run()
	n.waitAllocatable(k, 20)
	old, err := k.Allocate(t.Context(), pod("old"), app, resource, 20)
	must(t, err)
	stop()

	first := n.cfg.library()
	n.cfg.ContainerDir = "/opt/vgpud"
	n.cfg.BuildID = n.install([]byte{5, 6, 7, 8})
	n.reopen()
	n.run()
	n.waitAllocatable(k, 20)
	responses, err := k.StartContainer(t.Context(), "old", "app") // as before, from the kubelet's checkpoint
	must(t, err)
	if !proto.Equal(old.Response, responses[resource]) {
		t.Errorf("the old pod gets %v, was granted %v", responses[resource], old.Response)
	}

	must(t, k.RemovePod("old")) // its record is still there
	fresh, err := k.Allocate(t.Context(), pod("new"), app, resource, 20)
	must(t, err)
	if got := fresh.Response.GetMounts()[0].GetContainerPath(); got != "/opt/vgpud/libvgpu.so" {
		t.Errorf("the new pod's library is at %s", got)
	}
	_, err = k.StartContainer(t.Context(), "new", "app")
	must(t, err)
	must(t, os.Remove(libraryPath(n.cfg.LibraryDir, first)))
	_, err = k.StartContainer(t.Context(), "new", "app")
	must(t, err)
	must(t, os.Remove(libraryPath(n.cfg.LibraryDir, n.cfg.library())))
	if _, err = k.StartContainer(t.Context(), "new", "app"); err == nil {
		t.Error("a container was started without its library")
	}
}

// TestRebootRestoresPages: pages on a tmpfs are gone, the records are not.
func TestRebootRestoresPages(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(kubelettest.Options{})
	stop := n.run()
	n.waitAllocatable(k, 20)
	a, err := k.Allocate(t.Context(), pod("u1"), app, resource, 1)
	must(t, err)
	stop()
	must(t, os.RemoveAll(n.cfg.PagesDir))
	n.reopen()
	n.run()
	n.waitAllocatable(k, 20)
	must(t, checkPages(n.books.Snapshot()[0]))
	_, err = k.StartContainer(t.Context(), "u1", "app")
	must(t, err)
	if n.books.Snapshot()[0].Key != keyOf(a) {
		t.Error("the record changed")
	}
}
