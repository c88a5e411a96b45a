// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// report.go is what vgpud exec --report says when the command has ended. The figures are those of the usage page,
// which the command's own processes wrote.

package standalone

import (
	"fmt"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/limiter"
	"github.com/vgpud/vgpud/plugin"
)

// report reads the slice's pages and says what became of them. wall is how long the command ran; left says that processes
// which it started still run.
func (s *allocation) report(wall time.Duration, left bool, say func(string)) {
	usage, err := limiter.ReadUsage(s.pages())
	if err != nil {
		say(fmt.Sprintf("no report: %v", err))
		return
	}
	moved, err := readTraffic(s.pages())
	if err != nil {
		say(fmt.Sprintf("no report: %v", err))
		return
	}
	for _, line := range reportLines(s.device, usage.Devices[0], moved, wall, left) {
		say(line)
	}
}

// readTraffic reads the traffic book of the slice's only device.
func readTraffic(dir string) (limiter.Traffic, error) {
	reader, err := limiter.OpenTraffic(dir)
	if err != nil {
		return limiter.Traffic{}, err
	}
	defer func() { _ = reader.Close() }() // it was only read
	books, err := reader.Read()
	if err != nil {
		return limiter.Traffic{}, err
	}
	return books[0], nil
}

// reportLines is the text. granted is what the slice was made with.
func reportLines(granted limiter.Device, used limiter.DeviceUsage, moved limiter.Traffic, wall time.Duration, left bool) []string {
	lines := append(computeLines(granted.Compute, used.Compute, wall), memoryLine(granted, used), copiesLine(moved))
	if moved.Stalls > 0 {
		lines = append(lines, fmt.Sprintf("waited for the GPU: %d calls, %s in all threads together", moved.Stalls, seconds(moved.Stalled)))
	}
	if left {
		lines = append(lines, "processes of the command still run; these figures are of the time until now")
	}
	return lines
}

// computeLines is what is said of GPU time.
func computeLines(granted limiter.Compute, used limiter.ComputeUsage, wall time.Duration) []string {
	if granted.Mode == limiter.ComputeNone {
		return []string{"GPU time: not limited, and so not measured; --cores limits it"}
	}
	grant := fmt.Sprintf("GPU time: granted %s %% of the GPU (%s)", plugin.PercentText(granted.SharePPM), granted.Mode)
	if used.Launches == 0 && used.Charged == 0 {
		return []string{grant + ", used none: nothing was launched"}
	}
	lines := []string{fmt.Sprintf("%s, used %s of %s, %.1f %%; launches: %d", grant, seconds(used.Charged), seconds(wall),
		percentOf(used.Charged, wall), used.Launches)}
	if used.Throttled == 0 {
		lines = append(lines, "kept waiting for GPU time: never")
	} else {
		lines = append(lines, fmt.Sprintf("kept waiting for GPU time: %s in all threads together, %.0f %% of the run: it would have used more than its share",
			seconds(used.Throttled), percentOf(used.Throttled, wall)))
	}
	if used.Degraded > 0 {
		lines = append(lines, "degraded: without an agent nobody compares the program's own measurements with the driver's; they are too high while "+
			"other programs use the GPU, and it then gets less than its share")
	}
	return lines
}

// memoryLine is what is said of device memory.
func memoryLine(granted limiter.Device, used limiter.DeviceUsage) string {
	limit := "not limited"
	if granted.MemoryLimitBytes < limiter.MaxBytes {
		limit = "granted " + amount.FormatBytes(granted.MemoryLimitBytes)
	}
	return fmt.Sprintf("memory: %s; requests: %d, of them refused: %d", limit, used.Allocations+used.Refusals, used.Refusals)
}

// copiesLine is what is said of copies: how many each way, and their bytes.
func copiesLine(moved limiter.Traffic) string {
	ways := [limiter.Directions]string{limiter.HostToDevice: "to the GPU", limiter.DeviceToHost: "from it",
		limiter.WithinDevice: "within it", limiter.BetweenDevices: "to or from another GPU"}
	var parts []string
	for direction, count := range moved.Copies {
		if count.Calls > 0 {
			parts = append(parts, fmt.Sprintf("%s %d, %s", ways[direction], count.Calls, amount.FormatBytes(count.Bytes)))
		}
	}
	if len(parts) == 0 {
		return "copies: none"
	}
	return "copies: " + strings.Join(parts, "; ")
}

// seconds is a time for people, to the millisecond.
func seconds(d time.Duration) string { return fmt.Sprintf("%.3f s", d.Seconds()) }

// percentOf is part in percent of whole; 0 of nothing.
func percentOf(part, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}
