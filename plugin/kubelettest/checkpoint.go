// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The device manager's checkpoint file, in the real one's format (kubernetes:
// pkg/kubelet/cm/devicemanager/checkpoint): the only place that has pod UID and response together.

package kubelettest

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
)

// noNUMA is the key of devices without a NUMA node.
const noNUMA = -1

type checkpointFile struct {
	Data     checkpointData
	Checksum uint64
}

type checkpointData struct {
	PodDeviceEntries  []checkpointEntry
	RegisteredDevices map[string][]string
}

type checkpointEntry struct {
	PodUID        string
	ContainerName string
	ResourceName  string
	DeviceIDs     map[string][]string // by NUMA node
	AllocResp     []byte              // encoded ContainerAllocateResponse
}

// CheckpointPath is where the checkpoint file is.
func (k *Kubelet) CheckpointPath() string {
	return filepath.Join(k.PluginDir(), "kubelet_internal_checkpoint")
}

// writeCheckpointLocked replaces the file. Its checksum is a hash of the data, though not the real one's, which
// depends on how a Go program prints its own types; readers have to be tolerant of it.
func (k *Kubelet) writeCheckpointLocked() error {
	data := checkpointData{PodDeviceEntries: []checkpointEntry{}, RegisteredDevices: map[string][]string{}}
	for _, p := range k.pods {
		for _, a := range p.allocations {
			response, err := proto.Marshal(a.Response)
			if err != nil {
				return fmt.Errorf("encode response: %w", err)
			}
			data.PodDeviceEntries = append(data.PodDeviceEntries, checkpointEntry{
				PodUID: a.Pod.UID, ContainerName: a.Container, ResourceName: a.Resource,
				DeviceIDs: k.byNUMALocked(a), AllocResp: response,
			})
		}
	}
	for name, r := range k.resources {
		for _, id := range r.order {
			if r.healthy(id) {
				data.RegisteredDevices[name] = append(data.RegisteredDevices[name], id)
			}
		}
	}
	encoded, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	sum := fnv.New32a()
	sum.Write(encoded)
	encoded, err = json.Marshal(checkpointFile{Data: data, Checksum: uint64(sum.Sum32())})
	if err != nil {
		return fmt.Errorf("encode checkpoint: %w", err)
	}
	return replaceFile(k.CheckpointPath(), encoded)
}

func (k *Kubelet) byNUMALocked(a Allocation) map[string][]string {
	byNUMA := map[string][]string{}
	for _, id := range a.DeviceIDs {
		node := int64(noNUMA)
		if r, ok := k.resources[a.Resource]; ok {
			if nodes := r.devices[id].GetTopology().GetNodes(); len(nodes) > 0 {
				node = nodes[0].GetID()
			}
		}
		key := strconv.FormatInt(node, 10)
		byNUMA[key] = append(byNUMA[key], id)
	}
	for _, ids := range byNUMA {
		slices.Sort(ids)
	}
	return byNUMA
}

// replaceFile writes beside path and renames, as the kubelet's file store does.
func replaceFile(path string, data []byte) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".")
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	_, err = temp.Write(data)
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write checkpoint: %w", err)
	}
	return nil
}
