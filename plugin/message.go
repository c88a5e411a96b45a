// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The ListAndWatch message: slices on the wire, and how large the message can get.

package plugin

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// MaxListBytes is the largest list we send. The kubelet's client receives at most 4 MiB (4194304 bytes), which no
// option changes, and its only symptom is that allocatable never appears.
const MaxListBytes = 3 << 20

// listMessage puts slices on the wire. A slice without a NUMA node carries no topology: node -1 would be wrong.
func listMessage(listed []Slice) *v1beta1.ListAndWatchResponse {
	message := &v1beta1.ListAndWatchResponse{Devices: make([]*v1beta1.Device, 0, len(listed))}
	for _, slice := range listed {
		device := &v1beta1.Device{ID: slice.ID, Health: v1beta1.Healthy}
		if !slice.Healthy() {
			device.Health = v1beta1.Unhealthy
		}
		if slice.NUMA >= 0 {
			device.Topology = &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: int64(slice.NUMA)}}}
		}
		message.Devices = append(message.Devices, device)
	}
	return message
}

// checkListBytes refuses a list that would pass MaxListBytes with every device Unhealthy (the longer word).
func checkListBytes(gpus []GPU) error {
	devices, size := 0, 0
	for _, g := range gpus {
		devices += g.Slices
		size += listBytes(g)
	}
	if size > MaxListBytes {
		return fmt.Errorf("%w: %d devices make a list of %d bytes when all are unhealthy; the limit is %d bytes: use fewer slices per GPU",
			ErrListTooLarge, devices, size, MaxListBytes)
	}
	return nil
}

// listBytes is the encoded size of one GPU's devices, all Unhealthy. It is arithmetic, one step per number of
// digits, so that an absurd configuration is refused without building its list first.
func listBytes(g GPU) int {
	rest := fieldBytes(len(v1beta1.Unhealthy))
	if g.NUMA >= 0 {
		node := 0 // a zero ID is left out by proto3
		if g.NUMA > 0 {
			node = 1 + protowire.SizeVarint(uint64(g.NUMA))
		}
		rest += fieldBytes(fieldBytes(node))
	}
	total := 0
	for first := 0; first < g.Slices; {
		digits := len(strconv.Itoa(first))
		next := g.Slices
		if power := pow10(digits); power < next {
			next = power
		}
		id := len(ledger.SliceID(g.UUID, first))
		total += (next - first) * fieldBytes(fieldBytes(id)+rest)
		first = next
	}
	return total
}

// fieldBytes is the size of a length-delimited field with a tag of one byte.
func fieldBytes(content int) int { return 1 + protowire.SizeBytes(content) }

func pow10(n int) int {
	result := 1
	for range n {
		result *= 10
	}
	return result
}
