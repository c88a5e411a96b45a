// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package watchtest has what a look at contention is judged by in tests: a conclusion that the test writes, and cards that
// answer.
package watchtest

import (
	"sync"
	"time"

	"github.com/vgpud/vgpud/agent/decide/contention"
	"github.com/vgpud/vgpud/agent/monitor"
	"github.com/vgpud/vgpud/agent/source"
)

// Quarrel is a conclusion that the test writes: every slice of the card is slowed by the one that is named.
type Quarrel struct {
	mu         sync.Mutex
	card       string // "": nobody is slowed
	antagonist string
	quick      []string
	seen       *monitor.Contention
}

// Set says which card is contended (""; none), by whom, and which cards are to be looked at quickly.
func (q *Quarrel) Set(card, antagonist string, quick ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.card, q.antagonist, q.quick = card, antagonist, quick
}

// Last is the last look that was judged.
func (q *Quarrel) Last() *monitor.Contention {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.seen
}

// Contend is a watch.Contender.
func (q *Quarrel) Contend(seen *monitor.Contention, _ contention.Policy, state contention.State) (contention.Result, contention.State) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = seen
	concluded := contention.Result{Next: time.Second, Period: true, Quick: q.quick}
	for _, device := range seen.Devices {
		concluded.GPUs = append(concluded.GPUs, contention.GPU{UUID: device.GPUUUID, Possible: []contention.Resource{contention.ResourcePCIeRX}})
	}
	for _, stream := range seen.Streams {
		slice := contention.Slice{Key: stream.Key, GPUUUID: stream.GPUUUID}
		strain := contention.Strain{Resource: contention.ResourcePCIeRX, Samples: 100}
		if stream.GPUUUID == q.card && stream.Key != q.antagonist {
			strain.Avg10, strain.Avg60, strain.Saturated, strain.CoActive = 0.6, 0.5, true, true
			strain.DeviceRatio, strain.Antagonist, strain.Confidence = 0.95, q.antagonist, 0.9
		}
		slice.Strain = []contention.Strain{strain}
		concluded.Slices = append(concluded.Slices, slice)
	}
	return concluded, state
}

// Counters are cards that answer.
func Counters(cards ...string) []source.DeviceSample {
	figure := source.Figure{Value: 1e9, Period: 200 * time.Millisecond, Known: true}
	var list []source.DeviceSample
	for _, uuid := range cards {
		list = append(list, source.DeviceSample{GPUUUID: uuid, PCIeRX: figure, PCIeTX: figure, Sharing: source.SharingTimeSliced, LinkWidth: 16})
	}
	return list
}
