// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// thaw.go lets containers go on by command.

package freezer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Named says which frozen containers are meant.
type Named struct {
	Container  string // ID, or the only one that begins so
	Allocation string // key
	All        bool
}

// Thaw lets containers go on by command, and spares them as long as they live. It returns the IDs of those that were thawed;
// none is no error, but a beginning that several have is.
func (f *Freezer) Thaw(request Named) (thawed []string, err error) {
	if f == nil {
		return nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	chosen, err := f.named(request)
	if err != nil {
		return nil, err
	}
	for _, container := range chosen {
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

// named are the frozen containers that a request means: all, those that hold an allocation, or the one whose ID begins so.
func (f *Freezer) named(request Named) ([]frozenContainer, error) {
	var chosen []frozenContainer
	for _, container := range f.record.Frozen {
		switch {
		case container.ID == request.Container:
			return []frozenContainer{container}, nil
		case request.All, request.Allocation != "" && slices.Contains(container.Allocations, request.Allocation),
			request.Container != "" && strings.HasPrefix(container.ID, request.Container):
			chosen = append(chosen, container)
		}
	}
	if request.Container == "" || len(chosen) < 2 {
		return chosen, nil
	}
	ids := make([]string, 0, len(chosen))
	for _, container := range chosen {
		ids = append(ids, container.ID)
	}
	return nil, fmt.Errorf("%q is the beginning of several frozen containers, give more of one: %s", request.Container, strings.Join(ids, ", "))
}
