// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package control

import "slices"

// withLists is the view in which each list that is not there is an empty one, so that scripts need not tell null from [].
// The view itself stays as it is.
func (v *View) withLists() *View {
	full := *v
	full.GPUs, full.Slices = slices.Clone(listed(v.GPUs)), slices.Clone(listed(v.Slices))
	for i := range full.GPUs {
		gpu := &full.GPUs[i]
		gpu.Throttle, gpu.Possible = listed(gpu.Throttle), listed(gpu.Possible)
		gpu.Pressures, gpu.Unattributed = listed(gpu.Pressures), listed(gpu.Unattributed)
	}
	for i := range full.Slices {
		slice := &full.Slices[i]
		slice.SliceIDs, slice.Traffic = listed(slice.SliceIDs), listed(slice.Traffic)
		slice.Pressures, slice.Verdicts = listed(slice.Pressures), listed(slice.Verdicts)
	}
	full.Probes.Unobservable, full.Sources = listed(v.Probes.Unobservable), listed(v.Sources)
	full.Findings, full.Frozen = slices.Clone(listed(v.Findings)), slices.Clone(listed(v.Frozen))
	for i := range full.Findings {
		full.Findings[i].PIDs = listed(full.Findings[i].PIDs)
	}
	for i := range full.Frozen {
		full.Frozen[i].Allocations = listed(full.Frozen[i].Allocations)
	}
	return &full
}

func listed[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
