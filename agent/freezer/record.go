// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// record.go is the record of who is frozen: what is known of each, and the file that outlives the agent. Nothing that
// a container does makes it larger than what is read back.

package freezer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/atomicfile"
)

const (
	frozenMode = 0o600
	// maxFrozenBytes bounds what is written and read back.
	maxFrozenBytes = 4 << 20
	// mostPending bounds of how many processes of one container it is kept what signals were pending: 40 KiB of the file.
	mostPending = 1 << 10
)

// frozenContainer is one container that is stopped, as in the record.
type frozenContainer struct {
	ID          string      `json:"id"`
	Group       freezeGroup `json:"group"`
	PodUID      string      `json:"podUID,omitempty"`
	Namespace   string      `json:"namespace,omitempty"`
	Pod         string      `json:"pod,omitempty"`
	Name        string      `json:"container,omitempty"`
	Allocations []string    `json:"allocations,omitempty"`
	Since       time.Time   `json:"since"`
	Why         string      `json:"why"`
	// Pending are signals of endSignals that its processes had pending before they were stopped, by process.
	Pending map[int]uint64 `json:"pending,omitempty"`
	// KillOnly: other signals say nothing, SIGKILL alone asks it to end, which no process can hold back. More processes had some
	// pending than are kept, or it was let go on for one before, and did not end.
	KillOnly bool `json:"killOnly,omitempty"`
}

// frozenRecord is the file. Spared are containers that somebody thawed by command, with where they are.
type frozenRecord struct {
	Frozen []frozenContainer      `json:"frozen"`
	Spared map[string]freezeGroup `json:"spared,omitempty"`
}

func readFrozen(path string) (record frozenRecord, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return record, nil
	}
	if err != nil {
		return record, fmt.Errorf("read who is frozen: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFrozenBytes+1))
	if err == nil && len(text) > maxFrozenBytes {
		err = fmt.Errorf("more than %d bytes", maxFrozenBytes)
	}
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	if err != nil {
		return record, fmt.Errorf("read who is frozen: %s: %w (thaw the containers by hand and remove the file)", path, err)
	}
	for _, container := range record.Frozen {
		if err := container.Group.check(); err != nil {
			return record, fmt.Errorf("read who is frozen: %s: %w", path, err)
		}
	}
	return record, nil
}

// write puts the record on disk. One that could not be read back is not written.
func (f *Freezer) write() error {
	text, err := json.MarshalIndent(f.record, "", "  ")
	if err != nil {
		return fmt.Errorf("write who is frozen: %w", err)
	}
	if len(text) >= maxFrozenBytes {
		return fmt.Errorf("write who is frozen: %d bytes are more than could be read back", len(text))
	}
	if err := atomicfile.WriteFile(f.config.StatePath, append(text, '\n'), frozenMode); err != nil {
		return fmt.Errorf("write who is frozen: %w", err)
	}
	return nil
}

// notePending keeps what was pending before the container is stopped.
func (c *frozenContainer) notePending(pending map[int]uint64) {
	c.Pending = map[int]uint64{}
	for pid, mask := range pending {
		if mask&endSignals == 0 {
			continue
		}
		if len(c.Pending) >= mostPending {
			c.Pending, c.KillOnly = nil, true
			return
		}
		c.Pending[pid] = mask & endSignals
	}
}

// over says why a container is not to be frozen any more; "": it is.
func (c frozenContainer) over(root string) string {
	switch state := c.Group.state(root); state {
	case groupGone:
		return "it is gone"
	case groupThawed:
		return "somebody else has thawed it"
	case groupFrozen:
	}
	asks := endSignals
	if c.KillOnly {
		asks = maskOf(unix.SIGKILL)
	}
	for pid, pending := range c.Group.pending(root) {
		if pending&asks&^c.Pending[pid] != 0 {
			return fmt.Sprintf("process %d was asked to end", pid)
		}
	}
	return ""
}

func (c frozenContainer) attributes() []any {
	return []any{"container", c.ID, "namespace", c.Namespace, "pod", c.Pod, "pod_uid", c.PodUID, "reason", c.Why}
}
