// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package monitor

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// Holding is an allocation's share of one GPU, and what is known of its use of GPU time; see Stream.
type Holding struct {
	Key, GPUUUID string
	Share        float64
	Charged      time.Duration
	Waited       time.Duration
	Started      time.Duration
}

// CollectContention merges what cards and pages say at time now. Holdings of cards that are not among the devices are left
// out; a holding without traffic is a stream that is not Known. Traffic of what is not held is the container's own claim
// about other cards, and ignored.
func CollectContention(now time.Duration, devices []source.DeviceSample, holdings []Holding, traffic []source.Traffic) *Contention {
	contention := &Contention{Now: now, Devices: slices.Clone(devices)}
	slices.SortStableFunc(contention.Devices, func(a, b Device) int { return strings.Compare(a.GPUUUID, b.GPUUUID) })
	contention.Devices = slices.CompactFunc(contention.Devices, func(a, b Device) bool { return a.GPUUUID == b.GPUUUID })
	type identity struct{ key, gpuUUID string }
	said := make(map[identity]source.Traffic, len(traffic))
	for _, one := range traffic {
		if _, twice := said[identity{one.Key, one.GPUUUID}]; !twice {
			said[identity{one.Key, one.GPUUUID}] = one
		}
	}
	for _, holding := range holdings {
		_, looked := slices.BinarySearchFunc(contention.Devices, holding.GPUUUID, func(device Device, uuid string) int {
			return strings.Compare(device.GPUUUID, uuid)
		})
		if !looked {
			continue
		}
		stream := Stream{Traffic: said[identity{holding.Key, holding.GPUUUID}], Share: holding.Share,
			Charged: holding.Charged, Waited: holding.Waited, Started: holding.Started}
		stream.Key, stream.GPUUUID = holding.Key, holding.GPUUUID
		contention.Streams = append(contention.Streams, stream)
	}
	slices.SortStableFunc(contention.Streams, func(a, b Stream) int {
		return cmp.Or(strings.Compare(a.GPUUUID, b.GPUUUID), strings.Compare(a.Key, b.Key))
	})
	contention.Streams = slices.CompactFunc(contention.Streams, func(a, b Stream) bool {
		return a.GPUUUID == b.GPUUUID && a.Key == b.Key
	})
	return contention
}
