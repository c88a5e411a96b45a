// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// gpu.go chooses the card of vgpud exec. Pure.

package standalone

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/vgpud/vgpud/agent/source"
)

// fullUUID is the form in which CUDA and NVML name a card.
var fullUUID = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// chooseGPU returns the card that request names: a UUID or a unique beginning of one, an index, or "" for
// the first of visible (CUDA_VISIBLE_DEVICES), which may be empty. nvmlErr says that gpus could not be listed; then
// only a full UUID will do, and the UUID is all that is known of the card.
func chooseGPU(request, visible string, gpus []source.GPU, nvmlErr error) (source.GPU, error) {
	wish, from := strings.TrimSpace(request), "--gpu"
	if wish == "" {
		first, _, _ := strings.Cut(visible, ",")
		wish, from = strings.TrimSpace(first), "CUDA_VISIBLE_DEVICES"
	}
	if nvmlErr != nil {
		if fullUUID.MatchString(wish) {
			return source.GPU{UUID: wish}, nil
		}
		return source.GPU{}, fmt.Errorf("no GPU found: %w; with --gpu and a full UUID (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx) "+
			"NVML is not needed", nvmlErr)
	}
	if len(gpus) == 0 {
		return source.GPU{}, errors.New("there is no GPU")
	}
	if wish == "" {
		wish, from = "0", "default"
	}
	gpu, err := matchGPU(wish, gpus)
	if err != nil {
		return source.GPU{}, fmt.Errorf("%s %q: %w", from, wish, err)
	}
	if gpu.Err != nil {
		return source.GPU{}, fmt.Errorf("GPU %s cannot be used: %w", gpu.UUID, gpu.Err)
	}
	return gpu, nil
}

// matchGPU finds the one card that wish names.
func matchGPU(wish string, gpus []source.GPU) (source.GPU, error) {
	var found []source.GPU
	index, err := strconv.Atoi(wish)
	for _, gpu := range gpus {
		if byIndex := err == nil && gpu.Index == index; byIndex || (strings.HasPrefix(wish, "GPU-") && strings.HasPrefix(gpu.UUID, wish)) {
			found = append(found, gpu)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	var known []string
	for _, gpu := range gpus {
		known = append(known, fmt.Sprintf("%d %s", gpu.Index, gpu.UUID))
	}
	list := strings.Join(known, ", ")
	if len(found) > 1 {
		return source.GPU{}, fmt.Errorf("names more than one GPU of %s", list)
	}
	return source.GPU{}, fmt.Errorf("no such GPU; there are: %s", list)
}
