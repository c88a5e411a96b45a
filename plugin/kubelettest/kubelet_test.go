// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the in-process kubelet itself: the traps it models, its checkpoint, its pod-resources API.

package kubelettest

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const resourceName = "example.com/slice"

// stubPlugin offers four devices and answers with its own name.
type stubPlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	name string
	stop chan struct{}
}

func (p *stubPlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *stubPlugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	list := &v1beta1.ListAndWatchResponse{}
	for _, id := range []string{"a", "b", "c", "d"} {
		list.Devices = append(list.Devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy,
			Topology: &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: 1}}}})
	}
	if err := stream.Send(list); err != nil {
		return err
	}
	select {
	case <-p.stop:
	case <-stream.Context().Done():
	}
	return nil
}

func (p *stubPlugin) Allocate(_ context.Context, r *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	out := &v1beta1.AllocateResponse{}
	for _, c := range r.GetContainerRequests() {
		out.ContainerResponses = append(out.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"PLUGIN": p.name, "IDS": strings.Join(c.GetDevicesIds(), ",")}})
	}
	return out, nil
}

// plug serves a stub plugin on a socket and registers it.
func plug(t *testing.T, k *Kubelet, endpoint string) (stop func(), err error) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(k.PluginDir(), endpoint))
	if err != nil {
		t.Fatal(err)
	}
	p := &stubPlugin{name: endpoint, stop: make(chan struct{})}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	stop = func() {
		close(p.stop)
		server.Stop()
		<-done
	}
	return stop, register(t, k, endpoint)
}

func register(t *testing.T, k *Kubelet, endpoint string) error {
	t.Helper()
	conn := dial(t, k.SocketPath())
	defer conn.Close()
	_, err := v1beta1.NewRegistrationClient(conn).Register(t.Context(), &v1beta1.RegisterRequest{
		Version: "v1beta1", Endpoint: endpoint, ResourceName: resourceName})
	return err
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func start(t *testing.T, opts Options) *Kubelet {
	t.Helper()
	dir, err := os.MkdirTemp("", "kt")
	if err != nil {
		t.Fatal(err)
	}
	k, err := Start(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	return k
}

func wait(t *testing.T, k *Kubelet, want int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := k.WaitAllocatable(ctx, resourceName, want); err != nil {
		t.Fatal(err)
	}
}

// TestOverlapByModel: the older instance of two ends. 1.36 loses the resource, 1.37 goes on with the newer.
func TestOverlapByModel(t *testing.T) {
	for model, want := range map[Model]int{Model136: 0, Model137: 4} {
		k := start(t, Options{Model: model})
		stopOld, err := plug(t, k, "old.sock")
		if err != nil {
			t.Fatal(err)
		}
		wait(t, k, 4)
		stopNew, err := plug(t, k, "new.sock")
		if err != nil {
			t.Fatal(err)
		}
		<-k.Lists()
		<-k.Lists()
		stopOld()
		wait(t, k, want)
		stopNew()
		wait(t, k, 0)
		if capacity, _ := k.Counts(resourceName); capacity != 4 {
			t.Errorf("capacity %d, it is to stay", capacity)
		}
	}
}

// TestSamePathWedges is 1.37's trap: a second Register on a live socket fails, and the path is lost for good.
func TestSamePathWedges(t *testing.T) {
	k := start(t, Options{})
	stop, err := plug(t, k, "fixed.sock")
	if err != nil {
		t.Fatal(err)
	}
	wait(t, k, 4)
	if err := register(t, k, "fixed.sock"); err == nil || !strings.Contains(err.Error(), "already connected") {
		t.Fatalf("second registration: %v", err)
	}
	stop()
	stop, err = plug(t, k, "fixed.sock")
	if err == nil || !strings.Contains(err.Error(), "already connected") {
		t.Errorf("the lost path registered again: %v", err)
	}
	if _, allocatable := k.Counts(resourceName); allocatable != 4 {
		t.Errorf("stale devices: %d, the real one keeps them", allocatable)
	}
	stop()
	if err := k.Restart(0); err != nil {
		t.Fatal(err)
	}
	stop, err = plug(t, k, "fixed.sock")
	if err != nil {
		t.Errorf("after a kubelet restart: %v", err)
	}
	wait(t, k, 4)
	stop()
}

func TestBadRegistrations(t *testing.T) {
	k := start(t, Options{})
	conn := dial(t, k.SocketPath())
	defer conn.Close()
	for _, r := range []*v1beta1.RegisterRequest{
		{Version: "v1", Endpoint: "a.sock", ResourceName: resourceName},
		{Version: "v1beta1", Endpoint: "a.sock", ResourceName: "vgpu"},
		{Version: "v1beta1", Endpoint: "a.sock", ResourceName: "kubernetes.io/vgpu"},
		{Version: "v1beta1", Endpoint: "a.sock", ResourceName: "requests.a.com/vgpu"},
		{Version: "v1beta1", Endpoint: "/tmp/a.sock", ResourceName: resourceName},
	} {
		if _, err := v1beta1.NewRegistrationClient(conn).Register(t.Context(), r); err == nil {
			t.Errorf("accepted %v", r)
		}
	}
	if k.Attempts() != 5 || k.Registrations(resourceName) != 0 {
		t.Errorf("%d attempts, %d registrations", k.Attempts(), k.Registrations(resourceName))
	}
}

// TestCheckpointAndPodResources: what a joiner reads.
func TestCheckpointAndPodResources(t *testing.T) {
	k := start(t, Options{PodResources: true})
	stop, err := plug(t, k, "p.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	wait(t, k, 4)
	pod := Pod{UID: "uid-1", Namespace: "ns", Name: "p"}
	a, err := k.Allocate(t.Context(), pod, Container{Name: "c"}, resourceName, 2)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[string][]string
				AllocResp                           []byte
			}
			RegisteredDevices map[string][]string
		}
		Checksum uint64
	}
	read := func() {
		file.Data.PodDeviceEntries = nil
		data, err := os.ReadFile(k.CheckpointPath())
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &file); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if len(file.Data.PodDeviceEntries) != 1 || len(file.Data.RegisteredDevices[resourceName]) != 4 || file.Checksum == 0 {
		t.Fatalf("checkpoint %+v", file)
	}
	entry := file.Data.PodDeviceEntries[0]
	var response v1beta1.ContainerAllocateResponse
	if err := proto.Unmarshal(entry.AllocResp, &response); err != nil {
		t.Fatal(err)
	}
	if entry.PodUID != "uid-1" || entry.ContainerName != "c" || len(entry.DeviceIDs["1"]) != 2 || !proto.Equal(&response, a.Response) {
		t.Errorf("entry %+v", entry)
	}

	conn := dial(t, k.PodResourcesPath())
	defer conn.Close()
	list, err := podresources.NewPodResourcesListerClient(conn).List(t.Context(), &podresources.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if pods := list.GetPodResources(); len(pods) != 1 || pods[0].GetName() != "p" || pods[0].GetNamespace() != "ns" ||
		pods[0].GetContainers()[0].GetName() != "c" || len(pods[0].GetContainers()[0].GetDevices()[0].GetDeviceIds()) != 2 {
		t.Errorf("pod resources %v", list)
	}
	if err := k.RemovePod("uid-1"); err != nil {
		t.Fatal(err)
	}
	read()
	if len(file.Data.PodDeviceEntries) != 1 || file.Data.PodDeviceEntries[0].PodUID != "uid-1" {
		t.Errorf("right after the pod's end: %+v", file.Data.PodDeviceEntries)
	}
	pod.UID = "uid-2"
	if _, err := k.Allocate(t.Context(), pod, Container{Name: "c"}, resourceName, 4); err != nil {
		t.Errorf("the devices were not freed: %v", err)
	}
	read()
	if len(file.Data.PodDeviceEntries) != 1 || file.Data.PodDeviceEntries[0].PodUID != "uid-2" {
		t.Errorf("after the next allocation: %+v", file.Data.PodDeviceEntries)
	}
}
