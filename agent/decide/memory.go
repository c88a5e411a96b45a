// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package decide

import (
	"github.com/vgpud/vgpud/agent/monitor"
)

// AllocationVerdict is what is thought of one allocation.
type AllocationVerdict struct {
	Key string
	// Tampered: the usage page is not as the agent made it. It is to be restored.
	Tampered bool
	// Missing: a page is not there. It is to be made again; processes that run keep the old one.
	Missing bool
	// Freeze: the usage page may have lost what idle processes hold, so nothing more may be allocated until the
	// container starts again. To be done before the page is put right, in the epoch of the snapshot only.
	Freeze monitor.Damage
	// Frozen: nothing more may be allocated, as of this tick.
	Frozen bool
	// OverLimit: by its own book the container holds more of a GPU than it was granted.
	OverLimit bool
	// Release: its container is gone; the ledger takes the slices back and the pages are removed.
	Release bool
	// Reason says why, for people; empty when there is nothing to say.
	Reason string
}

// judgeAllocations looks at each allocation. Release needs all of: it is lost (see lost) for Policy.ReleaseAfter ticks
// in a row in which the kubelet's record was read, it is older than Policy.ReleaseAge, and no process of its pod is
// known to run. It is as old at least as it is lost: its date says nothing where the clock was set back after it.
func judgeAllocations(snapshot *monitor.Snapshot, policy Policy, absent map[string]Absence) (
	[]AllocationVerdict, map[string]Absence) {
	next := map[string]Absence{}
	var verdicts []AllocationVerdict
	kubeletUp := snapshot.SourceUp(monitor.SourceKubelet)
	for _, allocation := range snapshot.Allocations {
		verdict := AllocationVerdict{Key: allocation.Key}
		judgePages(allocation, &verdict)
		reason := lost(allocation)
		switch {
		case !kubeletUp:
			// Nothing was learnt: neither a trace nor its absence.
			if absence, lasts := absent[allocation.Key]; lasts {
				next[allocation.Key] = absence
			}
		case reason != "":
			absence, lasts := absent[allocation.Key]
			if !lasts {
				absence.Since = snapshot.At
			}
			absence.Ticks++
			next[allocation.Key] = absence
		}
		age := max(allocation.Age, snapshot.At.Sub(next[allocation.Key].Since))
		if kubeletUp && reason != "" && next[allocation.Key].Ticks >= policy.ReleaseAfter &&
			age > policy.ReleaseAge && !mayRun(snapshot, allocation) {
			verdict.Release, verdict.Reason = true, reason
		}
		verdicts = append(verdicts, verdict)
	}
	return verdicts, next
}

// lost says why nobody seems to hold an allocation, or nothing. The kubelet's record forgets a pod that has ended only
// at its next allocation; so a pod counts as gone, too, when its directory is gone that was there before and none of
// its processes runs. A pod that waits for its network has no directory yet, one that waits to be started again has it.
func lost(allocation monitor.Allocation) string {
	switch {
	case allocation.Absent:
		return "the kubelet no longer holds it"
	case allocation.PodSeen && allocation.PodDirectory == monitor.NotPresent && allocation.PodProcesses == 0:
		return "its pod is gone"
	default:
		return ""
	}
}

// mayRun says whether processes of the allocation's pod run, or may run because nobody can tell at present.
func mayRun(snapshot *monitor.Snapshot, allocation monitor.Allocation) bool {
	if allocation.PodProcesses < 0 {
		return allocation.Owner.Known() && snapshot.SourceDown(monitor.SourceProcs)
	}
	return allocation.PodProcesses > 0
}

func judgePages(allocation monitor.Allocation, verdict *AllocationVerdict) {
	switch allocation.Pages {
	case monitor.PagesTampered:
		verdict.Tampered, verdict.Reason = true, allocation.Reason
	case monitor.PagesMissing:
		verdict.Missing, verdict.Reason = true, allocation.Reason
	case monitor.PagesReadable, monitor.PagesUnknown:
	}
	if allocation.Frozen == monitor.DamageNone && allocation.Damage != monitor.DamageGrown {
		verdict.Freeze = allocation.Damage
	}
	verdict.Frozen = allocation.Frozen != monitor.DamageNone || verdict.Freeze != monitor.DamageNone
	for _, share := range allocation.GPUs {
		if share.Measured && share.UsedBytes > share.LimitBytes {
			verdict.OverLimit = true
			verdict.Reason = "uses more of " + share.GPUUUID + " than its limit"
		}
	}
}
