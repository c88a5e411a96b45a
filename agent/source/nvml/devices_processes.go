// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// devices_processes.go tells which processes use a card, how much memory they hold, and how the card is shared.

package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/agent/source/procs"
)

var _ source.ProcessMemories = (*Reader)(nil)

// memoryUnknown is NVML_VALUE_NOT_AVAILABLE.
const memoryUnknown = ^uint64(0)

// ProcessMemory implements source.ProcessMemories: the compute processes of every card, clients of MPS included. Cards in MIG
// mode are left out: they are offered by others, and so is what runs there.
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
		if code != nvml.SUCCESS || uuid == "" || r.isSplit(opened.device) {
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
// of MPS. The control daemon, of the same short name, uses no card and is not among its processes. Anybody can take that
// name, so it is believed of the host's processes alone.
const mpsServer = "nvidia-cuda-mps"

// sharing tells how the card is shared. NVML has no such setting, so it is told by what is there: MIG by its mode; MPS by its
// clients, or by its server among the host's processes (a daemon that waits for its first client is not seen, nor is a server
// in a container before it has one, and neither changes anything yet); an exclusive card by its compute mode; and what is
// left takes turns. Processes of one card are clients of its server or not at all: the driver runs no others beside it at
// the same time.
func (r *Reader) sharing(device nvml.Device) source.Sharing {
	if r.isSplit(device) {
		return source.SharingMIG
	}
	if len(r.clients(device)) > 0 {
		return source.SharingMPS
	}
	unclear := false // a process may be the server
	if r.has["nvmlDeviceGetComputeRunningProcesses"] {
		processes, _ := device.GetComputeRunningProcesses()
		for _, process := range processes {
			serves, err := r.servesMPS(int(process.Pid))
			if serves && err == nil {
				return source.SharingMPS
			}
			unclear = unclear || err != nil
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
	case unclear && !r.has["nvmlDeviceGetMPSComputeRunningProcesses"]:
		return source.SharingUnknown
	default:
		return source.SharingTimeSliced
	}
}

// nameEvery is how often the name of a process is read that was not the server's.
const nameEvery = 10 * time.Second

// remember notes that a process is not the server of MPS.
func (r *Reader) remember(pid int, now time.Time) {
	const most = 1 << 12
	if r.others == nil || len(r.others) >= most {
		r.others = map[int]time.Time{}
	}
	r.others[pid] = now
}

// servesMPS says whether a process is the host's server of MPS. An error: that cannot be told, because the process cannot be
// seen, or bears the name and lives in a container.
func (r *Reader) servesMPS(pid int) (bool, error) {
	now := r.now()
	if asked, known := r.others[pid]; known && now.Sub(asked) >= 0 && now.Sub(asked) < nameEvery {
		return false, nil
	}
	name, err := os.ReadFile(filepath.Join(r.root, "proc", strconv.Itoa(pid), "comm"))
	if err != nil || strings.TrimSpace(string(name)) != mpsServer {
		if err == nil {
			r.remember(pid, now)
		}
		return false, err
	}
	container, err := procs.ContainerID(r.root, pid)
	if err == nil && container != "" {
		err = errors.New("a container's process has the name of the server of MPS")
	}
	return err == nil, err
}
