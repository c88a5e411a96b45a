// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Shares of a GPU's time, from the table that the shim's parser is held to as well.

package amount

import (
	"strconv"
	"strings"
	"testing"
)

func TestPercentTable(t *testing.T) {
	forEachRow(t, "cores.txt", 40, func(input, want string) {
		got := "error"
		percent, set, err := ParsePercent(input)
		switch {
		case err == nil && set:
			got = strconv.Itoa(percent)
		case err == nil:
			got = "unset"
		}
		if got != want {
			t.Errorf("%q: got %s, want %s (%v)", input, got, want, err)
		}
		if err != nil && (percent != 0 || set || !strings.Contains(err.Error(), strconv.Quote(input)) || !strings.Contains(err.Error(), PercentRule)) {
			t.Errorf("%q: an error comes with the value %d, or lacks the text or the rule: %v", input, percent, err)
		}
	})
}
