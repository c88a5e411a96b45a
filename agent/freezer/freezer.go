// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package freezer stops containers on the witness' orders, and lets them go on: when the kubelet wants them gone, for a
// stopped process cannot end; when their pod is gone; by command; and when the agent stops. What is frozen is on disk before
// it is, so that an agent that was killed leaves nothing frozen that the next one does not know of. Kills are carried out
// here, too.
//
// group.go does it to one control group, record.go is what is on disk, thaw.go what somebody asks for.
package freezer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vgpud/vgpud/agent/decide/witness"
)

const (
	// leftAlone is how long a container that was asked to end is given for it before it can be frozen again.
	leftAlone = time.Minute
	// applyFor bounds one round of orders: those that it does not come to are given again with the next look.
	applyFor = 4 * time.Second
)

// Config is what the freezer is made with.
type Config struct {
	StatePath string // of its record
	Root      string // of proc and sys
	Adopt     bool   // what an agent before this one froze stays so; else it is thawed
	Log       *slog.Logger
	Now       func() time.Time
}

// Frozen is what is told of a frozen container.
type Frozen struct {
	Container            string // its ID
	Allocations          []string
	Namespace, Pod, Name string
	Since                time.Time
	Why                  string
}

// letGo is a container that was let go on because it was asked to end: left alone until then. One that has not ended by then is
// remembered as long as it lives.
type letGo struct {
	until time.Time
	group freezeGroup
}

// Freezer keeps who is frozen. It is safe for concurrent use. A nil one freezes nobody.
type Freezer struct {
	config Config
	log    *slog.Logger

	mu     sync.Mutex
	record frozenRecord
	asked  map[string]letGo  // containers that were let go on to end
	said   map[string]string // the last fault with a container that is ordered or frozen
	first  string            // the container that the next round begins with; "": any

	frozen atomic.Pointer[[]Frozen] // the record for others, who never wait; nil: nobody
}

// Open reads the record, and freezes again or thaws what is on it. A record that cannot be read is an error: somebody
// may be frozen, and nobody would know.
func Open(config Config) (*Freezer, error) {
	f := &Freezer{config: config, log: config.Log.With("component", "freezer"), asked: map[string]letGo{}, said: map[string]string{}}
	record, err := readFrozen(config.StatePath)
	if err != nil {
		return nil, err
	}
	f.record = record
	if f.record.Spared == nil {
		f.record.Spared = map[string]freezeGroup{}
	}
	f.publish()
	left := slices.Clone(f.record.Frozen)
	for _, container := range left {
		if !config.Adopt {
			f.release(container.ID, "the agent is not to freeze anybody")
			continue
		}
		if err := container.Group.freeze(config.Root, time.Now().Add(freezeWait)); err != nil {
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

// Apply carries orders out, and returns what has been done to whom, by container ID: who is frozen now, and who was killed by
// this call. What is done already is not done again. A fault is logged once, and tried again at the next order. It takes
// applyFor and one order more at most.
func (f *Freezer) Apply(orders []witness.Order) map[string]witness.Action {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsay(orders)
	done := map[string]witness.Action{}
	deadline := time.Now().Add(applyFor)
	for _, order := range f.turn(orders) {
		if !time.Now().Before(deadline) {
			f.first = order.Container.ID
			break
		}
		killed, err := false, error(nil)
		switch order.Action {
		case witness.Freeze:
			err = f.freeze(order, deadline)
		case witness.Kill:
			killed, err = f.kill(order)
		case witness.Report:
		}
		if killed && err == nil {
			done[order.Container.ID] = witness.Kill
		}
		f.tell(order, err)
	}
	for _, container := range f.record.Frozen {
		done[container.ID] = witness.Freeze
	}
	return done
}

// turn lets those begin that the last round did not come to.
func (f *Freezer) turn(orders []witness.Order) []witness.Order {
	at := slices.IndexFunc(orders, func(order witness.Order) bool { return order.Container.ID == f.first })
	f.first = ""
	if at < 0 {
		return orders
	}
	return slices.Concat(orders[at:], orders[:at])
}

// unsay forgets faults with containers of which nothing is wanted any more.
func (f *Freezer) unsay(orders []witness.Order) {
	wanted := map[string]bool{}
	for _, order := range orders {
		wanted[order.Container.ID] = true
	}
	maps.DeleteFunc(f.said, func(id, _ string) bool { return !wanted[id] && f.at(id) < 0 })
}

// tell logs the fault of an order, unless it was the same before.
func (f *Freezer) tell(order witness.Order, err error) {
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

func (f *Freezer) at(id string) int {
	return slices.IndexFunc(f.record.Frozen, func(c frozenContainer) bool { return c.ID == id })
}

// isLeftAlone says whether a container is not to be touched.
func (f *Freezer) isLeftAlone(id string) bool {
	_, spared := f.record.Spared[id]
	return spared || f.config.Now().Before(f.asked[id].until)
}

func (f *Freezer) freeze(order witness.Order, until time.Time) error {
	id := order.Container.ID
	if f.at(id) >= 0 || f.isLeftAlone(id) {
		return nil
	}
	group, err := findFreezeGroup(f.config.Root, order.PID, order.StartTime, id)
	if err != nil {
		return err
	}
	container := frozenContainer{ID: id, Group: group, PodUID: order.Finding.PodUID, Namespace: order.Finding.Namespace, Pod: order.Finding.Pod,
		Name: order.Finding.ContainerName, Since: f.config.Now(), Why: string(order.Finding.Kind) + ": " + order.Finding.Detail}
	container.notePending(group.pending(f.config.Root))
	if _, before := f.asked[id]; before { // a container can have clocks send it what asks others to end, again and again
		container.Pending, container.KillOnly = nil, true
	}
	if order.Finding.Key != "" {
		container.Allocations = []string{order.Finding.Key}
	}
	f.record.Frozen = append(f.record.Frozen, container)
	if err := f.write(); err != nil {
		f.record.Frozen = f.record.Frozen[:len(f.record.Frozen)-1]
		return err // nobody would know of it after a crash
	}
	if err := group.freeze(f.config.Root, until); err != nil {
		f.record.Frozen = f.record.Frozen[:len(f.record.Frozen)-1]
		return errors.Join(err, group.thaw(f.config.Root), f.write())
	}
	f.publish()
	f.log.Warn("container is frozen", container.attributes()...)
	return nil
}

// kill says whether a process was ended.
func (f *Freezer) kill(order witness.Order) (bool, error) {
	id := order.Container.ID
	if f.isLeftAlone(id) {
		return false, nil
	}
	group, err := findGroup(f.config.Root, order.PID, order.StartTime, id)
	if err != nil {
		return false, err
	}
	killed, err := group.kill(f.config.Root, id)
	if killed > 0 {
		f.log.Warn("container is killed", "container", id, "namespace", order.Finding.Namespace, "pod", order.Finding.Pod, "processes", killed,
			"reason", string(order.Finding.Kind)+": "+order.Finding.Detail)
	}
	return killed > 0, err
}

// release thaws a container and forgets it; the record is not written yet.
func (f *Freezer) release(id, why string) {
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
	f.publish()
	f.log.Info("container is thawed", append(container.attributes(), "because", why)...)
}

// Tend thaws those whose time has come. pods says which pods the kubelet keeps, by UID; it is asked only while somebody is
// frozen.
func (f *Freezer) Tend(ctx context.Context, pods func(context.Context) (map[string]bool, error)) {
	if f == nil {
		return
	}
	var kept map[string]bool // nil: not known
	if len(f.View()) > 0 {
		if known, err := pods(ctx); err == nil {
			kept = known
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := f.forget()
	for _, container := range slices.Clone(f.record.Frozen) {
		why := container.over(f.config.Root)
		if why == "" && kept != nil && container.PodUID != "" && !kept[container.PodUID] {
			why = "its pod is gone"
		}
		if why != "" {
			f.asked[container.ID] = letGo{f.config.Now().Add(leftAlone), container.Group}
			f.release(container.ID, why)
			changed = true
		}
	}
	if changed {
		if err := f.write(); err != nil {
			f.log.Error("who is frozen could not be written", "error", err)
		}
	}
}

// forget drops what is known of containers that are gone.
func (f *Freezer) forget() (changed bool) {
	for id, group := range f.record.Spared {
		if !group.exists(f.config.Root) {
			delete(f.record.Spared, id)
			changed = true
		}
	}
	maps.DeleteFunc(f.asked, func(_ string, was letGo) bool { return !was.group.exists(f.config.Root) })
	return changed
}

// View lists who is frozen, the longest first. It waits for nobody, and the list is not changed any more.
func (f *Freezer) View() []Frozen {
	if f == nil {
		return nil
	}
	if views := f.frozen.Load(); views != nil {
		return *views
	}
	return nil
}

// publish makes the record known to View.
func (f *Freezer) publish() {
	views := make([]Frozen, 0, len(f.record.Frozen))
	for _, c := range f.record.Frozen {
		views = append(views, Frozen{Container: c.ID, Allocations: slices.Clone(c.Allocations), Namespace: c.Namespace, Pod: c.Pod, Name: c.Name,
			Since: c.Since, Why: c.Why})
	}
	slices.SortStableFunc(views, func(a, b Frozen) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Container, b.Container))
	})
	f.frozen.Store(&views)
}

// Close thaws everybody: without an agent nobody would when the kubelet wants them gone. It may be called again.
func (f *Freezer) Close(context.Context) error {
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
