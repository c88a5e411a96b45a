// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What can be observed of GPU time. Times are CLOCK_MONOTONIC of the node's first time namespace, as in the pages.

package source

import (
	"context"
	"time"
)

// ProcessUtilization is how busy one process kept one GPU in one sample period of the driver.
type ProcessUtilization struct {
	GPUUUID string
	PID     int           // as the agent sees it
	Busy    float64       // part of the period in which a kernel of it ran, 0 to 1; the driver tells whole percents
	At      time.Duration // end of the period, CLOCK_MONOTONIC
}

// Utilizations reads the samples that are new since the last call. A process that did not use a GPU in a period has no
// sample of it; nor has any where the driver has none, or does not tell (MIG). An error means that no GPU can be watched.
type Utilizations interface {
	Utilization(ctx context.Context) ([]ProcessUtilization, error)
}

// Keys tells which allocations processes hold.
type Keys interface {
	// Keys returns the allocation keys of each process, sorted; none for one that holds no allocation. Processes that
	// have ended, and are not remembered, are left out. An error means that nothing is known of any.
	Keys(pids []int) (map[int][]string, error)
}

// WholePPM is a whole GPU in the unit of shares, and one in that of rates and scales.
const WholePPM = 1_000_000

// ComputeMode is how the GPU time of an allocation is limited, in the numbers of package limiter.
type ComputeMode uint32

// The modes.
const (
	ComputeNone    ComputeMode = 0 // not limited
	ComputeHard    ComputeMode = 1 // the share is a cap
	ComputeElastic ComputeMode = 2 // the share is a promise and a weight; what others leave is lent
)

// ComputeUsage is the compute book of one allocation on one GPU: what is granted and in force by its limits page, and what
// its usage page says. The latter are the container's own claims, bounded by package limiter.
type ComputeUsage struct {
	Key, GPUUUID         string
	Mode                 ComputeMode
	SharePPM, CeilingPPM uint32
	RatePPM, ScalePPM    uint32        // in force
	Known                bool          // the usage page could be read; else the fields below are 0
	Debt                 time.Duration // bought ahead of what it is entitled to; not negative
	Charged              time.Duration // estimated cost of all launches ever, not scaled
	Wanted               time.Duration // when it last asked for GPU time; 0: never
	Waited               time.Duration // when a thread of it was last kept waiting; 0: never
	Throttled            time.Duration // how long its threads were kept waiting, in all
	Degraded             time.Duration // how long it ran without an agent that steers, in all
	Launches             uint64
}
