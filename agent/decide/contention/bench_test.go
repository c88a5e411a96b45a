// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What Judge costs: 8 cards with 50 slices of 16 classes each.

package contention

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// fleet is what is seen of many cards. Of each slice so many classes have new samples in every look.
type fleet struct {
	seen   monitor.Contention
	active int // slices of a card
	fresh  int // classes of an active slice
}

func newFleet(cards, perCard, classes, active, fresh int) *fleet {
	f := &fleet{active: active, fresh: fresh}
	f.seen.Now = time.Hour
	for c := range cards {
		uuid := fmt.Sprintf("GPU-%d", c)
		f.seen.Devices = append(f.seen.Devices, monitor.Device{GPUUUID: uuid, Sharing: monitor.SharingMPS, SMClockMHz: 1980, MemoryClockMHz: 2619,
			LinkGeneration: 5, LinkGenerationMax: 5, LinkWidth: 16, LinkWidthMax: 16})
		for i := range perCard {
			stream := monitor.Stream{Share: 0.02, Charged: time.Second, Started: time.Minute}
			stream.Key, stream.GPUUUID, stream.Known = fmt.Sprintf("key-%03d", i), uuid, true
			for k := range classes {
				kind := []monitor.OperationKind{monitor.OperationKernel, monitor.OperationHostToDevice, monitor.OperationDeviceToHost}[k%3]
				stream.Classes = append(stream.Classes, monitor.Class{ID: uint64(k + 1), Kind: kind, Recent: make([]time.Duration, 22)})
			}
			f.seen.Streams = append(f.seen.Streams, stream)
		}
	}
	return f
}

// step lets a second pass. It changes what was seen before, which Judge does not keep.
func (f *fleet) step(passed time.Duration) {
	f.seen.Now += passed
	for i := range f.seen.Devices {
		device := &f.seen.Devices[i]
		device.At = f.seen.Now
		wave := 0.5 + 0.4*float64((int(f.seen.Now/time.Second)*7)%11)/11
		device.DRAM = monitor.Figure{Value: wave, Period: passed, Known: true}
		device.Busy = device.DRAM
		device.PCIeRX = monitor.Figure{Value: wave * 40e9, Period: passed, Known: true}
		device.PCIeTX = device.PCIeRX
	}
	for i := range f.seen.Streams {
		stream := &f.seen.Streams[i]
		if i%50 >= f.active {
			continue
		}
		stream.Charged += passed / time.Duration(2+(i+int(f.seen.Now/time.Second))%9)
		stream.Copies[monitor.HostToDevice].Bytes += 1 << 30
		for k := range min(f.fresh, len(stream.Classes)) {
			class := &stream.Classes[k]
			class.Samples += 4
			class.Operations += 256
			class.Time += 4 * time.Millisecond
			copy(class.Recent, class.Recent[4:])
			for j := range 4 {
				class.Recent[18+j] = time.Millisecond + time.Duration((i*7+k*13+j*29+int(f.seen.Now))%100)*time.Microsecond
			}
		}
	}
}

func BenchmarkContend(b *testing.B) {
	for name, f := range map[string]*fleet{
		"idle":       newFleet(8, 50, 16, 0, 0),
		"usual":      newFleet(8, 50, 16, 6, 4),
		"half":       newFleet(8, 50, 16, 16, 8),
		"everything": newFleet(8, 50, 16, 50, 16),
	} {
		b.Run(name, func(b *testing.B) {
			var state State
			policy := DefaultPolicy()
			for range 150 {
				f.step(time.Second)
				_, state = Judge(&f.seen, policy, state)
			}
			b.ReportAllocs()
			b.ResetTimer()
			var used time.Duration // CPU time, with that of the collector
			for range b.N {
				b.StopTimer()
				f.step(time.Second)
				before := cpuTime(b)
				b.StartTimer()
				_, state = Judge(&f.seen, policy, state)
				b.StopTimer()
				used += cpuTime(b) - before
				b.StartTimer()
			}
			b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
