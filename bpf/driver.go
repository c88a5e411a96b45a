// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Which files are the driver's library, and which of their functions can be probed where.

package bpf

import (
	"fmt"
	"path"
	"strings"
)

// placed is a function of one library with the place of its probe in the file.
type placed struct {
	function
	offset   uint64
	emulated bool
	file     uint8 // number of the library among those that are probed
}

func (p placed) cookie() uint64 { return p.function.cookie() | uint64(p.file)<<24 }

// driver is a library that is to be probed.
type driver struct {
	functions []placed
	lacking   []string // vital functions that it does not export
}

// isDriver says whether a library is the CUDA driver's. Names alone do not tell: a copy may have another one, and
// libraries that stand between a program and the driver export some of the same functions. A copy keeps the name that is
// written into it (its soname), or at least the debugger's interface, which nothing else has.
func isDriver(im *image, name string) bool {
	if namedDriver(name) || namedDriver(im.soname) {
		return true
	}
	_, debugger := im.exported("cudbgGetAPI")
	_, initialises := im.exported("cuInit")
	return debugger && initialises
}

func namedDriver(name string) bool { return strings.HasPrefix(path.Base(name), "libcuda.so") }

// place finds the probed functions of a library. An error says why none of them can be seen.
func place(im *image) (driver, error) {
	var d driver
	found := map[string]bool{}
	for _, f := range functions {
		s, ok := im.exported(f.name)
		if !ok {
			continue
		}
		found[f.name] = true
		at, emulated := probeOffset(s.code, im.machine)
		d.functions = append(d.functions, placed{function: f, offset: s.offset + at, emulated: emulated})
	}
	for _, name := range vital {
		if !found[name] {
			d.lacking = append(d.lacking, name)
		}
	}
	if len(d.functions) == 0 {
		return driver{}, fmt.Errorf("it exports none of the %d functions that are probed", len(functions))
	}
	return d, nil
}

// distinct drops functions whose code is another one's too, as one call would count for each. The first stands for all.
func distinct(functions []placed) []placed {
	seen := map[uint64]bool{}
	var kept []placed
	for _, f := range functions {
		if !seen[f.offset] {
			seen[f.offset] = true
			kept = append(kept, f)
		}
	}
	return kept
}
