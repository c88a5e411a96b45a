// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Pages as the plugin needs them.

package plugin

import "github.com/vgpud/vgpud/plugin/ledger"

// Pages makes, restores and removes the two pages of an allocation in <record.PagesDir>/<record.Key>. Each call is one
// step: no other caller of the same Pages sees or changes what it has half done. The agent adapts package limiter.
type Pages interface {
	// Ready reports why pages of new allocations cannot be made, having made their directory if it was gone.
	Ready() error
	// Create makes both pages, born with the limits of the grants. fs.ErrExist (wrapped) when they are there.
	Create(record ledger.Record) error
	// Restore makes both pages anew when one is gone, or is the empty directory that a container runtime makes of a
	// missing source: their file system is usually a tmpfs, and a container that starts again after a reboot gets the
	// paths of its old response. Pages that are there in any other form are left as they are.
	Restore(record ledger.Record) error
	// RaiseEpoch tells the library that every process it knew of this allocation is gone.
	RaiseEpoch(record ledger.Record) error
	// Remove removes the pages; it is no error when they are not there.
	Remove(record ledger.Record) error
}
