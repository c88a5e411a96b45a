// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package nvml reads the cards through NVIDIA's management library. Its return codes become errors here and nowhere
// else. The library may be missing at first, go away or hang (a driver upgrade, a card in trouble): reads then fail
// quickly, the library is tried again with back-off, and the agent keeps serving what it knows.
//
// A function that the installed library does not export would end the process when called, so every function that
// is not in the oldest libraries is looked up first.
package nvml

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpud/vgpud/agent/source"
)

// Back-off of attempts to load and initialise the library.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// Patience of the callers. The first use of a card can take the driver seconds when nothing else keeps it awake.
const (
	TickPatience = 5 * time.Second
	ExecPatience = time.Minute
)

// Library is the part of go-nvml that is used.
type Library interface {
	Init() nvml.Return
	Shutdown() nvml.Return
	Extensions() nvml.ExtendedInterface
	DeviceGetCount() (int, nvml.Return)
	DeviceGetHandleByIndex(int) (nvml.Device, nvml.Return)
	GpmSampleAlloc() (nvml.GpmSample, nvml.Return)
	GpmMetricsGet(*nvml.GpmMetricsGetType) nvml.Return
}

// Reader reads all cards. It is safe for concurrent use; one read runs at a time.
type Reader struct {
	library  Library
	name     string           // of the library, for messages
	patience time.Duration    // how long a read may take
	root     string           // of sysfs
	now      func() time.Time // for the back-off
	clock    clock            // of the samples

	hasThroughput atomic.Bool // the library can be asked for PCIe throughput

	turn chan struct{} // held by the one who talks to the library

	// The rest is guarded by turn.
	initialised bool
	retryAt     time.Time
	retryIn     time.Duration
	lastError   error
	has         map[string]bool   // exported functions
	sampled     map[string]uint64 // stamp of the last utilisation sample, by UUID, in the library's microseconds
	gpm         map[string]*gpmCard
	others      map[int]time.Time // when a process was seen that is not the server of MPS
}

var _ source.GPUs = (*Reader)(nil)

// New makes a reader of the library at path; empty: as the loader finds it. A read fails after patience. Nothing is
// loaded yet.
func New(path string, patience time.Duration, now func() time.Time) *Reader {
	var options []nvml.LibraryOption
	if path != "" {
		options = append(options, nvml.WithLibraryPath(path))
	}
	reader := newReader(nvml.New(options...), patience, "/", now)
	if path != "" {
		reader.name = path
	}
	return reader
}

// defaultLibrary is what is loaded where no path is given.
const defaultLibrary = "libnvidia-ml.so.1"

func newReader(library Library, patience time.Duration, root string, now func() time.Time) *Reader {
	return &Reader{library: library, name: defaultLibrary, patience: patience, root: root, now: now, clock: systemClock, turn: make(chan struct{}, 1),
		has: map[string]bool{}, gpm: map[string]*gpmCard{}}
}

// GPUs implements source.GPUs. It returns when its patience or ctx ends although the library may hang; reads fail until
// the library comes back.
func (r *Reader) GPUs(ctx context.Context) ([]source.GPU, error) {
	return ask(ctx, r, "read GPUs", r.read)
}

// ask reads with the turn held, and does not wait longer for it than the reader's patience.
func ask[T any](ctx context.Context, r *Reader, operation string, read func() (T, error)) (T, error) {
	type answer struct {
		found T
		err   error
	}
	var nothing T
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nothing, fmt.Errorf("%s: the management library hangs: %w", operation, ctx.Err())
	}
	result := make(chan answer, 1)
	go func() {
		defer func() { <-r.turn }()
		found, err := read()
		result <- answer{found, err}
	}()
	select {
	case got := <-result:
		return got.found, got.err
	case <-ctx.Done():
		return nothing, fmt.Errorf("%s: the management library does not answer: %w", operation, ctx.Err())
	}
}

// Close shuts the library down, unless it hangs. The reader may not be used afterwards.
func (r *Reader) Close(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("shut NVML down: %w", ctx.Err())
	}
	if !r.initialised {
		return nil
	}
	r.initialised = false
	r.forgetGPM(nil)
	return codeError("shut NVML down", r.library.Shutdown())
}

// read runs with the turn held.
func (r *Reader) read() ([]source.GPU, error) {
	devices, err := r.devices()
	if err != nil {
		return nil, err
	}
	var gpus []source.GPU
	for _, opened := range devices {
		if gpu, named := r.readGPU(opened.device, opened.index); named {
			gpus = append(gpus, gpu)
		}
	}
	return gpus, nil
}

// opened is a card that could be opened.
type opened struct {
	index  int // in the order of the library
	device nvml.Device
}

// devices opens all cards; it runs with the turn held.
func (r *Reader) devices() ([]opened, error) {
	if err := r.initialise(); err != nil {
		return nil, err
	}
	count, code := r.library.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, r.giveUp(codeError("count GPUs", code))
	}
	var devices []opened
	for index := range count {
		device, code := r.library.DeviceGetHandleByIndex(index)
		if code == nvml.ERROR_UNINITIALIZED {
			return nil, r.giveUp(codeError("open GPU", code))
		}
		if code != nvml.SUCCESS {
			continue // it has no name to report it by; a card that was known before counts as lost
		}
		devices = append(devices, opened{index, device})
	}
	return devices, nil
}

// initialise loads the library unless it is loaded, or was tried a moment ago.
func (r *Reader) initialise() error {
	if r.initialised {
		return nil
	}
	if now := r.now(); now.Before(r.retryAt) {
		return r.lastError
	}
	switch code := r.library.Init(); code {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return r.giveUp(codeError(r.name, code))
	default:
		return r.giveUp(codeError("initialise NVML", code))
	}
	r.initialised, r.lastError, r.retryIn = true, nil, 0
	for _, name := range append([]string{"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMigMode", processUtilization}, counterFunctions...) {
		r.has[name] = r.library.Extensions().LookupSymbol(name) == nil
	}
	return nil
}

// giveUp puts the next attempt off and returns err.
func (r *Reader) giveUp(err error) error {
	if r.initialised {
		r.initialised = false
		r.forgetGPM(nil)
		_ = r.library.Shutdown() // it is in trouble already
	}
	r.retryIn = min(max(2*r.retryIn, firstRetry), lastRetry)
	r.retryAt = r.now().Add(r.retryIn)
	r.lastError = err
	return err
}

// readGPU describes one card; named is false when not even its UUID can be had.
func (r *Reader) readGPU(device nvml.Device, index int) (gpu source.GPU, named bool) {
	uuid, code := device.GetUUID()
	if code != nvml.SUCCESS || uuid == "" {
		return source.GPU{}, false
	}
	gpu = source.GPU{UUID: uuid, Index: index, NUMANode: r.numaNode(device)}
	if model, code := device.GetName(); code == nvml.SUCCESS {
		gpu.Model = model
	}
	if r.isSplit(device) {
		gpu.Err = source.ErrMIG
		return gpu, true
	}
	gpu.Err = r.readMemory(device, &gpu)
	return gpu, true
}

// isSplit says whether a card is in MIG mode.
func (r *Reader) isSplit(device nvml.Device) bool {
	if !r.has["nvmlDeviceGetMigMode"] {
		return false
	}
	mode, _, code := device.GetMigMode()
	return code == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
}

// readMemory fills the sizes. Libraries before version 510 do not tell what the driver keeps.
func (r *Reader) readMemory(device nvml.Device, gpu *source.GPU) error {
	if r.has["nvmlDeviceGetMemoryInfo_v2"] {
		memory, code := device.GetMemoryInfo_v2()
		if code == nvml.SUCCESS {
			gpu.TotalBytes, gpu.ReservedBytes, gpu.UsedBytes = memory.Total, memory.Reserved, memory.Used
			return nil
		}
		if code != nvml.ERROR_NOT_SUPPORTED && code != nvml.ERROR_FUNCTION_NOT_FOUND {
			return codeError("read memory", code)
		}
	}
	memory, code := device.GetMemoryInfo()
	if code != nvml.SUCCESS {
		return codeError("read memory", code)
	}
	gpu.TotalBytes, gpu.UsedBytes = memory.Total, memory.Used
	return nil
}

// numaNode is the node that the card's slot belongs to, by sysfs; -1 where the kernel knows none.
func (r *Reader) numaNode(device nvml.Device) int {
	pci, code := device.GetPciInfo()
	if code != nvml.SUCCESS {
		return -1
	}
	address := fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device)
	text, err := os.ReadFile(filepath.Join(r.root, "sys/bus/pci/devices", address, "numa_node"))
	if err != nil {
		return -1
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || node < 0 {
		return -1
	}
	return node
}

// CodeError is a return code of the library.
type CodeError struct {
	Operation string // the library itself where it was not found
	Code      nvml.Return
}

// Error implements error.
func (e *CodeError) Error() string {
	if e.Code == nvml.ERROR_LIBRARY_NOT_FOUND {
		return e.Operation + " was not found (driver not installed? --nvml-library?)"
	}
	if meaning, known := meanings[e.Code]; known {
		return fmt.Sprintf("%s: %s (NVML code %d)", e.Operation, meaning, int(e.Code))
	}
	return fmt.Sprintf("%s: NVML code %d", e.Operation, int(e.Code))
}

// meanings are our own words: the library's text lies in its memory, which is gone when it is unloaded.
var meanings = map[nvml.Return]string{
	nvml.ERROR_UNINITIALIZED:           "not initialised",
	nvml.ERROR_NOT_SUPPORTED:           "not supported",
	nvml.ERROR_NO_PERMISSION:           "no permission",
	nvml.ERROR_DRIVER_NOT_LOADED:       "the NVIDIA driver is not loaded",
	nvml.ERROR_TIMEOUT:                 "timeout",
	nvml.ERROR_IRQ_ISSUE:               "interrupts of a GPU do not arrive",
	nvml.ERROR_GPU_IS_LOST:             "the GPU has fallen off the bus or cannot be reached",
	nvml.ERROR_RESET_REQUIRED:          "the GPU has to be reset",
	nvml.ERROR_LIB_RM_VERSION_MISMATCH: "the driver's kernel module and its library are of different versions",
	nvml.ERROR_OPERATING_SYSTEM:        "the operating system blocks the GPU",
	nvml.ERROR_MEMORY:                  "not enough memory",
	nvml.ERROR_UNKNOWN:                 "internal error of the driver",
}

// Is makes lost cards known to errors.Is.
func (e *CodeError) Is(target error) bool {
	return target == source.ErrGPULost && e.Code == nvml.ERROR_GPU_IS_LOST
}

func codeError(operation string, code nvml.Return) error {
	if code == nvml.SUCCESS {
		return nil
	}
	return &CodeError{operation, code}
}
