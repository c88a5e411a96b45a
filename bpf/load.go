// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Loading: which programs, in which of the kernel's ways to attach them.

package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/containerd/cgroups/v3"
)

// Mechanism is a way to attach probes to a library.
type Mechanism string

// The mechanisms, best first.
const (
	MechanismSession Mechanism = "uprobe.session" // kernel 6.13: entry and return in one link
	MechanismMulti   Mechanism = "uprobe.multi"   // kernel 6.6: a link of entries, one of returns
	MechanismSingle  Mechanism = "uprobe"         // kernel 5.15: a perf event each; few functions alone
)

// Numbering is what the numbers of control groups are.
type Numbering string

// The numberings.
const (
	NumberingUnified Numbering = "unified" // of the process's directory of version 2
	NumberingLegacy  Numbering = "legacy"  // of its directory in the memory controller's hierarchy of version 1
)

// numbering looks which one fits the machine: where version 2 is not the only one, containers live in the other.
func numbering() Numbering {
	if cgroups.Mode() == cgroups.Unified {
		return NumberingUnified
	}
	return NumberingLegacy
}

// loaded are programs in the kernel and their maps.
type loaded struct {
	spec       *ebpf.CollectionSpec
	numbering  Numbering
	mechanism  Mechanism
	collection *ebpf.Collection
	extra      map[string]*ebpf.Collection // of programs that may be absent, by the name in errors
	types      *btf.Cache
}

// load loads what counts calls, by the best mechanism that the kernel has (or only the one given).
func load(only Mechanism, n Numbering) (*loaded, error) {
	spec, err := loadProbes()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	l := &loaded{spec: spec, numbering: n, extra: map[string]*ebpf.Collection{}, types: btf.NewCache()}
	var errs []error
	for _, m := range []Mechanism{MechanismSession, MechanismMulti, MechanismSingle} {
		if only != "" && m != only {
			continue
		}
		l.mechanism = m
		if l.collection, err = l.open(nil, l.programs()...); err == nil {
			if err = l.tryAttach(); err == nil {
				return l, nil
			}
			l.close()
		}
		errs = append(errs, fmt.Errorf("%s: %w", m, err))
	}
	return nil, errors.Join(errs...)
}

// suffixed is a program's name for the numbering.
func (l *loaded) suffixed(name string) string { return name + "_" + string(l.numbering) }

// programs are those of the mechanism.
func (l *loaded) programs() []string {
	if l.mechanism == MechanismSession {
		return []string{l.suffixed("session")}
	}
	return []string{l.suffixed("entry"), l.suffixed("return")}
}

// program returns a loaded one.
func (l *loaded) program(name string) *ebpf.Program { return l.collection.Programs[l.suffixed(name)] }

// open loads some of the programs, with the maps of shared where that is given.
func (l *loaded) open(shared *ebpf.Collection, names ...string) (*ebpf.Collection, error) {
	spec := l.spec.Copy()
	wanted := map[string]*ebpf.ProgramSpec{}
	for _, name := range names {
		program := spec.Programs[name]
		if program == nil {
			return nil, fmt.Errorf("load %s: no such program", name)
		}
		if l.mechanism == MechanismSingle && program.Type == ebpf.Kprobe {
			program.AttachType = ebpf.AttachNone
		}
		wanted[name] = program
	}
	spec.Programs = wanted
	options := ebpf.CollectionOptions{Cache: l.types}
	if shared != nil {
		options.MapReplacements = shared.Maps
	}
	collection, err := ebpf.NewCollectionWithOptions(spec, options)
	if err != nil {
		return nil, fmt.Errorf("load programs: %w", err)
	}
	return collection, nil
}

// also loads a program that the rest can do without.
func (l *loaded) also(name string) (*ebpf.Program, error) {
	collection, err := l.open(l.collection, l.suffixed(name))
	if err != nil {
		return nil, err
	}
	l.extra[name] = collection
	return collection.Programs[l.suffixed(name)], nil
}

func (l *loaded) close() {
	if l.collection != nil {
		l.collection.Close()
	}
	for _, collection := range l.extra {
		collection.Close()
	}
}

// done lets go of what was needed to load alone: the kernel's type information takes megabytes.
func (l *loaded) done() { l.spec, l.types = nil, nil }
