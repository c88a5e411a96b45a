// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// publisher.go writes the metrics file beside the tick: the tick offers its view and goes on, and a disk that hangs
// costs the file, not the agent. A view that is not written before the next one is offered is dropped.

package metrics

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/vgpud/vgpud/agent/notes"
)

// Publisher owns the metrics file.
type Publisher struct {
	file   *Textfile
	log    *slog.Logger
	latest chan View // holds at most one
	noted  notes.Notes
}

// NewPublisher names the file and takes away what a killed agent left of it.
func NewPublisher(directory string, log *slog.Logger) *Publisher {
	p := &Publisher{file: NewTextfile(directory), log: log.With("component", "metrics"), latest: make(chan View, 1)}
	p.noted.Change(p.log, notes.Subject{Stage: notes.StageTidy}, p.file.RemoveLeftovers())
	return p
}

// Offer hands a view over. Only the tick calls it.
func (p *Publisher) Offer(view View) {
	select {
	case <-p.latest: // not written yet: superseded
	default:
	}
	p.latest <- view
}

// Run writes until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case view := <-p.latest:
			p.noted.Change(p.log, notes.Subject{Stage: notes.StagePublish}, p.file.Write(view))
		}
	}
}

// Close removes the file: nothing old is exported after the agent has gone. Run must have returned.
func (p *Publisher) Close() error {
	if err := p.file.Remove(); err != nil {
		return fmt.Errorf("remove metrics file: %w", err)
	}
	return nil
}
