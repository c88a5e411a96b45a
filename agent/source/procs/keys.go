// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/vgpud/vgpud/agent/source"
)

// Keyring tells which allocations processes hold, by the limits pages that are mounted where they live: the kernel says in
// /proc/PID/mountinfo of which file system a mount is, and which file of it. Nobody can make a mount of a file that he
// was not given, whatever names he gives to mounts. It is for one goroutine at a time.
type Keyring struct {
	table *Table
	path  func(key string) string // directory of an allocation's pages
	round uint64                  // calls of Keys
	known map[int]holder
}

var _ source.Keys = (*Keyring)(nil)

// holder is a process that was looked up.
type holder struct {
	start uint64 // clock ticks after boot
	keys  []string
	asked uint64 // in which round last
}

// Bounds of what is read and kept.
const (
	maxOwnMountBytes  = 8 << 20 // of our mounts, where those of all containers are,
	maxMountinfoBytes = 1 << 20 // and of others': a container may make many; its own come first
	maxMountLine      = 64 << 10
	remembered        = 50 // rounds that a process is remembered for after it was last asked for
)

// pageMount finds the allocation in the path of a mounted file within its file system. A file that was removed since
// still says whose it was. "limits" is limiter.LimitsFile; sources know the pages only by their paths.
var pageMount = regexp.MustCompile(`^(.*)/([0-9A-Za-z_-]{1,39})/limits(//deleted)?$`)

// NewKeyring returns a keyring for the processes of root/proc; path tells in which directory an allocation's pages are, by
// the names that we see them under.
func NewKeyring(root string, path func(key string) string) *Keyring {
	return &Keyring{table: New(root), path: path, known: map[int]holder{}}
}

// Close gives back what is kept open.
func (k *Keyring) Close() { k.table.Close() }

// Keys implements source.Keys.
func (k *Keyring) Keys(pids []int) (map[int][]string, error) {
	k.round++
	own := &directories{table: k.table}
	keys := make(map[int][]string, len(pids))
	var places []place
	for _, pid := range pids {
		if was, known := k.known[pid]; known {
			places = append(places, place{pid, was.start})
		}
	}
	living := k.table.living(places) // one system call, where a start time takes three for each
	for _, pid := range pids {
		if was, known := k.known[pid]; known && living[place{pid, was.start}] {
			was.asked = k.round
			k.known[pid], keys[pid] = was, was.keys
			continue
		}
		found, known, err := k.holder(pid, own)
		if err != nil {
			return nil, err
		}
		if known {
			found.asked = k.round
			k.known[pid] = found
			keys[pid] = found.keys
		}
	}
	for pid, was := range k.known {
		if k.round-was.asked > remembered {
			delete(k.known, pid)
		}
	}
	return keys, nil
}

// holder looks a process up, unless that was done since it started. One that has ended is as it was; nothing is known of
// one that ended before it was ever looked at, or that cannot be looked at. An error means that we cannot see our own mounts.
func (k *Keyring) holder(pid int, own *directories) (found holder, known bool, err error) {
	start, ended := k.table.startTime(pid)
	was, known := k.known[pid]
	if ended != nil || known && was.start == start {
		return was, known, nil
	}
	if err := own.read(); err != nil {
		return holder{}, false, err
	}
	keys, err := k.lookUp(pid, own)
	return holder{start: start, keys: keys}, err == nil, nil
}

// lookUp finds the pages that are mounted where a process lives.
func (k *Keyring) lookUp(pid int, own *directories) ([]string, error) {
	mounts, err := k.table.mounts(strconv.Itoa(pid))
	if err != nil {
		return nil, err
	}
	return pagesIn(mounts, own, k.path, pageMount), nil
}

// pagesIn finds the allocations of which a page is mounted, sorted. pattern finds a page's directory and key in a path.
func pagesIn(mounts []mount, own *directories, path func(key string) string, pattern *regexp.Regexp) []string {
	var keys []string
	for _, there := range mounts {
		match := pattern.FindStringSubmatch(there.root)
		if match == nil || slices.Contains(keys, match[2]) {
			continue
		}
		if own.locate(filepath.Dir(path(match[2]))) == (location{there.device, match[1]}) {
			keys = append(keys, match[2])
		}
	}
	slices.Sort(keys)
	return keys
}

// mount is one line of a mountinfo: a part of a file system, and where it is to be seen.
type mount struct {
	device string // major:minor of the file system
	root   string // path within it
	point  string // where that is, as the process sees it
}

// mounts reads /proc/name/mountinfo, as far as it is bounded.
func (t *Table) mounts(name string) ([]mount, error) {
	lines, err := t.mountLines(name)
	mounts := make([]mount, 0, len(lines))
	for _, line := range lines {
		mounts = append(mounts, line.mount)
	}
	return mounts, err
}

// mountLines is the same, with more of each line.
func (t *Table) mountLines(name string) ([]mountLine, error) {
	file, err := os.Open(filepath.Join(t.root, "proc", name, "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := []mountLine{}
	most := int64(maxMountinfoBytes)
	if name == "self" {
		most = maxOwnMountBytes
	}
	scanner := bufio.NewScanner(io.LimitReader(file, most))
	scanner.Buffer(nil, maxMountLine)
	for scanner.Scan() {
		fields := strings.SplitN(scanner.Text(), " ", 6) // number, parent, device, root, point, more
		if len(fields) != 6 {
			continue
		}
		line := mountLine{mount: mount{device: fields[2], root: unescape(fields[3]), point: unescape(fields[4])}}
		line.id, _ = strconv.ParseUint(fields[0], 10, 64)
		if _, after, found := strings.Cut(fields[5], " - "); found {
			line.kind, _, _ = strings.Cut(after, " ")
		}
		lines = append(lines, line)
	}
	if err := scanner.Err(); err != nil && !errors.Is(err, bufio.ErrTooLong) {
		return nil, err
	}
	return lines, nil
}

// unescape undoes what the kernel does to blanks and backslashes in paths: \ooo.
func unescape(path string) string {
	if !strings.Contains(path, `\`) {
		return path
	}
	var plain strings.Builder
	for len(path) > 0 {
		if path[0] == '\\' && len(path) >= 4 {
			if code, err := strconv.ParseUint(path[1:4], 8, 8); err == nil {
				plain.WriteByte(byte(code))
				path = path[4:]
				continue
			}
		}
		plain.WriteByte(path[0])
		path = path[1:]
	}
	return plain.String()
}

// location is a directory as its file system knows it, whatever it is mounted as.
type location struct{ device, root string }

// directories finds out where directories are that we see, for one round.
type directories struct {
	table  *Table
	mounts []mount             // ours; nil: not read yet
	found  map[string]location // not nil once they are read
}

// read reads our mounts, at the first call.
func (d *directories) read() error {
	if d.found != nil {
		return nil
	}
	mounts, err := d.table.mounts("self")
	if err != nil {
		return fmt.Errorf("find own mounts: %w", err)
	}
	d.mounts, d.found = mounts, map[string]location{}
	return nil
}

// locate says in which file system a directory is, and where in it; nowhere, the zero value, if that cannot be told.
func (d *directories) locate(directory string) location {
	at, known := d.found[directory]
	if known {
		return at
	}
	resolved, err := filepath.EvalSymlinks(directory)
	if err != nil {
		resolved = filepath.Clean(directory) // it may have been removed; those who have it mounted have it still
	}
	best := mount{}
	for _, m := range d.mounts { // of mounts on the same point the last one is on top
		if below(resolved, m.point) && len(m.point) >= len(best.point) {
			best = m
		}
	}
	if best.point != "" {
		root := filepath.Join(best.root, strings.TrimPrefix(resolved, best.point))
		at = location{best.device, strings.TrimSuffix(root, "/")}
	}
	d.found[directory] = at
	return at
}

// below says whether a path is a directory or in it.
func below(path, directory string) bool {
	return path == directory || strings.HasPrefix(path, strings.TrimSuffix(directory, "/")+"/")
}
