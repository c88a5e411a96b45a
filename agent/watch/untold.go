// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// untold.go is what waits for the tick that acts on it.

package watch

import (
	"sync"

	"github.com/vgpud/vgpud/agent/decide/health"
)

// mostUntold bounds what waits for a tick: with none for so long, the oldest are dropped.
const mostUntold = 256

// transitions wait for the tick that acts on them. They are safe for concurrent use.
type transitions struct {
	mu   sync.Mutex
	list []health.Transition
}

func (t *transitions) add(list []health.Transition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.list = append(t.list, list...)
	t.list = t.list[max(0, len(t.list)-mostUntold):]
}

func (t *transitions) take() []health.Transition {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := t.list
	t.list = nil
	return list
}
