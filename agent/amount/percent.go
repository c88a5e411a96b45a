// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// percent.go reads shares of a GPU's time.

package amount

import (
	"fmt"
	"strconv"
	"strings"
)

// PercentRule is the sentence that error messages, --help and the documentation quote.
const PercentRule = "a whole number from 1 to 100 without a percent sign"

// WholePercent is the whole GPU.
const WholePercent = 100

// ParsePercent returns the percent that text names, 1 to 100. Blanks at both ends are allowed; set is false for an
// empty or blank text. Everything else (0, sign, percent sign, fraction, more than 100) is an error.
func ParsePercent(text string) (percent int, set bool, err error) {
	trimmed := strings.Trim(text, " \t\n\v\f\r")
	if trimmed == "" {
		return 0, false, nil
	}
	digits, rest := CutDigits(trimmed)
	percent, err = strconv.Atoi(digits)
	if err != nil || rest != "" || percent < 1 || percent > WholePercent {
		return 0, false, fmt.Errorf("%q is no share of a GPU: want %s", text, PercentRule)
	}
	return percent, true, nil
}
