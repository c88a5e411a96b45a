// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_freezer.go connects the freezer: the look from outside gives its orders and tends it, the control socket thaws.

package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/agent/decide"
)

// openFreezer opens the freezer, whatever is asked for now: what an agent before this one left frozen is thawed, unless
// freezing is still asked for. An agent whose record of that cannot be read works on, and freezes nobody.
func (a *app) openFreezer() {
	opened, err := openFreezer(freezerConfig{StatePath: filepath.Join(a.config.StateDir, frozenFile), Root: a.parts.procRoot,
		Adopt: a.config.Witness == string(decide.WitnessFreeze), Log: a.baseLog, Now: a.parts.now})
	a.noted.change(a.log, subject{stage: stageFreezer}, err)
	if err != nil {
		return
	}
	a.freezer = opened
	a.onClose(a.freezer.Close)
}

// act does what was ordered, and thaws whose time has come.
func (o *outsider) act(findings decide.Findings) {
	o.freezer.Apply(findings.Orders)
	o.freezer.Tend(o.pods)
}

// thaw thaws containers on command.
func (a *app) thaw(_ context.Context, request control.ThawRequest) (control.ThawReply, error) {
	if err := request.Validate(); err != nil {
		return control.ThawReply{}, err
	}
	thawed, err := a.freezer.Thaw(request.Container + request.Allocation) // one of them, or neither: all
	if err == nil && len(thawed) == 0 {
		err = fmt.Errorf("no such container: %w", control.ErrNotFrozen)
	}
	return control.ThawReply{Containers: thawed}, err
}

// podsKept are the pods that the kubelet keeps, by UID.
func (a *app) podsKept() (map[string]bool, error) {
	holders, err := a.sources.Kubelet.Holders(context.Background())
	if err != nil {
		return nil, err
	}
	return holders.Pods, holders.PodsError
}
