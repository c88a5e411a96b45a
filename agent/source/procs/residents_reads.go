// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// residents_reads.go bounds what is read for one container in one look. A container can make thousands of mount namespaces with
// thousands of mounts each, and reading all of them would take minutes, in which nobody else is looked at.

package procs

// Most namespaces of one container in one look
const (
	mostNew      = 6 // whose allocations are looked up for the first time,
	mostKnown    = 2 // or once more,
	mostCheckups = 8 // and whose files are checked
)

// reads counts those of one container.
type reads struct{ first, again, checked int }

// mayReadKeys counts one reading of a namespace's allocations; false: it has to wait for another look.
func (r *Residents) mayReadKeys(container string, s *space) bool {
	done := r.reads[container]
	if s.looked == 0 {
		done.first++
	} else {
		done.again++
	}
	if done.first > mostNew || done.again > mostKnown {
		return false
	}
	r.reads[container] = done
	return true
}

// mayCheck counts one check of a namespace's files.
func (r *Residents) mayCheck(container string) bool {
	done := r.reads[container]
	if done.checked++; done.checked > mostCheckups {
		return false
	}
	r.reads[container] = done
	return true
}
