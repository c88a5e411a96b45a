// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// verdicts.go keeps the verdicts about contention in the state directory, so that a restart of the agent neither
// offers a contended card for the minutes that it takes to see the contention again, nor forgets how often it came.

package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/internal/atomicfile"
)

const (
	// keepEvery is how often the record is written while a card is contended: a verdict's age is part of it.
	keepEvery = time.Minute
	// longestRecord bounds what is read back.
	longestRecord = 1 << 20
)

// Verdicts is the file of verdicts. A nil one keeps nothing. One goroutine uses it.
type Verdicts struct {
	path    string
	now     func() time.Time
	written time.Time
	filled  bool // what was written last holds verdicts
}

// healthText is the file's text.
type healthText struct {
	Written time.Time     `json:"written"`
	Verdict health.Record `json:"verdicts"`
}

// NewVerdicts names the file; nothing is read yet. now is the time of day, for the verdicts' age.
func NewVerdicts(path string, now func() time.Time) *Verdicts {
	return &Verdicts{path: path, now: now}
}

// Read returns the state of the record, as of now. No record is no error.
func (r *Verdicts) Read(now time.Duration) (health.State, error) {
	if r == nil {
		return health.State{}, nil
	}
	file, err := os.OpenFile(r.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return health.State{}, nil
	}
	if err != nil {
		return health.State{}, fmt.Errorf("read verdicts: %w", err)
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, longestRecord))
	if err != nil {
		return health.State{}, fmt.Errorf("read verdicts: %w", err)
	}
	var text healthText
	if err := json.Unmarshal(raw, &text); err != nil {
		return health.State{}, fmt.Errorf("read verdicts of %s: %w", r.path, err)
	}
	r.filled = len(text.Verdict.GPUs) > 0
	return health.Restore(text.Verdict, r.now().Sub(text.Written), now), nil
}

// Keep writes the verdicts when something moved, or when it is time to.
func (r *Verdicts) Keep(state health.State, now time.Duration, moved bool) error {
	if r == nil || !moved && r.now().Sub(r.written) < keepEvery {
		return nil
	}
	record := state.Record(now)
	if len(record.GPUs) == 0 && !r.filled {
		return nil
	}
	at := r.now()
	text, err := json.Marshal(healthText{at, record})
	if err != nil {
		return fmt.Errorf("keep verdicts: %w", err)
	}
	r.written = at // also where it fails: not at every look
	if err := atomicfile.WriteFile(r.path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep verdicts: %w", err)
	}
	r.filled = len(record.GPUs) > 0
	return nil
}
