// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What the kernel says that a process has used.

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// tick is the unit of times in /proc/PID/stat (USER_HZ).
const tick = 10 * time.Millisecond

// usage is what a process has used until a time.
type usage struct {
	at           time.Time
	user, system time.Duration
	switches     uint64
	rss, peak    uint64 // bytes
	threads      int
}

// readUsage reads a process's use, of all its threads, also of those that have ended.
func readUsage(pid int) (usage, error) {
	directory := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(directory, "stat"))
	if err != nil {
		return usage{}, fmt.Errorf("read use of the agent: %w", err)
	}
	u := usage{at: time.Now()}
	if err := u.readStat(stat); err != nil {
		return usage{}, err
	}
	status, err := os.ReadFile(filepath.Join(directory, "status"))
	if err != nil {
		return usage{}, fmt.Errorf("read use of the agent: %w", err)
	}
	if err := u.readStatus(status); err != nil {
		return usage{}, err
	}
	tasks, err := filepath.Glob(filepath.Join(directory, "task", "*", "status"))
	if err != nil {
		return usage{}, err
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // a thread that has ended
		}
		for _, name := range []string{"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"} {
			count, err := statusField(text, name)
			if err != nil {
				return usage{}, err
			}
			u.switches += count
		}
	}
	return u, nil
}

// readStat takes the times out of /proc/PID/stat; see proc_pid_stat(5). The name in it may hold anything.
func (u *usage) readStat(text []byte) error {
	const user, system = 14, 15 // fields, counted from 1; what follows the name begins with field 3
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	if len(fields) < system-2 {
		return fmt.Errorf("read use of the agent: %d fields in stat", len(fields))
	}
	for _, field := range []struct {
		number int
		to     *time.Duration
	}{{user, &u.user}, {system, &u.system}} {
		ticks, err := strconv.ParseInt(string(fields[field.number-3]), 10, 64)
		if err != nil {
			return fmt.Errorf("read use of the agent: %w", err)
		}
		*field.to = time.Duration(ticks) * tick
	}
	return nil
}

// readStatus takes memory and threads out of /proc/PID/status.
func (u *usage) readStatus(text []byte) error {
	rss, err := statusField(text, "VmRSS")
	if err != nil {
		return err
	}
	peak, err := statusField(text, "VmHWM")
	if err != nil {
		return err
	}
	threads, err := statusField(text, "Threads")
	if err != nil {
		return err
	}
	u.rss, u.peak, u.threads = rss<<10, peak<<10, int(threads)
	return nil
}

// statusField is a number of /proc/PID/status, in its own unit.
func statusField(text []byte, name string) (uint64, error) {
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		if fields := bytes.Fields(value); string(key) == name && len(fields) > 0 {
			return strconv.ParseUint(string(fields[0]), 10, 64)
		}
	}
	return 0, fmt.Errorf("read use of the agent: no %s in status", name)
}
