// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Why probes cannot be had, in words that name what to change: a capability, a setting, a file, a kernel version. The
// kernel's own answer is nearly always "operation not permitted".

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// machine is what decides whether probes can be had.
type machine struct {
	kernel      string // its release
	caps        uint64 // effective
	seccomp     bool   // a filter is in force
	types       error  // of reading the kernel's type information; nil: it is there
	paranoid    int    // kernel.perf_event_paranoid
	lockdown    string // "", "integrity", "confidentiality"
	noNamespace bool   // capabilities count only within a user namespace of its own
}

const typesFile = "/sys/kernel/btf/vmlinux"

func lookAtMachine(proc string) machine {
	var m machine
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.kernel = unix.ByteSliceToString(name.Release[:])
	}
	status, _ := os.ReadFile(path.Join(proc, "self/status"))
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch value = strings.TrimSpace(value); key {
		case "CapEff":
			m.caps, _ = strconv.ParseUint(value, 16, 64)
		case "Seccomp":
			m.seccomp = value == "2"
		}
	}
	if f, err := os.Open(typesFile); err != nil {
		m.types = err
	} else {
		_ = f.Close()
	}
	text := func(name string) string {
		raw, _ := os.ReadFile(name)
		return strings.TrimSpace(string(raw))
	}
	m.paranoid, _ = strconv.Atoi(text(path.Join(proc, "sys/kernel/perf_event_paranoid")))
	if _, after, ok := strings.Cut(text("/sys/kernel/security/lockdown"), "["); ok {
		m.lockdown, _, _ = strings.Cut(after, "]")
	}
	users := strings.Fields(text(path.Join(proc, "self/uid_map")))
	m.noNamespace = len(users) == 3 && (users[0] != "0" || users[1] != "0" || users[2] != "4294967295")
	return m
}

func (m machine) has(capability int) bool { return m.caps>>capability&1 != 0 }

// lacks names the capabilities that are missing of those that a task needs; CAP_SYS_ADMIN stands for BPF and PERFMON.
func (m machine) lacks(capabilities ...int) []string {
	names := map[int]string{
		unix.CAP_BPF: "CAP_BPF", unix.CAP_PERFMON: "CAP_PERFMON", unix.CAP_SYS_PTRACE: "CAP_SYS_PTRACE",
		unix.CAP_CHECKPOINT_RESTORE: "CAP_CHECKPOINT_RESTORE", unix.CAP_DAC_READ_SEARCH: "CAP_DAC_READ_SEARCH",
	}
	var missing []string
	for _, c := range capabilities {
		stand := m.has(unix.CAP_SYS_ADMIN) && (c == unix.CAP_BPF || c == unix.CAP_PERFMON || c == unix.CAP_CHECKPOINT_RESTORE)
		if !m.has(c) && !stand {
			missing = append(missing, names[c])
		}
	}
	return missing
}

// explain turns an error of loading or attaching into a reason.
func (m machine) explain(err error, n Numbering) string {
	refused := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
	missing := m.lacks(unix.CAP_BPF, unix.CAP_PERFMON)
	switch {
	case errors.Is(err, unix.ENOSYS):
		return "the kernel has no bpf() call, or a seccomp filter hides it (CONFIG_BPF_SYSCALL; the container's seccomp profile)"
	case refused && len(missing) > 0:
		return fmt.Sprintf("%s missing: add to the container's capabilities (kernels before 5.8: CAP_SYS_ADMIN)", strings.Join(missing, " and "))
	case refused && m.noNamespace:
		return "capabilities are those of a user namespace and do not count for bpf(): run on the host's users"
	case refused && m.seccomp:
		return "bpf() or perf_event_open() is refused although CAP_BPF and CAP_PERFMON are there: the seccomp profile must allow both"
	case refused && m.lockdown == "confidentiality":
		return "kernel lockdown is \"confidentiality\", which forbids probes"
	case refused && m.paranoid > 2:
		return fmt.Sprintf("kernel.perf_event_paranoid is %d and this kernel then refuses perf events to all but CAP_SYS_ADMIN: set it to 2, or add the capability", m.paranoid)
	case m.types != nil && n == NumberingLegacy:
		return fmt.Sprintf("%s cannot be read (%v): without the kernel's type information (CONFIG_DEBUG_INFO_BTF) control groups of version 1 cannot be told apart", typesFile, m.types)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Sprintf("kernel %s lacks what is needed (5.15 or later; 6.6 for uprobe.multi): %s", m.kernel, firstLine(err))
	}
	return firstLine(err)
}

// firstLine keeps a verifier's log out of a reason.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
