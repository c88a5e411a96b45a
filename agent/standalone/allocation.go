// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// allocation.go keeps the files of one vgpud exec: <base>/<key>/libvgpu.so and <base>/<key>/alloc/<key>/{limits,
// usage}, in a directory of the user's own. They go when no process of the slice is left (users.go); what a
// killed vgpud exec left goes at a later one. A directory is never taken from a process that uses it: the next program
// that such a process starts would not find the library, and run without a limit.
//
// A directory is made under a temporary name and gets its own only when it is whole and its lock is held. So one under
// its own name whose lock is free has been left, however many instances start and end at the same time.

package standalone

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/atomicfile"
	"github.com/vgpud/vgpud/limiter"
)

const (
	keyPrefix   = "exec-"
	tempPrefix  = "new-"
	lockName    = "lock"
	libraryName = "libvgpu.so"
	// tempAge is how old a directory under a temporary name must be before it counts as left behind. Should its
	// maker live all the same, it makes another one.
	tempAge = time.Minute
	// makeTries is how often that is done.
	makeTries = 3
)

// allocation is the slice that one vgpud exec holds.
type allocation struct {
	key       string
	device    limiter.Device // what is granted, of the one GPU
	directory string         // <base>/<key>
	library   string         // our copy, for LD_PRELOAD
	lock      *os.File       // held while this vgpud exec lives
}

// newAllocation makes the pages and copies the library.
func newAllocation(variables map[string]string, library string, device limiter.Device) (*allocation, error) {
	defer unix.Umask(unix.Umask(0o022)) // the user's may forbid even us; the command gets it back
	base, err := findBase(variables)
	if err != nil {
		return nil, err
	}
	removeStale(base)
	for range makeTries {
		var held *allocation
		if held, err = makeAllocation(base, library, device); err == nil {
			return held, nil
		}
	}
	return nil, fmt.Errorf("make slice: %w", err)
}

// makeAllocation makes one below base. On an error nothing of it is left.
func makeAllocation(base, library string, device limiter.Device) (*allocation, error) {
	nonce := make([]byte, 12)
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("mint allocation key: %w", err)
	}
	held := &allocation{key: keyPrefix + hex.EncodeToString(nonce), device: device}
	temporary := filepath.Join(base, tempPrefix+hex.EncodeToString(nonce))
	err := held.fill(temporary, library)
	if err == nil {
		held.directory = filepath.Join(base, held.key)
		held.library = filepath.Join(held.directory, libraryName)
		err = os.Rename(temporary, held.directory)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(temporary))
		if held.lock != nil {
			held.lock.Close()
		}
		return nil, err
	}
	return held, nil
}

// fill makes a directory and its content, the lock first.
func (s *allocation) fill(directory, library string) error {
	if err := os.Mkdir(directory, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(directory, lockName), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	s.lock = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	birth, err := ownBirth()
	if err != nil {
		return err
	}
	if _, err := lock.WriteString(birth.String()); err != nil {
		return err
	}
	source, err := os.Open(library)
	if err != nil {
		return fmt.Errorf("open library: %w", err)
	}
	defer source.Close()
	if err := atomicfile.Copy(filepath.Join(directory, libraryName), source, 0o755); err != nil {
		return err
	}
	pages := pagesIn(directory, s.key)
	if err := os.Mkdir(filepath.Dir(pages), 0o711); err != nil {
		return err
	}
	return limiter.Create(pages, limiter.Limits{Key: s.key, Devices: []limiter.Device{s.device}})
}

// pagesIn is where the pages of a slice are below its directory.
func pagesIn(directory, key string) string { return filepath.Join(directory, "alloc", key) }

func (s *allocation) pages() string { return pagesIn(s.directory, s.key) }

// Close removes the slice, unless processes that the command left behind still run in it. left says that descendants of
// the command are known to run.
func (s *allocation) Close(left bool) {
	// No descendant can be hidden: all are known.
	scan := userScan{proc: "/proc", key: s.key, uid: os.Getuid(), since: math.MaxUint64}
	if !left && !scan.inUse() {
		_ = os.RemoveAll(s.directory) // what stays is removed by a later vgpud exec
	}
	s.lock.Close()
}

// findBase returns a directory of this user's own from which programs can map code, making it if need be.
func findBase(variables map[string]string) (string, error) {
	var candidates []string
	if runtime := variables["XDG_RUNTIME_DIR"]; filepath.IsAbs(runtime) {
		candidates = append(candidates, filepath.Join(runtime, "vgpud"))
	}
	if os.Geteuid() == 0 {
		candidates = append(candidates, "/run/vgpud/exec")
	}
	temporary := variables["TMPDIR"]
	if !filepath.IsAbs(temporary) {
		temporary = "/tmp"
	}
	candidates = append(candidates, filepath.Join(temporary, fmt.Sprintf("vgpud-%d", os.Geteuid())))
	var faults []error
	for _, candidate := range candidates {
		err := prepareBase(candidate)
		if err == nil {
			return candidate, nil
		}
		faults = append(faults, err)
	}
	return "", fmt.Errorf("no place for the slice's files (set TMPDIR to another): %w", errors.Join(faults...))
}

// prepareBase makes directory with mode 0700, or checks that it is the user's own: in a shared temporary directory
// anybody may have made it before.
func prepareBase(directory string) error {
	if strings.ContainsAny(directory, ": \t\n") {
		return fmt.Errorf("%q: LD_PRELOAD cannot name a path with a blank or a colon", directory)
	}
	if err := os.Mkdir(directory, 0o700); errors.Is(err, fs.ErrNotExist) && os.Geteuid() == 0 && directory == "/run/vgpud/exec" {
		err = os.MkdirAll(directory, 0o711)
		if err == nil {
			err = os.Chmod(directory, 0o700)
		}
		if err != nil {
			return err
		}
	} else if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(directory)
	if err != nil {
		return err
	}
	status, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(status.Uid) != os.Geteuid() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%s: is not a directory of this user's own with mode 0700", directory)
	}
	var mount unix.Statfs_t
	if err := unix.Statfs(directory, &mount); err != nil {
		return fmt.Errorf("look up the mount of %s: %w", directory, err)
	}
	if mount.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s: is on a file system mounted noexec, from which the library could not be loaded", directory)
	}
	return nil
}

// removeStale takes away what killed instances left in base. Faults are left to the next one.
func removeStale(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, entry := range entries {
		directory := filepath.Join(base, entry.Name())
		switch {
		case !entry.IsDir():
		case strings.HasPrefix(entry.Name(), keyPrefix):
			removeAbandoned(directory, entry.Name())
		case strings.HasPrefix(entry.Name(), tempPrefix):
			if info, err := entry.Info(); err == nil && time.Since(info.ModTime()) > tempAge {
				removeAbandoned(directory, entry.Name())
			}
		}
	}
}

// removeAbandoned removes a directory whose vgpud exec is gone and whose slice is empty. The lock is held until the
// directory is gone, so that nobody else judges it at the same time.
func removeAbandoned(directory, key string) {
	scan := userScan{proc: "/proc", key: key, uid: os.Getuid()}
	path := filepath.Join(directory, lockName)
	lock, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist): // half made, or half removed: no hidden program is started in it
		scan.since = math.MaxUint64
	case err != nil:
		return
	default:
		defer lock.Close()
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || !isFile(path, lock) {
			return
		}
		scan.since = readBirth(lock)
	}
	if !scan.inUse() {
		_ = os.RemoveAll(directory)
	}
}

// isFile says whether path still is the file that is open.
func isFile(path string, file *os.File) bool {
	open, openErr := file.Stat()
	named, nameErr := os.Lstat(path)
	return openErr == nil && nameErr == nil && os.SameFile(open, named)
}
