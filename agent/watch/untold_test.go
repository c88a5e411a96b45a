// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package watch

import (
	"fmt"
	"testing"

	"github.com/vgpud/vgpud/agent/decide/health"
)

// What waits for a tick that does not come is bounded, and told once.
func TestUntoldTransitionsAreBounded(t *testing.T) {
	var waiting transitions
	for n := range 3 * mostUntold {
		waiting.add([]health.Transition{{UUID: fmt.Sprint(n)}})
	}
	if list := waiting.take(); len(list) != mostUntold || list[mostUntold-1].UUID != fmt.Sprint(3*mostUntold-1) {
		t.Errorf("%d wait", len(list))
	}
	if list := waiting.take(); len(list) != 0 {
		t.Errorf("told again: %v", list)
	}
}
