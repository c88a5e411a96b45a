// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// percent.go reads shares of a GPU's time. libvgpu reads CUDA_DEVICE_SM_LIMIT by the same rules; both are held to
// libvgpu/test/testdata/cores.txt.

package main

import (
	"fmt"
	"strconv"
	"strings"
)

// percentRule is the sentence that error messages, --help and the documentation quote.
const percentRule = "a whole number from 1 to 100 without a percent sign"

// maxPercent is the whole GPU.
const maxPercent = 100

// parsePercent returns the percent that text names, 1 to 100. Blanks at both ends are allowed; set is false for an
// empty or blank text. Everything else (0, sign, percent sign, fraction, more than 100) is an error.
func parsePercent(text string) (percent int, set bool, err error) {
	trimmed := strings.Trim(text, " \t\n\v\f\r")
	if trimmed == "" {
		return 0, false, nil
	}
	digits, rest := cutDigits(trimmed)
	percent, err = strconv.Atoi(digits)
	if err != nil || rest != "" || percent < 1 || percent > maxPercent {
		return 0, false, fmt.Errorf("%q is no share of a GPU: want %s", text, percentRule)
	}
	return percent, true, nil
}
