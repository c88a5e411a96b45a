// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// residents_tell.go makes what is told of the processes that residents.go has found.

package procs

import (
	"slices"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/source"
)

// tell returns what is known of the processes that matter.
func (r *Residents) tell(matter []int, own *directories, now time.Duration) []source.Residence {
	main := r.mainSpaces(matter)
	places := make([]place, 0, len(matter))
	for _, pid := range matter {
		if process := r.known[pid]; process != nil {
			places = append(places, place{pid, process.start})
		}
	}
	living := r.table.living(places)
	residences := make([]source.Residence, 0, len(matter))
	for _, pid := range matter {
		process := r.known[pid]
		if process == nil || !living[place{pid, process.start}] {
			delete(r.known, pid)
			continue
		}
		if process.commanded == 0 || now-process.first < settlesIn || now-process.commanded >= commandEvery {
			process.command, process.commanded = r.table.command(pid), max(1, now)
		}
		s := r.spaces[process.space]
		// What a sandbox in a container sees matters if it uses a GPU there.
		matters := main[process.container.ID] == process.space || process.named || process.devices
		if matters {
			r.check(pid, process, s, own, now)
		}
		residence := source.Residence{PID: pid, StartTime: process.start, Command: process.command, Container: process.container,
			Keys: s.keys, Devices: process.devices, Library: process.library, ID: process.id, OtherTime: process.otherTime}
		if matters {
			residence.Replaced = s.replaced
		}
		residence.Container.Namespace, residence.Container.Pod = r.names.of(process.container.PodUID, now)
		residences = append(residences, residence)
	}
	return residences
}

// mainSpaces are the mount namespaces of containers' oldest processes.
func (r *Residents) mainSpaces(matter []int) map[string]spaceID {
	oldest := map[string]*resident{}
	main := map[string]spaceID{}
	for _, pid := range matter {
		process := r.known[pid]
		if process == nil || process.container.ID == "" {
			continue
		}
		if first := oldest[process.container.ID]; first == nil || process.start < first.start {
			oldest[process.container.ID], main[process.container.ID] = process, process.space
		}
	}
	return main
}

// check looks whether a container's process still sees our files, every few seconds for each namespace, and in every look where
// it does not: what is said twice is to be seen twice.
func (r *Residents) check(pid int, process *resident, s *space, own *directories, now time.Duration) {
	if process.container.ID == "" || process.chrooted || len(s.keys) == 0 || s.ever && now-s.checked < filesEvery && s.replaced == nil {
		return
	}
	if !r.mayCheck(process.container.ID) {
		return
	}
	var files []File
	for _, key := range s.keys {
		files = append(files, r.files(key)...)
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.ContainerPath, b.ContainerPath) })
	if now-s.first < movesInBy && r.table.isOutside(pid, files, own) {
		s.replaced = nil
		return
	}
	s.checked, s.ever = now, true
	s.replaced = r.table.replaced(pid, onePerPath(files), own)
}

// onePerPath leaves out files over which another allocation of the same container has mounted its own: it sees one of them.
func onePerPath(files []File) []File {
	count := map[string]int{}
	for _, file := range files {
		count[file.ContainerPath]++
	}
	differ := func(file File) bool {
		return count[file.ContainerPath] > 1 && slices.ContainsFunc(files, func(other File) bool {
			return other.ContainerPath == file.ContainerPath && other.HostPath != file.HostPath
		})
	}
	return slices.Compact(slices.DeleteFunc(files, differ))
}

// command is the first word of a process' command line, as far as it is bounded.
func (t *Table) command(pid int) string {
	var room [maxCommand]byte
	text, err := readSmall(t.path(pid, "cmdline"), room[:])
	if err != nil {
		return ""
	}
	word, _, _ := strings.Cut(string(text), "\x00")
	return word
}
