// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package nvml

import (
	"context"
	"math"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/source"
)

var _ source.Utilizations = (*Reader)(nil)

const (
	processUtilization = "nvmlDeviceGetProcessUtilization"
	// oldestSample is how far back samples are asked for; what was before is of no use. Without such a bound a driver
	// answers with a mean over all that it remembers.
	oldestSample = time.Second
)

// clock is the time of day, in which the library stamps its samples, and CLOCK_MONOTONIC at the same moment.
type clock func() (wall, monotonic time.Duration)

func systemClock() (wall, monotonic time.Duration) {
	read := func(id int32) time.Duration {
		var at unix.Timespec
		if err := unix.ClockGettime(id, &at); err != nil {
			panic(err) // there is no Linux without these clocks
		}
		return time.Duration(at.Nano())
	}
	return read(unix.CLOCK_REALTIME), read(unix.CLOCK_MONOTONIC)
}

// Utilization implements source.Utilizations. It returns when its patience or ctx ends, as GPUs does. Cards that do not tell
// (MIG, old libraries) and cards in trouble are left out.
func (r *Reader) Utilization(ctx context.Context) ([]source.ProcessUtilization, error) {
	return ask(ctx, r, "read utilization", r.readUtilization)
}

// readUtilization runs with the turn held.
func (r *Reader) readUtilization() ([]source.ProcessUtilization, error) {
	devices, err := r.devices()
	if err != nil || !r.has[processUtilization] {
		return nil, err
	}
	var samples []source.ProcessUtilization
	seen := map[string]uint64{}
	for _, opened := range devices {
		uuid, code := opened.device.GetUUID()
		if code != nvml.SUCCESS || uuid == "" {
			continue
		}
		found, last, code := r.cardSamples(opened.device, uuid)
		if code == nvml.ERROR_UNINITIALIZED {
			return nil, r.giveUp(codeError("read utilization", code))
		}
		samples, seen[uuid] = append(samples, found...), last
	}
	r.sampled = seen
	return samples, nil
}

// cardSamples reads the samples of one card that are new, and the stamp of the last one. With any code but SUCCESS there
// are none: nobody used the card (NOT_FOUND), or it does not tell.
func (r *Reader) cardSamples(device nvml.Device, uuid string) (samples []source.ProcessUtilization, last uint64, code nvml.Return) {
	wall, monotonic := r.clock()
	since := sampledSince(r.sampled[uuid], wall)
	found, code := askUtilization(device, since)
	if code != nvml.SUCCESS {
		return nil, since, code
	}
	last = since
	for _, sample := range found {
		age := wall - time.Duration(min(sample.TimeStamp, maxStamp))*time.Microsecond
		// A driver hands out room for more samples than it has.
		if sample.TimeStamp <= since || sample.Pid == 0 || sample.SmUtil > 100 || age < -oldestSample {
			continue
		}
		last = max(last, sample.TimeStamp)
		samples = append(samples, source.ProcessUtilization{GPUUUID: uuid, PID: int(sample.Pid),
			Busy: float64(sample.SmUtil) / 100, At: monotonic - max(0, age)})
	}
	return samples, last, code
}

// askUtilization asks for samples. The binding asks twice, for how many there are and for the samples, and panics when there
// is one process more by then: nothing is lost, what was not read now is read the next time.
func askUtilization(device nvml.Device, since uint64) (found []nvml.ProcessUtilizationSample, code nvml.Return) {
	defer func() {
		if recover() != nil {
			found, code = nil, nvml.ERROR_INSUFFICIENT_SIZE
		}
	}()
	return device.GetProcessUtilization(since)
}

// maxStamp is the latest stamp that can be reckoned with.
const maxStamp = math.MaxInt64 / uint64(time.Microsecond)

// sampledSince is from when on samples are asked for, in the library's microseconds: after the last one that was seen, but
// not too long ago, and not in the future, where it lies when the time of day was set back.
func sampledSince(last uint64, wall time.Duration) uint64 {
	now := uint64(wall / time.Microsecond)
	oldest := now - min(now, uint64(oldestSample/time.Microsecond))
	if last > now {
		return oldest
	}
	return max(last, oldest)
}
