// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// freezer.go stops containers on the witness' orders, and lets them go on: when the kubelet wants them gone, for a stopped
// process cannot end; when their pod is gone; by command; and when the agent stops. What is frozen is on disk before it is, so
// that an agent that was killed leaves nothing frozen that the next one does not know of. Kills are carried out here, too.
//
// freezer_group.go does it to one control group.

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/internal/atomicfile"
)

const (
	frozenMode = 0o600
	// maxFrozenBytes bounds what is read back.
	maxFrozenBytes = 4 << 20
	// leftAlone is how long a container that was asked to end is given for it before it can be frozen again.
	leftAlone = time.Minute
)

// freezerConfig is what the freezer is made with.
type freezerConfig struct {
	StatePath string // of its record
	Root      string // of proc and sys
	Adopt     bool   // what an agent before this one froze stays so; else it is thawed
	Log       *slog.Logger
	Now       func() time.Time
}

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
	// Pending are signals that its processes had pending before they were stopped.
	Pending map[int]uint64 `json:"pending,omitempty"`
}

// frozenRecord is the file. Spared are containers that somebody thawed by command, with where they are.
type frozenRecord struct {
	Frozen []frozenContainer      `json:"frozen"`
	Spared map[string]freezeGroup `json:"spared,omitempty"`
}

// frozenView is what is told of a frozen container.
type frozenView struct {
	Container            string // its ID
	Allocations          []string
	Namespace, Pod, Name string
	Since                time.Time
	Why                  string
}

// freezer keeps who is frozen. It is safe for concurrent use. A nil one freezes nobody.
type freezer struct {
	config freezerConfig
	log    *slog.Logger

	mu     sync.Mutex
	record frozenRecord
	alone  map[string]time.Time // until when a container that was asked to end is left alone
	said   map[string]string    // the last fault with a container
}

// openFreezer reads the record, and freezes again or thaws what is on it. A record that cannot be read is an error: somebody
// may be frozen, and nobody would know.
func openFreezer(config freezerConfig) (*freezer, error) {
	f := &freezer{config: config, log: config.Log.With("component", "freezer"), alone: map[string]time.Time{}, said: map[string]string{}}
	record, err := readFrozen(config.StatePath)
	if err != nil {
		return nil, err
	}
	f.record = record
	if f.record.Spared == nil {
		f.record.Spared = map[string]freezeGroup{}
	}
	left := slices.Clone(f.record.Frozen)
	for _, container := range left {
		if !config.Adopt {
			f.release(container.ID, "the agent is not to freeze anybody")
			continue
		}
		if err := container.Group.freeze(config.Root); err != nil {
			f.release(container.ID, "it could not be frozen again: "+err.Error())
			continue
		}
		f.log.Warn("container stays frozen", container.attributes()...)
	}
	if len(left) > 0 {
		return f, f.write()
	}
	return f, nil
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
	text, err := io.ReadAll(io.LimitReader(file, maxFrozenBytes))
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

// write puts the record on disk.
func (f *freezer) write() error {
	text, err := json.MarshalIndent(f.record, "", "  ")
	if err != nil {
		return fmt.Errorf("write who is frozen: %w", err)
	}
	if err := atomicfile.WriteFile(f.config.StatePath, append(text, '\n'), frozenMode); err != nil {
		return fmt.Errorf("write who is frozen: %w", err)
	}
	return nil
}

// Apply carries orders out. What is done already is not done again. A fault is logged once, and tried again at the next
// order.
func (f *freezer) Apply(orders []decide.WitnessOrder) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, order := range orders {
		var err error
		switch order.Action {
		case decide.WitnessFreeze:
			err = f.freeze(order)
		case decide.WitnessKill:
			err = f.kill(order)
		case decide.WitnessReport:
		}
		f.tell(order, err)
	}
}

// tell logs the fault of an order, unless it was the same before.
func (f *freezer) tell(order decide.WitnessOrder, err error) {
	id := order.Container.ID
	if err == nil {
		delete(f.said, id)
		return
	}
	if f.said[id] != err.Error() {
		f.said[id] = err.Error()
		f.log.Error("could not act on a container", "action", string(order.Action), "container", id, "namespace", order.Finding.Namespace,
			"pod", order.Finding.Pod, "error", err)
	}
}

func (f *freezer) at(id string) int {
	return slices.IndexFunc(f.record.Frozen, func(c frozenContainer) bool { return c.ID == id })
}

// isLeftAlone says whether a container is not to be touched.
func (f *freezer) isLeftAlone(id string) bool {
	_, spared := f.record.Spared[id]
	return spared || f.config.Now().Before(f.alone[id])
}

func (f *freezer) freeze(order decide.WitnessOrder) error {
	id := order.Container.ID
	if f.at(id) >= 0 || f.isLeftAlone(id) {
		return nil
	}
	group, err := findFreezeGroup(f.config.Root, order.PID, order.StartTime, id)
	if err != nil {
		return err
	}
	container := frozenContainer{ID: id, Group: group, PodUID: order.Finding.PodUID, Namespace: order.Finding.Namespace, Pod: order.Finding.Pod,
		Name: order.Finding.ContainerName, Since: f.config.Now(), Why: string(order.Finding.Kind) + ": " + order.Finding.Detail,
		Pending: group.pending(f.config.Root)}
	if order.Finding.Key != "" {
		container.Allocations = []string{order.Finding.Key}
	}
	f.record.Frozen = append(f.record.Frozen, container)
	if err := f.write(); err != nil {
		f.record.Frozen = f.record.Frozen[:len(f.record.Frozen)-1]
		return err // nobody would know of it after a crash
	}
	if err := group.freeze(f.config.Root); err != nil {
		f.record.Frozen = f.record.Frozen[:len(f.record.Frozen)-1]
		return errors.Join(err, group.thaw(f.config.Root), f.write())
	}
	f.log.Warn("container is frozen", container.attributes()...)
	return nil
}

func (f *freezer) kill(order decide.WitnessOrder) error {
	id := order.Container.ID
	if f.isLeftAlone(id) {
		return nil
	}
	group, err := findGroup(f.config.Root, order.PID, order.StartTime, id)
	if err != nil {
		return err
	}
	killed, err := group.kill(f.config.Root, id)
	if killed > 0 {
		f.log.Warn("container is killed", "container", id, "namespace", order.Finding.Namespace, "pod", order.Finding.Pod, "processes", killed,
			"reason", string(order.Finding.Kind)+": "+order.Finding.Detail)
	}
	return err
}

// release thaws a container and forgets it; the record is not written yet.
func (f *freezer) release(id, why string) {
	at := f.at(id)
	if at < 0 {
		return
	}
	container := f.record.Frozen[at]
	if err := container.Group.thaw(f.config.Root); err != nil {
		if f.said[id] != err.Error() {
			f.said[id] = err.Error()
			f.log.Error("container could not be thawed", append(container.attributes(), "error", err)...)
		}
		return // it is tried again
	}
	delete(f.said, id)
	f.record.Frozen = slices.Delete(f.record.Frozen, at, at+1)
	f.log.Info("container is thawed", append(container.attributes(), "because", why)...)
}

// Tend thaws those whose time has come. pods says which pods the kubelet keeps, by UID; it is asked only while somebody is
// frozen.
func (f *freezer) Tend(pods func() (map[string]bool, error)) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.forget()
	if len(f.record.Frozen) > 0 {
		kept, err := pods()
		for _, container := range slices.Clone(f.record.Frozen) {
			why := container.over(f.config.Root)
			if why == "" && err == nil && kept != nil && container.PodUID != "" && !kept[container.PodUID] {
				why = "its pod is gone"
			}
			if why != "" {
				f.alone[container.ID] = f.config.Now().Add(leftAlone)
				f.release(container.ID, why)
				changed = true
			}
		}
	}
	if changed {
		if err := f.write(); err != nil {
			f.log.Error("who is frozen could not be written", "error", err)
		}
	}
}

// forget drops what is known of containers that are gone.
func (f *freezer) forget() (changed bool) {
	for id, group := range f.record.Spared {
		if !group.exists(f.config.Root) {
			delete(f.record.Spared, id)
			changed = true
		}
	}
	now := f.config.Now()
	for id, until := range f.alone {
		if now.After(until) {
			delete(f.alone, id)
		}
	}
	return changed
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
	for pid, pending := range c.Group.pending(root) {
		if isAskedToEnd(pending &^ c.Pending[pid]) {
			return fmt.Sprintf("process %d was asked to end", pid)
		}
	}
	return ""
}

// Thaw lets a container go on by command, and spares it as long as it lives. which is its ID, its beginning, its pod's UID, a
// pod as NAMESPACE/NAME, or an allocation; "": all. It returns the IDs of those that were thawed; none is no error.
func (f *freezer) Thaw(which string) (thawed []string, err error) {
	if f == nil {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, container := range slices.Clone(f.record.Frozen) {
		if !container.isNamed(which) {
			continue
		}
		f.release(container.ID, "by command")
		if f.at(container.ID) >= 0 {
			err = errors.Join(err, fmt.Errorf("thaw container %s: %s", container.ID, f.said[container.ID]))
			continue
		}
		f.record.Spared[container.ID] = container.Group
		thawed = append(thawed, container.ID)
	}
	if len(thawed) > 0 {
		err = errors.Join(err, f.write())
	}
	return thawed, err
}

// shortestPrefix is how much of a container's ID names it.
const shortestPrefix = 12

func (c frozenContainer) isNamed(which string) bool {
	return which == "" || which == c.ID || which == c.PodUID || which == c.Namespace+"/"+c.Pod || slices.Contains(c.Allocations, which) ||
		len(which) >= shortestPrefix && strings.HasPrefix(c.ID, which)
}

// View lists who is frozen, the longest first.
func (f *freezer) View() []frozenView {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	views := make([]frozenView, 0, len(f.record.Frozen))
	for _, c := range f.record.Frozen {
		views = append(views, frozenView{Container: c.ID, Allocations: slices.Clone(c.Allocations), Namespace: c.Namespace, Pod: c.Pod, Name: c.Name,
			Since: c.Since, Why: c.Why})
	}
	slices.SortStableFunc(views, func(a, b frozenView) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Container, b.Container))
	})
	return views
}

// Close thaws everybody: without an agent nobody would when the kubelet wants them gone. It may be called again.
func (f *freezer) Close(context.Context) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.record.Frozen) == 0 {
		return nil
	}
	for _, container := range slices.Clone(f.record.Frozen) {
		f.release(container.ID, "the agent stops")
	}
	err := f.write()
	if left := len(f.record.Frozen); left > 0 {
		err = errors.Join(err, fmt.Errorf("%d containers stay frozen; %s lists them", left, f.config.StatePath))
	}
	return err
}

func (c frozenContainer) attributes() []any {
	return []any{"container", c.ID, "namespace", c.Namespace, "pod", c.Pod, "pod_uid", c.PodUID, "reason", c.Why}
}
