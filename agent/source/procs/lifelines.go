// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"time"

	"golang.org/x/sys/unix"
)

// maxLifelines bounds the descriptors of processes that are kept; of more processes the start time is read each time.
const maxLifelines = 1 << 10

// lifelines are descriptors of processes. One system call tells which of them have ended, where reading the start time of each
// takes four; and a descriptor is never of another process that got the same pid.
type lifelines map[place]int

// living says which of these processes still run, as startTime has it: a zombie does not, unless it has other threads.
func (t *Table) living(places []place) map[place]bool {
	living := make(map[place]bool, len(places))
	for _, at := range places {
		living[at] = true
	}
	for at, fd := range t.lines {
		if !living[at] { // nobody asks any more
			_ = unix.Close(fd)
			delete(t.lines, at)
		}
	}
	polls, polled := make([]unix.PollFd, 0, len(places)), make([]place, 0, len(places))
	for at := range living {
		fd, open := t.lines[at]
		if !open {
			// Opened before the start time is read: if that is right, the descriptor is of this process or of an older one.
			fd = t.openLine(at)
			start, err := t.startTime(at.pid)
			living[at] = err == nil && start == at.start
			if fd < 0 {
				continue
			}
			if !living[at] {
				_ = unix.Close(fd)
				continue
			}
			t.lines[at] = fd
		}
		polls, polled = append(polls, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}), append(polled, at)
	}
	for {
		_, err := unix.Ppoll(polls, &unix.Timespec{}, nil)
		if err == nil {
			break
		}
		if err != unix.EINTR { // no descriptors of processes here
			for i, at := range polled {
				_ = unix.Close(int(polls[i].Fd))
				delete(t.lines, at)
				start, err := t.startTime(at.pid)
				living[at] = err == nil && start == at.start
			}
			return living
		}
		time.Sleep(time.Millisecond)
	}
	for i, at := range polled {
		if polls[i].Revents != 0 {
			_ = unix.Close(int(polls[i].Fd))
			delete(t.lines, at)
			living[at] = false
		}
	}
	return living
}

// openLine opens a descriptor of a process; negative: that cannot be, or is not worth it.
func (t *Table) openLine(at place) int {
	if t.root != "/" || len(t.lines) >= maxLifelines || at.pid <= 0 {
		return -1 // pids under another root are not ours
	}
	fd, err := unix.PidfdOpen(at.pid, 0)
	if err != nil {
		return -1
	}
	if t.lines == nil {
		t.lines = lifelines{}
	}
	return fd
}

// Close gives back the descriptors that are kept. The table can be used on.
func (t *Table) Close() {
	for at, fd := range t.lines {
		_ = unix.Close(fd)
		delete(t.lines, at)
	}
}
