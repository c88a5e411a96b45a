// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// notes.go says each lasting fault once, and once when it is over, however many ticks it lasts.

package main

import (
	"log/slog"
	"strings"

	"github.com/vgpud/vgpud/agent/monitor"
)

// notes remembers which faults were said. The zero value is ready. One goroutine uses it.
type notes struct{ said map[string]string }

// change logs when the fault called name begins, changes or ends (nil).
func (n *notes) change(log *slog.Logger, name string, fault error) {
	if n.said == nil {
		n.said = map[string]string{}
	}
	before, lasting := n.said[name]
	switch {
	case fault == nil && lasting:
		delete(n.said, name)
		log.Info("fault is over", "what", name)
	case fault != nil && before != fault.Error():
		n.said[name] = fault.Error()
		log.Warn("fault", "what", name, "error", fault)
	}
}

// keep forgets what was said of allocations that are no more.
func (n *notes) keep(allocations map[string]monitor.Allocation) {
	for name := range n.said {
		for _, kind := range []string{"allocation ", "putting right "} {
			if key, found := strings.CutPrefix(name, kind); found {
				if _, exists := allocations[key]; !exists {
					delete(n.said, name)
				}
			}
		}
	}
}
