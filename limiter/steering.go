// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The fast side of an allocation's pages: rates are published and meters read many times a second, through mappings and
// descriptors that are kept.

package limiter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Steering is the handle of one allocation's rates and meters. Its methods are not for use from several goroutines at
// once; one handle at a time may publish for an allocation. The function SetCompute beside it is safe for readers; of two rates
// that are written at the same time, one is lost.
type Steering struct {
	handle *os.File // of the directory
	mapped []byte   // the limits page
	usage  *os.File // nil: to be opened
	seen   []byte   // the usage page's head, mapped for Heads, which alone may read it; nil: not mapped
	head   page     // of the usage page: header and compute books, as of the last Meter
	glance page     // as of the last Heads.Read,
	fresh  bool     // which came whole, and which no Meter has told of yet
	limits Limits   // when the handle was opened
}

// OpenSteering opens the pages in dir. Errors as ReadLimits. The caller closes the handle.
func OpenSteering(dir string) (*Steering, error) {
	s := &Steering{}
	if err := s.open(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("open steering in %s: %w", dir, err), s.Close())
	}
	return s, nil
}

func (s *Steering) open(dir string) (err error) {
	if s.handle, err = openDirectory(dir); err != nil {
		return err
	}
	if s.limits, err = readLimits(s.handle); err != nil {
		return err
	}
	if s.limits.MemoryOnly {
		return ErrVersion
	}
	file, err := openFile(s.handle, LimitsFile, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer file.Close()
	s.head = newPage(usageHeaderBytes + len(s.limits.Devices)*usageTotalBytes)
	s.mapped, err = unix.Mmap(int(file.Fd()), 0, limitsPageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map limits page: %w", err)
	}
	return nil
}

// Limits is what the limits page says now.
func (s *Steering) Limits() Limits {
	p := newPage(limitsPageBytes)
	copy(p.bytes(), s.mapped)
	if l, err := parseLimits(p, limitsPageBytes); err == nil {
		s.limits = l
	}
	return s.limits // a device that is being written this very moment: what it was before
}

// Rate is the rate of a device that is in force.
func (s *Steering) Rate(device int) Rate {
	return rateOf(readLine(s.mapped, device))
}

// Publish puts a rate into force from now (MonotonicNow) on, for all processes at once, and wakes those who wait. What the
// allocation was entitled to before stays. The same rate again is nothing new. A reader never waits for it, wherever
// it is interrupted.
func (s *Steering) Publish(device int, rate Rate, now time.Duration) error {
	if device < 0 || device >= len(s.limits.Devices) {
		return fmt.Errorf("publish rate: no device %d", device)
	}
	err := publishRate(s.mapped, device, rate, now, func() time.Duration {
		meters, err := s.Meter(now)
		if err != nil {
			return 0
		}
		return meters[device].Spent
	})
	if err != nil {
		return fmt.Errorf("publish rate: %w", err)
	}
	return nil
}

// SetCompute changes what is granted of a device's GPU time, as the function of this name does, by the caller's clock. It is
// not on disk when it returns.
func (s *Steering) SetCompute(device int, compute Compute, now time.Duration) error {
	err := compute.validate()
	if err == nil && (device < 0 || device >= len(s.limits.Devices)) {
		err = fmt.Errorf("no device %d", device)
	}
	if err == nil {
		err = errors.Join(setCompute(s.mapped, device, compute, now), wakeWaiters(s.mapped, device))
	}
	if err != nil {
		return fmt.Errorf("set compute share: %w", err)
	}
	return nil
}

// Beat tells the processes that somebody steers. At least twice a second.
func (s *Steering) Beat() { beat(s.mapped) }

// Meter reads the compute books, in the order of the limits page: those of the last Heads.Read, once, or else those of now.
// Errors as ReadUsage, of the head of the page only. A usage page that was replaced is opened again.
func (s *Steering) Meter(now time.Duration) ([]ComputeUsage, error) {
	if err := s.readHead(); err != nil {
		return nil, fmt.Errorf("read meter: %w", err)
	}
	meters := make([]ComputeUsage, len(s.limits.Devices))
	for i := range meters {
		meters[i] = parseComputeBeside(s.head, s.mapped, i, now)
	}
	return meters, nil
}

func (s *Steering) readHead() error {
	if s.fresh {
		s.head, s.glance, s.fresh = s.glance, s.head, false
		return s.checkHead()
	}
	s.Verify()
	if s.usage == nil {
		file, err := openFile(s.handle, UsageFile, unix.O_RDONLY)
		if err != nil {
			return err
		}
		s.usage = file
		if seen, err := unix.Mmap(int(file.Fd()), 0, len(s.head.bytes()), unix.PROT_READ, unix.MAP_SHARED); err == nil {
			s.seen = seen
		}
	}
	_, err := s.usage.ReadAt(s.head.bytes(), 0)
	if errors.Is(err, io.EOF) {
		return &TamperError{DamageCut, UsageFile + " is shorter than its head"}
	}
	if err != nil {
		return err
	}
	return s.checkHead()
}

func (s *Steering) checkHead() error {
	if !isUsageHead(s.head, s.limits) {
		return &TamperError{DamageHeader, "the header of the usage page is not the one it was created with"}
	}
	return nil
}

// Close closes the handle; what was published stays in force.
func (s *Steering) Close() error {
	var errs []error
	if s.mapped != nil {
		errs = append(errs, unix.Munmap(s.mapped))
	}
	errs = append(errs, s.forget())
	if s.handle != nil {
		errs = append(errs, s.handle.Close())
	}
	s.mapped, s.handle = nil, nil
	return errors.Join(errs...)
}
