// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package kubelet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vgpud/vgpud/agent/source"
)

const (
	resource = "nvidia.com/gpu"
	variable = "ALLOCATION"
)

// podDevices is one row of a checkpoint.
type podDevices struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string
	AllocResp                           []byte
}

func row(t *testing.T, pod, container, key string, ids ...string) podDevices {
	t.Helper()
	response, err := proto.Marshal(&v1beta1.ContainerAllocateResponse{Envs: map[string]string{variable: key}})
	if err != nil {
		t.Fatal(err)
	}
	return podDevices{pod, container, resource, map[string][]string{"-1": ids}, response}
}

func writeCheckpoint(t *testing.T, directory string, rows ...podDevices) {
	t.Helper()
	text, err := json.Marshal(map[string]any{"Data": map[string]any{"PodDeviceEntries": rows,
		"RegisteredDevices": map[string][]string{resource: {"GPU-a::0"}}}, "Checksum": 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(directory, "device-plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, checkpointPath), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// podResources is the kubelet's server with a scripted answer.
type podResources struct {
	podresources.UnimplementedPodResourcesListerServer
	mu    sync.Mutex
	pods  []*podresources.PodResources
	calls int
	hook  func()
}

func (p *podResources) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.hook != nil {
		p.hook()
	}
	return &podresources.ListPodResourcesResponse{PodResources: p.pods}, nil
}

func pod(namespace, name, container string, ids ...string) *podresources.PodResources {
	return &podresources.PodResources{Namespace: namespace, Name: name, Containers: []*podresources.ContainerResources{
		{Name: container, Devices: []*podresources.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}}}}
}

func serve(t *testing.T, directory string, server *podResources) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(directory, "pod-resources"), 0o755); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(directory, socketPath))
	if err != nil {
		t.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(grpcServer, server)
	go func() { _ = grpcServer.Serve(listener) }()
	t.Cleanup(grpcServer.Stop)
}

// shortDir keeps socket paths below the kernel's limit of 108 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	return directory
}

func holders(t *testing.T, reader *Reader) source.Holders {
	t.Helper()
	got, err := reader.Holders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestJoin(t *testing.T) {
	directory := shortDir(t)
	foreign := row(t, "uid-3", "x", "", "GPU-b::1")
	other := row(t, "uid-1", "main", "k9", "0", "GPU-c", "GPU-d::2", "GPU-d::1")
	other.ResourceName = "example.com/other"
	writeCheckpoint(t, directory, row(t, "uid-1", "init", "k1", "GPU-a::0"), row(t, "uid-1", "main", "k2", "GPU-a::0", "GPU-b::4"),
		row(t, "uid-2", "main", "k3", "GPU-a::1"), foreign, other)
	server := &podResources{pods: []*podresources.PodResources{pod("md", "one", "main", "GPU-a::0", "GPU-b::4"),
		pod("md", "two", "main", "GPU-a::1"), pod("md", "idle", "main")}}
	serve(t, directory, server)
	reader := New(directory, resource, variable)
	defer reader.Close()
	want := []source.Holder{
		{Key: "k1", Owner: source.Owner{PodUID: "uid-1", Namespace: "md", Pod: "one", Container: "init"}},
		{Key: "k2", Owner: source.Owner{PodUID: "uid-1", Namespace: "md", Pod: "one", Container: "main"}},
		{Key: "k3", Owner: source.Owner{PodUID: "uid-2", Namespace: "md", Pod: "two", Container: "main"}},
	}
	for range 3 {
		got := holders(t, reader)
		if got.NamesError != nil {
			t.Fatal(got.NamesError)
		}
		if diff := cmp.Diff(want, got.List); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(map[string][]string{"uid-1": {"GPU-c", "GPU-d"}, "uid-3": {"GPU-b"}}, got.Elsewhere); diff != "" {
			t.Errorf("given by others (-want +got):\n%s", diff)
		}
	}
	if server.calls != 1 {
		t.Errorf("pod-resources was asked %d times for names that are known, want 1", server.calls)
	}
}

// Without pod-resources the holders are known all the same; the names follow when it answers.
func TestNamesLater(t *testing.T) {
	directory := shortDir(t)
	writeCheckpoint(t, directory, row(t, "uid-1", "main", "k1", "GPU-a::0"))
	reader := New(directory, resource, variable)
	defer reader.Close()
	got := holders(t, reader)
	if got.NamesError == nil || len(got.List) != 1 || got.List[0].Owner.PodUID != "uid-1" || got.List[0].Owner.Pod != "" {
		t.Fatalf("without pod-resources: %+v", got)
	}
	if err := reader.Close(); err != nil { // or gRPC would wait before it dials again
		t.Fatal(err)
	}
	serve(t, directory, &podResources{pods: []*podresources.PodResources{pod("md", "one", "main", "GPU-a::0")}})
	if got = holders(t, reader); got.NamesError != nil || got.List[0].Owner.Pod != "one" {
		t.Errorf("with pod-resources: %+v", got)
	}
}

// An ID that changes hands between the two reads must not name the wrong pod.
func TestHandOverBetweenReads(t *testing.T) {
	directory := shortDir(t)
	writeCheckpoint(t, directory, row(t, "uid-old", "main", "k1", "GPU-a::0"))
	server := &podResources{pods: []*podresources.PodResources{pod("md", "new", "main", "GPU-a::0")}}
	server.hook = func() { writeCheckpoint(t, directory, row(t, "uid-new", "main", "k2", "GPU-a::0")) }
	serve(t, directory, server)
	reader := New(directory, resource, variable)
	defer reader.Close()
	if got := holders(t, reader); got.List[0].Owner.PodUID != "uid-old" || got.List[0].Owner.Pod != "" {
		t.Errorf("the old holder was given the new one's name: %+v", got)
	}
	if got := holders(t, reader); got.List[0].Owner != (source.Owner{PodUID: "uid-new", Namespace: "md", Pod: "new", Container: "main"}) {
		t.Errorf("the new holder: %+v", got)
	}
}

// Which pods are on disk is known, or known to be unknown.
func TestPodDirectories(t *testing.T) {
	directory := t.TempDir()
	writeCheckpoint(t, directory)
	reader := New(directory, resource, variable)
	defer reader.Close()
	if got := holders(t, reader); !errors.Is(got.PodsError, fs.ErrNotExist) || got.Pods != nil {
		t.Errorf("no directory of pods: %+v", got)
	}
	pods := filepath.Join(directory, podsPath)
	if err := os.WriteFile(pods, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := holders(t, reader); got.PodsError == nil || got.Pods != nil {
		t.Errorf("a file in the place of the directory: %+v", got)
	}
	if err := errors.Join(os.Remove(pods), os.Mkdir(pods, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got := holders(t, reader); got.PodsError != nil || len(got.Pods) != 0 {
		t.Errorf("no pod: %+v", got)
	}
	if err := os.Mkdir(filepath.Join(pods, "uid-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := holders(t, reader); got.PodsError != nil || !got.Pods["uid-1"] || len(got.Pods) != 1 {
		t.Errorf("one pod: %+v", got)
	}
}

func TestUnreadableCheckpoint(t *testing.T) {
	directory := t.TempDir()
	reader := New(directory, resource, variable)
	defer reader.Close()
	if _, err := reader.Holders(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no checkpoint: %v", err)
	}
	writeCheckpoint(t, directory)
	if got, err := reader.Holders(t.Context()); err != nil || len(got.List) != 0 {
		t.Errorf("empty checkpoint: %+v %v", got, err)
	}
	response := func(envs map[string]string) string {
		encoded, err := proto.Marshal(&v1beta1.ContainerAllocateResponse{Envs: envs})
		if err != nil {
			t.Fatal(err)
		}
		return base64.StdEncoding.EncodeToString(encoded)
	}
	held := func(fields string) string {
		return `{"Data":{"PodDeviceEntries":[{"ResourceName":"nvidia.com/gpu","ContainerName":"c","DeviceIDs":{"-1":["GPU-a::0"]}` + fields + `}]}}`
	}
	for _, text := range []string{"", "{", "null", "{}", `{"Data":null}`, `[]`, `{"Data":{}}`,
		`{"Data":{"RegisteredDevices":{"nvidia.com/gpu":["GPU-a::0"]}}}`,
		`{"Data":{"DeviceEntries":[{"PodUID":"u","ResourceName":"nvidia.com/gpu"}]}}`, // the key has another name
		`{"Data":{"PodDeviceEntries":{}}}`, `{"Data":{"PodDeviceEntries":7}}`,
		`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","Resource":"nvidia.com/gpu"}]}}`, // a field has another name
		held(`,"PodUID":"u"`), held(`,"PodUID":"u","AllocResp":null`), held(`,"PodUID":"u","AllocResp":""`),
		held(`,"PodUID":"u","AllocResp":"/////w=="`),
		held(`,"PodUID":"u","AllocResp":"sgYBeA=="`),                              // only a field that nobody knows
		held(`,"AllocResp":"` + response(map[string]string{variable: "k"}) + `"`), // of no pod
	} {
		if err := os.WriteFile(filepath.Join(directory, checkpointPath), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := reader.Holders(t.Context()); err == nil {
			t.Errorf("checkpoint %q was taken for readable: %+v", text, got)
		}
	}
}

// What is not there is known not to be there: no holders, or those of another plugin of the same resource.
func TestNobodyHolds(t *testing.T) {
	foreign, err := proto.Marshal(&v1beta1.ContainerAllocateResponse{Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": "GPU-a"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`{"Data":{"PodDeviceEntries":null}}`, `{"Data":{"PodDeviceEntries":[]}}`,
		`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-a"]},"AllocResp":"` +
			base64.StdEncoding.EncodeToString(foreign) + `"}]}}`} {
		if got, _, err := New("", resource, variable).parseCheckpoint([]byte(text)); err != nil || len(got) != 0 {
			t.Errorf("%s: %+v %v", text, got, err)
		}
	}
}

// A checkpoint that has not changed for some time is not read again; one that is replaced, or written into, is.
func TestCheckpointIsReadWhenItChanges(t *testing.T) {
	directory := t.TempDir()
	writeCheckpoint(t, directory, row(t, "uid-1", "c", "k1", "GPU-a::0"))
	reader := New(directory, resource, variable)
	defer reader.Close()
	read := func() []byte {
		t.Helper()
		text, err := reader.readCheckpoint()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := read()
	if reader.kept.settled {
		t.Error("a file of this moment counts as settled")
	}
	if again := read(); &again[0] == &first[0] {
		t.Error("a file of this moment was not read again")
	}
	reader.kept.settled = true
	if kept := read(); &kept[0] != &reader.kept.text[0] {
		t.Error("a settled file was read again")
	}
	for name, change := range map[string]func(){
		"replaced": func() {
			if err := os.Remove(filepath.Join(directory, checkpointPath)); err != nil {
				t.Fatal(err)
			}
			writeCheckpoint(t, directory, row(t, "uid-2", "c", "k2", "GPU-a::0"))
		},
		"written into": func() { writeCheckpoint(t, directory, row(t, "uid-3", "c", "k3", "GPU-a::0")) },
	} {
		reader.kept.settled = true
		before := string(read())
		change()
		if string(read()) == before {
			t.Errorf("%s: the old text stays", name)
		}
	}
	if err := os.Remove(filepath.Join(directory, checkpointPath)); err != nil {
		t.Fatal(err)
	}
	reader.kept.settled = true
	if _, err := reader.readCheckpoint(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is gone: %v", err)
	}
}

// The pods are known without a checkpoint, and while somebody else waits for the kubelet.
func TestPodsAlone(t *testing.T) {
	directory := t.TempDir()
	reader := New(directory, resource, variable)
	defer reader.Close()
	if _, err := reader.Pods(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(directory, podsPath, "uid-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Holders(t.Context()); err == nil {
		t.Fatal("there is a checkpoint")
	}
	reader.mu.Lock()
	got, err := reader.Pods(t.Context())
	reader.mu.Unlock()
	if err != nil || !got["uid-1"] || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if got, err := reader.Pods(over); !errors.Is(err, context.Canceled) || got != nil {
		t.Errorf("after the end: %v, %v", got, err)
	}
}
