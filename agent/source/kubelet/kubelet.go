// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package kubelet learns which container holds an allocation, exactly and afterwards: the kubelet's checkpoint holds
// our own response to Allocate, hence the allocation key, next to pod UID and container name (init containers too);
// the pod-resources API adds namespace and name of the pod. Nothing is guessed from sizes, order or annotations.
//
// The checkpoint remembers pods that have ended until the kubelet's next allocation. That a pod is gone is seen by its
// directory, which the kubelet removes last.
package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/vgpud/vgpud/agent/source"
)

const (
	checkpointPath = "device-plugins/kubelet_internal_checkpoint"
	socketPath     = "pod-resources/kubelet.sock"
	podsPath       = "pods"

	maxCheckpointBytes = 64 << 20
	maxMessageBytes    = 16 << 20 // what the kubelet's own helper allows
	listTimeout        = 2 * time.Second
)

// Reader reads one kubelet's record. Holders is for one goroutine at a time; Pods and Close are for any.
type Reader struct {
	directory string
	resource  string
	variable  string // of a response's environment: holds the allocation key

	mu     sync.Mutex
	client *grpc.ClientConn        // made at first need
	names  map[string]source.Owner // namespace and name by pod UID; they never change
	kept   checkpoint              // as it was last read
}

// checkpoint is the kubelet's file as it was read. The kubelet replaces it whole, so that one with the same identity and
// times has the same text.
type checkpoint struct {
	identity fileIdentity
	settled  bool // it was not young when it was read: a clock that ticks seldom could give two files the same times
	text     []byte
	entries  []entry
	others   map[string][]string // cards that other plugins gave, by the UID of the pod
	parsed   bool
}

// youngFor is longer than any file system's clock takes to tick.
const youngFor = 2 * time.Second

type fileIdentity struct {
	device, inode     uint64
	size              int64
	modified, changed unix.Timespec
}

var _ source.Kubelet = (*Reader)(nil)

// New reads below the kubelet's root directory and looks at one extended resource. A response of ours holds the
// allocation key in the given variable of the environment.
func New(directory, resource, variable string) *Reader {
	return &Reader{directory: directory, resource: resource, variable: variable, names: map[string]source.Owner{}}
}

// Close ends the connection to the kubelet, if there is one. It may be called twice.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.client == nil {
		return nil
	}
	err := r.client.Close()
	r.client = nil
	return err
}

// entry is one container of the checkpoint that holds one of our allocations.
type entry struct {
	key, podUID, container string
	deviceIDs              []string
}

// Holders implements source.Kubelet. A checkpoint that is missing or cannot be understood is an error.
func (r *Reader) Holders(ctx context.Context) (source.Holders, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text, err := r.readCheckpoint()
	if err != nil {
		return source.Holders{}, err
	}
	if !r.kept.parsed {
		if r.kept.entries, r.kept.others, err = r.parseCheckpoint(text); err != nil {
			return source.Holders{}, err
		}
		r.kept.parsed = true
	}
	entries := r.kept.entries
	holders := source.Holders{Elsewhere: r.kept.others}
	holders.NamesError = r.learnNames(ctx, entries, text)
	holders.Pods, holders.PodsError = r.Pods(ctx)
	for _, entry := range entries {
		name := r.names[entry.podUID]
		holders.List = append(holders.List, source.Holder{Key: entry.key, Owner: source.Owner{
			PodUID: entry.podUID, Namespace: name.Namespace, Pod: name.Pod, Container: entry.container}})
	}
	return holders, nil
}

// Pods implements source.Kubelet: it lists the pods that have a directory, whatever else the kubelet says.
func (r *Reader) Pods(ctx context.Context) (map[string]bool, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read kubelet's pods: %w", err)
	}
	directory, err := os.Open(filepath.Join(r.directory, podsPath))
	if err != nil {
		return nil, fmt.Errorf("read kubelet's pods: %w", err)
	}
	defer directory.Close()
	names, err := directory.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("read kubelet's pods: %w", err)
	}
	pods := make(map[string]bool, len(names))
	for _, name := range names {
		pods[name] = true
	}
	return pods, nil
}

func (r *Reader) readCheckpoint() ([]byte, error) {
	file, err := os.Open(filepath.Join(r.directory, checkpointPath))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the kubelet is not there yet, or has kept no record yet: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read kubelet checkpoint: %w", err)
	}
	defer file.Close()
	identity, err := identify(file)
	if err != nil {
		return nil, fmt.Errorf("read kubelet checkpoint: %w", err)
	}
	if r.kept.settled && identity == r.kept.identity {
		return r.kept.text, nil
	}
	r.kept = checkpoint{}
	text, err := io.ReadAll(io.LimitReader(file, maxCheckpointBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read kubelet checkpoint: %w", err)
	}
	if len(text) > maxCheckpointBytes {
		return nil, fmt.Errorf("read kubelet checkpoint: more than %d bytes", maxCheckpointBytes)
	}
	r.kept = checkpoint{identity: identity, text: text, settled: time.Since(time.Unix(identity.changed.Unix())) > youngFor}
	return text, nil
}

func identify(file *os.File) (fileIdentity, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return fileIdentity{}, err
	}
	return fileIdentity{uint64(stat.Dev), stat.Ino, stat.Size, stat.Mtim, stat.Ctim}, nil
}

// checkpointEntry is one container and resource of the checkpoint, as the kubelet writes it.
type checkpointEntry struct {
	PodUID, ContainerName, ResourceName string
	DeviceIDs                           map[string][]string
	AllocResp                           []byte
}

// parseCheckpoint returns the containers that hold allocations of the resource, and what others gave to pods. The checksum is not looked at:
// its algorithm is internal to the kubelet, and the file is replaced whole. A text in which holders could hide is an
// error: one without the list of holders (which is null when there are none), and one with a container that holds
// devices of ours and whose holder or response cannot be read.
func (r *Reader) parseCheckpoint(text []byte) (entries []entry, others map[string][]string, err error) {
	var document struct {
		Data *struct{ PodDeviceEntries json.RawMessage }
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, nil, fmt.Errorf("parse kubelet checkpoint: %w", err)
	}
	if document.Data == nil || document.Data.PodDeviceEntries == nil {
		return nil, nil, errors.New("parse kubelet checkpoint: no Data.PodDeviceEntries")
	}
	var containers []checkpointEntry
	if err := json.Unmarshal(document.Data.PodDeviceEntries, &containers); err != nil {
		return nil, nil, fmt.Errorf("parse kubelet checkpoint: %w", err)
	}
	others = map[string][]string{}
	for _, container := range containers {
		if container.ResourceName == "" {
			return nil, nil, fmt.Errorf("parse kubelet checkpoint: container %q holds devices of no resource", container.ContainerName)
		}
		if container.ResourceName != r.resource {
			container.addCards(others)
			continue
		}
		found, ours, err := container.entry(r.variable)
		if err != nil {
			return nil, nil, fmt.Errorf("parse kubelet checkpoint: container %q: %w", container.ContainerName, err)
		}
		if ours {
			entries = append(entries, found)
		} else {
			container.addCards(others)
		}
	}
	return entries, others, nil
}

// addCards notes the cards that the container was given: those that plugins name by UUID, alone or before a number.
func (c checkpointEntry) addCards(to map[string][]string) {
	for _, ids := range c.DeviceIDs {
		for _, id := range ids {
			uuid, _, _ := strings.Cut(id, "::")
			if strings.HasPrefix(uuid, "GPU-") && !slices.Contains(to[c.PodUID], uuid) {
				to[c.PodUID] = append(to[c.PodUID], uuid)
			}
		}
	}
}

// entry reads the response to Allocate, which holds the key in variable. It is not ours when it says something and has no allocation key: another plugin
// served the resource then.
func (c checkpointEntry) entry(variable string) (found entry, ours bool, err error) {
	var response v1beta1.ContainerAllocateResponse
	if err := proto.Unmarshal(c.AllocResp, &response); err != nil {
		return entry{}, false, fmt.Errorf("response: %w", err)
	}
	found = entry{key: response.GetEnvs()[variable], podUID: c.PodUID, container: c.ContainerName}
	for _, ids := range c.DeviceIDs {
		found.deviceIDs = append(found.deviceIDs, ids...)
	}
	slices.Sort(found.deviceIDs)
	says := len(response.GetEnvs()) + len(response.GetMounts()) + len(response.GetDevices()) + len(response.GetCdiDevices()) +
		len(response.GetAnnotations())
	switch {
	case found.key == "" && says > 0:
		return entry{}, false, nil
	case found.key == "":
		return entry{}, false, fmt.Errorf("devices %q and no response that can be read", found.deviceIDs)
	case c.PodUID == "":
		return entry{}, false, fmt.Errorf("allocation %s and no pod", found.key)
	}
	return found, true, nil
}

// learnNames asks the pod-resources API when a pod of the checkpoint has no name yet. The API knows no UIDs: the
// two are joined by the device IDs, and only while the checkpoint is what it was before the question, so that an
// ID that changed hands in between cannot name the wrong pod.
func (r *Reader) learnNames(ctx context.Context, entries []entry, checkpoint []byte) error {
	known := map[string]source.Owner{}
	missing := false
	for _, entry := range entries {
		if name, learnt := r.names[entry.podUID]; learnt {
			known[entry.podUID] = name
		} else {
			missing = true
		}
	}
	r.names = known // those of pods that are gone are forgotten
	if !missing {
		return nil
	}
	pods, err := r.list(ctx)
	if err != nil {
		return err
	}
	now, err := r.readCheckpoint()
	if err != nil || !bytes.Equal(now, checkpoint) {
		return err // the next tick asks again
	}
	owners := map[string]source.Owner{} // by device ID
	for _, pod := range pods {
		for _, container := range pod.GetContainers() {
			for _, devices := range container.GetDevices() {
				if devices.GetResourceName() != r.resource {
					continue
				}
				for _, id := range devices.GetDeviceIds() {
					owners[id] = source.Owner{Namespace: pod.GetNamespace(), Pod: pod.GetName()}
				}
			}
		}
	}
	for _, entry := range entries {
		for _, id := range entry.deviceIDs {
			if owner, found := owners[id]; found {
				r.names[entry.podUID] = owner
				break
			}
		}
	}
	return nil
}

// list asks the kubelet for all pods and their devices.
func (r *Reader) list(ctx context.Context) ([]*podresources.PodResources, error) {
	if r.client == nil {
		client, err := grpc.NewClient("unix://"+filepath.Join(r.directory, socketPath),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)))
		if err != nil {
			return nil, fmt.Errorf("connect to pod-resources: %w", err)
		}
		r.client = client
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	response, err := podresources.NewPodResourcesListerClient(r.client).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w", err)
	}
	return response.GetPodResources(), nil
}
