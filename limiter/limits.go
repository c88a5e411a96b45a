// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The limits page and the life of a pair of pages: create, read, change, remove.

package limiter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Errors that callers test for with errors.Is.
var (
	// ErrTampered: a page is not what this package made of it.
	ErrTampered = errors.New("page was tampered with")
	// ErrVersion: a page of an ABI version that this program does not know, or that is too old for what is asked of it.
	ErrVersion = errors.New("page of another version")
)

// TamperError says what is wrong with a page. errors.Is(err, ErrTampered) holds.
type TamperError struct {
	Damage Damage
	Reason string // for people
}

// Error implements error.
func (e *TamperError) Error() string { return ErrTampered.Error() + ": " + e.Reason }

// Unwrap makes errors.Is(err, ErrTampered) hold.
func (e *TamperError) Unwrap() error { return ErrTampered }

// Device is what an allocation holds of one GPU.
type Device struct {
	UUID             string // "GPU-…" or "MIG-…", at most 63 bytes
	SliceCount       uint32 // slices of this GPU in the allocation
	MemoryLimitBytes uint64 // at most MaxBytes; 0: nothing may be allocated
	Compute          Compute
}

// Compute is what is granted of a GPU's time.
type Compute struct {
	Mode       ComputeMode
	SharePPM   uint32 // SharePPMMin to PPM; of ComputeNone 0
	CeilingPPM uint32 // SharePPM to PPM, what is lent included; SharePPM of ComputeHard, 0 of ComputeNone
}

// Limits is the content of a limits page.
type Limits struct {
	Key     string // allocation key, 1 to 39 bytes
	Epoch   uint32 // raised at each container start; Create takes 0 for the first one, 1
	Frozen  Damage // DamageNone, or why nothing more may be allocated in this epoch; Create ignores it
	Devices []Device
	// MemoryOnly: pages of a container that was made before there was a compute book. Its library limits memory, and its
	// usage page is laid out otherwise. Create ignores it.
	MemoryOnly bool
	// NoTraffic: pages of a container that was made before there were traffic books; all else is as it is today. Create
	// ignores it.
	NoTraffic bool
}

// Names of the two files in the directory of an allocation.
const (
	LimitsFile = "limits"
	UsageFile  = "usage"
)

func (c Compute) validate() error {
	switch c.Mode {
	case ComputeNone:
		if c.SharePPM != 0 || c.CeilingPPM != 0 {
			return errors.New("a share of GPU time that is not limited")
		}
		return nil
	case ComputeHard, ComputeElastic:
	default:
		return fmt.Errorf("unknown compute mode %d", c.Mode)
	}
	if c.SharePPM < SharePPMMin || c.SharePPM > PPM {
		return fmt.Errorf("a share of %d millionths of GPU time: want %d to %d", c.SharePPM, SharePPMMin, PPM)
	}
	if c.CeilingPPM < c.SharePPM || c.CeilingPPM > PPM {
		return fmt.Errorf("a ceiling of %d millionths of GPU time: want %d to %d", c.CeilingPPM, c.SharePPM, PPM)
	}
	if c.Mode == ComputeHard && c.CeilingPPM != c.SharePPM {
		return fmt.Errorf("a ceiling of %d millionths of GPU time: want the share, %d", c.CeilingPPM, c.SharePPM)
	}
	return nil
}

func (l Limits) validate() error {
	if l.Key == "" || len(l.Key) > maxKeyBytes || strings.ContainsRune(l.Key, 0) {
		return fmt.Errorf("allocation key %q: want 1 to %d bytes without NUL", l.Key, maxKeyBytes)
	}
	if len(l.Devices) == 0 || len(l.Devices) > maxDevices {
		return fmt.Errorf("%d devices: want 1 to %d", len(l.Devices), maxDevices)
	}
	seen := map[string]bool{}
	for _, d := range l.Devices {
		if d.UUID == "" || len(d.UUID) > maxUUIDBytes || strings.ContainsRune(d.UUID, 0) {
			return fmt.Errorf("device UUID %q: want 1 to %d bytes without NUL", d.UUID, maxUUIDBytes)
		}
		if seen[d.UUID] {
			return fmt.Errorf("device %s: named twice", d.UUID)
		}
		seen[d.UUID] = true
		if d.MemoryLimitBytes > MaxBytes {
			return fmt.Errorf("device %s: memory limit of %d bytes: want at most %d", d.UUID, d.MemoryLimitBytes, MaxBytes)
		}
		if err := d.Compute.validate(); err != nil {
			return fmt.Errorf("device %s: %w", d.UUID, err)
		}
	}
	return nil
}

// Create makes dir (mode 0711) with a limits page (0644) and an empty usage page (0666), both fully allocated and
// on disk before it returns. The pair appears at once, by rename: nobody sees half of it. An interrupted Create
// leaves at most a directory ".<name>.*" beside dir, which Remove removes. The error is fs.ErrExist when dir exists;
// dir's parent has to exist.
func Create(dir string, l Limits) (err error) {
	if err := l.validate(); err != nil {
		return fmt.Errorf("create pages: %w", err)
	}
	limits, err := buildLimits(l, MonotonicNow())
	if err != nil {
		return fmt.Errorf("create pages: %w", err)
	}
	parent, name := filepath.Split(filepath.Clean(dir))
	if parent == "" {
		parent = "."
	}
	temp, err := os.MkdirTemp(parent, "."+name+".")
	if err != nil {
		return fmt.Errorf("create pages: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, Remove(temp))
		}
	}()
	if err := fillDirectory(temp, limits, buildUsage(Limits{Devices: l.Devices})); err != nil {
		return fmt.Errorf("create pages: %w", err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("create pages: %w", &fs.PathError{Op: "rename", Path: dir, Err: err})
	}
	if err := syncDirectory(parent); err != nil {
		return errors.Join(fmt.Errorf("create pages: %w", err), Remove(dir))
	}
	return nil
}

func fillDirectory(dir string, limits, usage page) error {
	if err := os.Chmod(dir, 0o711); err != nil { // whatever the umask
		return err
	}
	handle, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := createFile(handle, LimitsFile, 0o644, limits.bytes()); err != nil {
		return err
	}
	if err := createFile(handle, UsageFile, 0o666, usage.bytes()); err != nil {
		return err
	}
	return syncDirectory(dir)
}

// ReadLimits reads the limits page in dir. Errors: fs.ErrNotExist, ErrVersion, ErrTampered (its bytes are not a
// limits page).
func ReadLimits(dir string) (Limits, error) {
	handle, err := openDirectory(dir)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits page: %w", err)
	}
	defer handle.Close()
	l, err := readLimits(handle)
	if err != nil {
		return Limits{}, fmt.Errorf("read limits page in %s: %w", dir, err)
	}
	return l, nil
}

// limitsReads is how often a page that is being written is read before that is an error.
const limitsReads = 100

func readLimits(handle *os.File) (Limits, error) {
	_, l, err := readLimitsPage(handle)
	return l, err
}

// readLimitsPage also returns the bytes.
func readLimitsPage(handle *os.File) (page, Limits, error) {
	file, err := openFile(handle, LimitsFile, unix.O_RDONLY)
	if err != nil {
		return nil, Limits{}, err
	}
	defer file.Close()
	p := newPage(limitsPageBytes)
	var l Limits
	for range limitsReads {
		if err := readWhole(file, p.bytes()); err != nil {
			return nil, Limits{}, err
		}
		if l, err = parseLimits(p, limitsPageBytes); !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	switch {
	case errors.Is(err, unix.ENOTSUP):
		return nil, Limits{}, ErrVersion
	case errors.Is(err, unix.EAGAIN):
		return nil, Limits{}, &TamperError{Reason: "a write to the limits page was never finished"}
	case err != nil:
		return nil, Limits{}, &TamperError{Reason: "the limits page is not one"}
	}
	return p, l, nil
}

// SetMemoryLimit changes the limit of one device while processes run: it holds for the next request of each. What
// is in use stays in use, also above the new limit. Errors as ReadLimits; also when dir has no such device.
func SetMemoryLimit(dir, uuid string, bytes uint64) error {
	if bytes > MaxBytes {
		return fmt.Errorf("set memory limit of %s: %d bytes: want at most %d", uuid, bytes, MaxBytes)
	}
	err := changeLimits(dir, func(l Limits, mapped []byte) error {
		for i, d := range l.Devices {
			if d.UUID == uuid {
				return setMemory(mapped, i, bytes)
			}
		}
		return errors.New("no such device in the allocation")
	})
	if err != nil {
		return fmt.Errorf("set memory limit of %s: %w", uuid, err)
	}
	return nil
}

// SetCompute changes what is granted of one device's GPU time while processes run. The rate in force is the new share from
// now on, whatever was lent; credit and debt stay. Errors as SetMemoryLimit. Not beside Steering.Publish of the same
// allocation: both write the rate.
func SetCompute(dir, uuid string, compute Compute) error {
	if err := compute.validate(); err != nil {
		return fmt.Errorf("set compute share of %s: %w", uuid, err)
	}
	err := changeLimits(dir, func(l Limits, mapped []byte) error {
		if l.MemoryOnly {
			return ErrVersion
		}
		for i, d := range l.Devices {
			if d.UUID == uuid {
				return errors.Join(setCompute(mapped, i, compute, MonotonicNow()), wakeWaiters(mapped, i))
			}
		}
		return errors.New("no such device in the allocation")
	})
	if err != nil {
		return fmt.Errorf("set compute share of %s: %w", uuid, err)
	}
	return nil
}

// RaiseEpoch declares every process that is on the usage page now dead (the container starts anew), thaws the
// allocation, and returns the new epoch. A process that lives on nevertheless registers again at its next request, with all that it holds.
func RaiseEpoch(dir string) (uint32, error) {
	var epoch uint32
	err := changeLimits(dir, func(_ Limits, mapped []byte) error {
		epoch = raiseEpoch(mapped)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("raise epoch: %w", err)
	}
	return epoch, nil
}

// Freeze lets the processes of the allocation allocate nothing more until its epoch is raised; what they hold stays,
// and can be freed. For a usage page that was damaged: it may have lost what an idle process holds, so freeze first
// and restore it then. An allocation that is frozen keeps its first reason.
func Freeze(dir string, why Damage) error {
	if why == DamageNone {
		return errors.New("freeze allocation: no reason")
	}
	err := changeLimits(dir, func(l Limits, mapped []byte) error {
		if l.Frozen == DamageNone {
			freeze(mapped, why)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("freeze allocation: %w", err)
	}
	return nil
}

// changeLimits lets change work on a mapping of the limits page. Mapping it is safe: only this side can write the
// file, so nobody can cut it off beneath us.
func changeLimits(dir string, change func(l Limits, mapped []byte) error) error {
	handle, err := openDirectory(dir)
	if err != nil {
		return err
	}
	defer handle.Close()
	l, err := readLimits(handle)
	if err != nil {
		return err
	}
	file, err := openFile(handle, LimitsFile, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, limitsPageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map limits page: %w", err)
	}
	if err := change(l, mapped); err != nil {
		return errors.Join(err, unix.Munmap(mapped))
	}
	if err := unix.Munmap(mapped); err != nil {
		return fmt.Errorf("unmap limits page: %w", err)
	}
	return file.Sync()
}

// Remove removes the pages and their directory. Processes that have them mapped keep them until they end. What is
// not there is no error; a file that is not ours is (the directory then stays).
func Remove(dir string) error {
	handle, err := openDirectory(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove pages: %w", err)
	}
	defer handle.Close()
	for _, name := range []string{UsageFile, usageTemp, LimitsFile} {
		if err := unix.Unlinkat(int(handle.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove pages: %w", &fs.PathError{Op: "unlink", Path: filepath.Join(dir, name), Err: err})
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove pages: %w", &fs.PathError{Op: "rmdir", Path: dir, Err: err})
	}
	return nil
}
