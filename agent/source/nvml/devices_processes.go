// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// devices_processes.go tells which processes use a card, how much memory they hold, and how the card is shared.

package nvml

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpud/vgpud/agent/source"
)

var _ source.ProcessMemories = (*Reader)(nil)

// memoryUnknown is NVML_VALUE_NOT_AVAILABLE.
const memoryUnknown = ^uint64(0)

// ProcessMemory implements source.ProcessMemories: the compute processes of every card, clients of MPS included.
func (r *Reader) ProcessMemory(ctx context.Context) ([]source.ProcessMemory, error) {
	return ask(ctx, r, "read processes", r.readProcesses)
}

// readProcesses runs with the turn held. A card that does not tell is left out.
func (r *Reader) readProcesses() ([]source.ProcessMemory, error) {
	devices, err := r.devices()
	if err != nil {
		return nil, err
	}
	var memories []source.ProcessMemory
	for _, opened := range devices {
		uuid, code := opened.device.GetUUID()
		if code == nvml.ERROR_UNINITIALIZED {
			return nil, r.giveUp(codeError("read processes", code))
		}
		if code != nvml.SUCCESS || uuid == "" {
			continue
		}
		listed := map[int]bool{}
		for _, process := range r.processes(opened.device) {
			if pid := int(process.Pid); pid > 0 && !listed[pid] {
				listed[pid] = true
				memory := source.ProcessMemory{GPUUUID: uuid, PID: pid}
				if process.UsedGpuMemory != memoryUnknown {
					memory.UsedBytes = process.UsedGpuMemory
				}
				memories = append(memories, memory)
			}
		}
	}
	return memories, nil
}

// processes are the compute processes of a card, clients of MPS first.
func (r *Reader) processes(device nvml.Device) []nvml.ProcessInfo {
	found := r.clients(device)
	if r.has["nvmlDeviceGetComputeRunningProcesses"] {
		if more, code := device.GetComputeRunningProcesses(); code == nvml.SUCCESS {
			found = append(found, more...)
		}
	}
	return found
}

// clients are the processes that use the card through MPS.
func (r *Reader) clients(device nvml.Device) []nvml.ProcessInfo {
	if !r.has["nvmlDeviceGetMPSComputeRunningProcesses"] {
		return nil
	}
	clients, code := device.GetMPSComputeRunningProcesses()
	if code != nvml.SUCCESS {
		return nil
	}
	return clients
}

// mpsServer is how the kernel shortens the name of nvidia-cuda-mps-server, the process that holds the card for the clients
// of MPS. The control daemon, of the same short name, uses no card and is not among its processes.
const mpsServer = "nvidia-cuda-mps"

// sharing tells how the card is shared. NVML has no such setting, so it is told by what is there: MIG by its mode; MPS by its
// server or clients among the card's processes (a daemon that waits for its first client is not seen, and changes nothing
// yet); an exclusive card by its compute mode; and what is left takes turns. Processes of one card are clients of its server
// or not at all: the driver runs no others beside it at the same time.
func (r *Reader) sharing(device nvml.Device) source.Sharing {
	if r.has["nvmlDeviceGetMigMode"] {
		if mode, _, code := device.GetMigMode(); code == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
			return source.SharingMIG
		}
	}
	if len(r.clients(device)) > 0 {
		return source.SharingMPS
	}
	unnamed := false
	if r.has["nvmlDeviceGetComputeRunningProcesses"] {
		processes, _ := device.GetComputeRunningProcesses()
		for _, process := range processes {
			name, err := os.ReadFile(filepath.Join(r.root, "proc", strconv.Itoa(int(process.Pid)), "comm"))
			if strings.TrimSpace(string(name)) == mpsServer {
				return source.SharingMPS
			}
			unnamed = unnamed || err != nil
		}
	}
	if !r.has["nvmlDeviceGetComputeMode"] {
		return source.SharingUnknown
	}
	mode, code := device.GetComputeMode()
	switch {
	case code != nvml.SUCCESS:
		return source.SharingUnknown
	case mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS || mode == nvml.COMPUTEMODE_EXCLUSIVE_THREAD:
		return source.SharingExclusive
	case mode != nvml.COMPUTEMODE_DEFAULT:
		return source.SharingUnknown
	case unnamed && !r.has["nvmlDeviceGetMPSComputeRunningProcesses"]:
		return source.SharingUnknown // one of them may be the server
	default:
		return source.SharingTimeSliced
	}
}
