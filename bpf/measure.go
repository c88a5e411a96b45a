// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a probe costs on this machine, measured before the first one is put into a driver: on a function of our own that
// begins as the driver's do, with the programs that will be used.

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Places of the two functions in the file of code.
const (
	driverLike  = 0    // probed where the driver is: on an instruction that is emulated
	singleSteps = 0x80 // probed on one that is not
)

// dryCode is the file of code: two functions that return at once. They touch no stack and only registers that a Go
// function may lose, so that Go can call them.
func dryCode() (code []byte, stepped uint64, err error) {
	code = make([]byte, os.Getpagesize())
	switch runtime.GOARCH {
	case "amd64":
		one := []byte{
			0x81, 0x3d, 0, 0, 0, 0, 0x00, 0xba, 0x1c, 0x32, // cmpl $0x321cba00, below(%rip)
			0x74, 0x03, // je +3
			0x31, 0xc0, // xor %eax, %eax
			0xc3,                   // ret
			0x83, 0xc8, 0xff, 0xc3, // or $-1, %eax; ret
		}
		binary.LittleEndian.PutUint32(one[2:], 0x40-10) // what is compared: zeros after the function
		copy(code[driverLike:], one)
		copy(code[singleSteps:], one)
		return code, 0, nil
	case "arm64":
		words := []uint32{0xd503201f, 0x52800000, 0xd65f03c0} // nop; mov w0, #0; ret
		for i, w := range words {
			binary.LittleEndian.PutUint32(code[driverLike+4*i:], w)
			binary.LittleEndian.PutUint32(code[singleSteps+4*i:], w)
		}
		return code, 4, nil
	}
	return nil, 0, errors.New("no code for this architecture")
}

// dryRun is that code, mapped.
type dryRun struct {
	file    *os.File
	memory  []byte
	emulate placed
	step    placed
}

// mapCode makes a file of code, a page long, that is mapped to execute.
func mapCode(code []byte) (*dryRun, error) {
	fd, err := unix.MemfdCreate("vgpud-probe-cost", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make file of code: %w", err)
	}
	d := &dryRun{file: os.NewFile(uintptr(fd), "probe-cost")}
	if _, err := d.file.Write(code); err != nil {
		d.close()
		return nil, fmt.Errorf("write code: %w", err)
	}
	d.memory, err = unix.Mmap(fd, 0, len(code), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		d.close()
		return nil, fmt.Errorf("map code: %w", err)
	}
	return d, nil
}

func openDryRun() (*dryRun, error) {
	code, stepped, err := dryCode()
	if err != nil {
		return nil, err
	}
	d, err := mapCode(code)
	if err != nil {
		return nil, err
	}
	at, emulated := probeOffset(code[driverLike:driverLike+prologueBytes], runtime.GOARCH)
	if !emulated {
		d.close()
		return nil, errors.New("own code has no instruction that is emulated")
	}
	wait := function{name: "dry run", class: stall}
	d.emulate = placed{function: wait, offset: driverLike + at, emulated: true}
	d.step = placed{function: wait, offset: singleSteps + stepped}
	return d, nil
}

func (d *dryRun) close() {
	if d.memory != nil {
		_ = unix.Munmap(d.memory)
	}
	_ = d.file.Close()
}

// time returns the processor time of one call, the least of some rounds.
func (d *dryRun) time(function, rounds, calls int) time.Duration {
	entry := uintptr(unsafe.Pointer(&d.memory[function]))
	closure := &entry // what a Go function value points to
	call := *(*func())(unsafe.Pointer(&closure))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	least := time.Duration(1<<63 - 1)
	for range rounds {
		start := threadTime()
		for range calls {
			call()
		}
		least = min(least, (threadTime()-start)/time.Duration(calls))
	}
	runtime.KeepAlive(closure)
	return least
}

func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// cost is what one hit takes, entry and return together.
type cost struct {
	emulated, stepped time.Duration
}

// measure takes at least a thousand hits of each kind. It leaves a row for our own control group, which is removed.
func (l *loaded) measure() (cost, error) {
	const rounds, calls = 8, 160
	d, err := openDryRun()
	if err != nil {
		return cost{}, err
	}
	defer d.close()
	one := func(function int, place placed) (time.Duration, error) {
		bare := d.time(function, rounds, calls)
		probes, err := l.attach(d.file, []placed{place})
		if err != nil {
			return 0, err
		}
		probed := d.time(function, rounds, calls)
		return max(0, probed-bare), probes.Close()
	}
	var c cost
	if c.emulated, err = one(driverLike, d.emulate); err != nil {
		return cost{}, fmt.Errorf("measure a hit: %w", err)
	}
	if c.stepped, err = one(singleSteps, d.step); err != nil {
		return cost{}, fmt.Errorf("measure a hit that is single-stepped: %w", err)
	}
	return c, l.forget()
}

// tryAttach attaches and detaches once: some kernels load what they refuse to attach.
func (l *loaded) tryAttach() error {
	d, err := openDryRun()
	if err != nil {
		return err
	}
	defer d.close()
	probes, err := l.attach(d.file, []placed{d.emulate})
	if err != nil {
		return err
	}
	return probes.Close()
}
