// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_exec_gpu.go chooses the card of vgpud exec. Pure.

package main

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

// chooseGPU returns the UUID of the card that request names: a UUID or a unique beginning of one, an index, or "" for
// the first of visible (CUDA_VISIBLE_DEVICES), which may be empty. nvmlErr says that gpus could not be listed; then
// only a full UUID will do.
func chooseGPU(request, visible string, gpus []source.GPU, nvmlErr error) (string, error) {
	wish, from := strings.TrimSpace(request), "--gpu"
	if wish == "" {
		first, _, _ := strings.Cut(visible, ",")
		wish, from = strings.TrimSpace(first), "CUDA_VISIBLE_DEVICES"
	}
	if nvmlErr != nil {
		if fullUUID.MatchString(wish) {
			return wish, nil
		}
		return "", fmt.Errorf("the GPUs cannot be listed, so that --gpu has to be a full UUID "+
			"(GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx), not %q: %w", wish, nvmlErr)
	}
	if len(gpus) == 0 {
		return "", errors.New("there is no GPU")
	}
	if wish == "" {
		wish, from = "0", "default"
	}
	gpu, err := matchGPU(wish, gpus)
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", from, wish, err)
	}
	if gpu.Err != nil {
		return "", fmt.Errorf("GPU %s cannot be used: %w", gpu.UUID, gpu.Err)
	}
	return gpu.UUID, nil
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
