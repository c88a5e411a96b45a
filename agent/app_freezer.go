// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_freezer.go opens the freezer: the look from outside gives its orders and tends it, the control socket thaws.

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/freezer"
	"github.com/vgpud/vgpud/agent/notes"
	"github.com/vgpud/vgpud/agent/store"
)

// openFreezer opens the freezer, whatever is asked for now: what an agent before this one left frozen is thawed, unless
// freezing is still asked for. An agent whose record of that cannot be read works on, and freezes nobody.
func (a *app) openFreezer() {
	opened, err := freezer.Open(freezer.Config{StatePath: filepath.Join(a.config.StateDir, store.FrozenFile), Root: a.parts.procRoot,
		Adopt: a.config.Witness == string(witness.Freeze), Log: a.baseLog, Now: a.parts.now})
	a.noted.Change(a.log, notes.Subject{Stage: notes.StageFreezer}, err)
	if err != nil {
		return
	}
	a.freezer = opened
	a.onClose(a.freezer.Close)
}

// thaw thaws containers on command.
func (a *app) thaw(_ context.Context, request control.ThawRequest) (control.ThawReply, error) {
	if err := request.Validate(); err != nil {
		return control.ThawReply{}, err
	}
	thawed, err := a.freezer.Thaw(freezer.Named(request))
	if err == nil && len(thawed) == 0 {
		err = nothingThawed(request)
	}
	return control.ThawReply{Containers: thawed}, err
}

// nothingThawed says of which name there is nothing to thaw.
func nothingThawed(request control.ThawRequest) error {
	switch {
	case request.Container != "":
		return fmt.Errorf("container %q is %w: vgpud top --once lists those that are", request.Container, control.ErrNotFrozen)
	case request.Allocation != "":
		return fmt.Errorf("whoever holds allocation %q is %w: vgpud top --once lists those who are", request.Allocation, control.ErrNotFrozen)
	}
	return fmt.Errorf("no container is there to thaw: %w", control.ErrNotFrozen)
}

// podsKept are the pods that the kubelet keeps, by UID; nil where nobody knows.
func (a *app) podsKept(ctx context.Context) (map[string]bool, error) {
	if a.sources.Kubelet == nil {
		return nil, nil
	}
	return a.sources.Kubelet.Pods(ctx)
}
