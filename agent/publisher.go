// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// publisher.go writes the metrics file beside the tick: the tick offers its view and goes on, and a disk that hangs
// costs the file, not the agent. A view that is not written before the next one is offered is dropped.

package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/vgpud/vgpud/agent/metrics"
	"github.com/vgpud/vgpud/agent/notes"
)

// publisher owns the metrics file.
type publisher struct {
	file   *metrics.Textfile
	log    *slog.Logger
	latest chan metrics.View // holds at most one
	noted  notes.Notes
}

// newPublisher names the file and takes away what a killed agent left of it.
func newPublisher(directory string, log *slog.Logger) *publisher {
	p := &publisher{file: metrics.NewTextfile(directory), log: log.With("component", "metrics"), latest: make(chan metrics.View, 1)}
	p.noted.Change(p.log, notes.Subject{Stage: notes.StageTidy}, p.file.RemoveLeftovers())
	return p
}

// offer hands a view over. Only the tick calls it.
func (p *publisher) offer(view metrics.View) {
	select {
	case <-p.latest: // not written yet: superseded
	default:
	}
	p.latest <- view
}

// run writes until ctx ends.
func (p *publisher) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case view := <-p.latest:
			p.noted.Change(p.log, notes.Subject{Stage: notes.StagePublish}, p.file.Write(view))
		}
	}
}

// close removes the file: nothing old is exported after the agent has gone. run must have returned.
func (p *publisher) close() error {
	if err := p.file.Remove(); err != nil {
		return fmt.Errorf("remove metrics file: %w", err)
	}
	return nil
}
