// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// GetPreferredAllocation's choice. Pure.

package plugin

import (
	"slices"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// candidate is one GPU in the choice.
type candidate struct {
	free   []string // device IDs still to be had, lowest number first
	chosen int      // how many of this request are on it
}

// Prefer chooses size device IDs out of available, starting with mustInclude: spread over different GPUs first;
// among equals the GPU with the most free slices; then the lower UUID. On a GPU the lowest numbers go first. The
// kubelet takes the answer as advice, so an odd request gets the best answer that there is, never an error: fewer
// IDs when there are not enough, mustInclude alone when it is already larger.
func Prefer(available, mustInclude []string, size int) []string {
	chosen := slices.Clone(mustInclude)
	taken := map[string]bool{}
	for _, id := range mustInclude {
		taken[id] = true
	}
	gpus := map[string]*candidate{}
	var order []*candidate // by UUID, so that equals are settled the same way each time
	sorted := slices.Concat(available, mustInclude)
	slices.SortFunc(sorted, ledger.CompareIDs)
	for _, id := range slices.Compact(sorted) {
		uuid, _, err := ledger.ParseSliceID(id)
		if err != nil {
			continue // no slice of ours: the kubelet would not offer it
		}
		gpu, ok := gpus[uuid]
		if !ok {
			gpu = &candidate{}
			gpus[uuid] = gpu
			order = append(order, gpu)
		}
		if taken[id] {
			gpu.chosen++
		} else {
			gpu.free = append(gpu.free, id)
		}
	}
	for len(chosen) < size {
		best := bestCandidate(order)
		if best == nil {
			break
		}
		chosen = append(chosen, best.free[0])
		best.free = best.free[1:]
		best.chosen++
	}
	return chosen
}

// bestCandidate returns the GPU to take the next slice from, or nil when none has one.
func bestCandidate(gpus []*candidate) *candidate {
	var best *candidate
	for _, gpu := range gpus {
		if len(gpu.free) == 0 {
			continue
		}
		if best == nil || gpu.chosen < best.chosen || (gpu.chosen == best.chosen && len(gpu.free) > len(best.free)) {
			best = gpu
		}
	}
	return best
}
