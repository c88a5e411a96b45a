// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What becomes of the probes where rights or kernel files are missing: never a crash, always a reason
// that names what to change, and as much counted as can be.

package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

func TestRights(t *testing.T) {
	require.Root(t)
	library := filepath.Join(require.Sim(t), "libcuda.so.1")
	full := []int{unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_PTRACE, unix.CAP_CHECKPOINT_RESTORE, unix.CAP_DAC_READ_SEARCH}
	for _, row := range []struct {
		name     string
		confined confinement
		paranoid string   // of kernel.perf_event_paranoid meanwhile
		refused  []string // words of the reason for which there are no probes
		reason   []string // words of what is missing although there are
		exact    bool     // nothing is missing
		finds    bool     // libraries of others are found, not only those told of
		ioctls   bool
	}{
		{name: "nothing", confined: confinement{Caps: []int{}}, refused: []string{"CAP_BPF and CAP_PERFMON missing"}},
		{name: "BPF alone", confined: confinement{Caps: []int{unix.CAP_BPF}}, refused: []string{"CAP_PERFMON missing"}},
		{name: "PERFMON alone", confined: confinement{Caps: []int{unix.CAP_PERFMON}}, refused: []string{"CAP_BPF missing"}},
		{name: "BPF and PERFMON", confined: confinement{Caps: full[:2]}, reason: []string{"CAP_SYS_PTRACE missing"}},
		{name: "the smallest set", confined: confinement{Caps: full}, exact: true, finds: true},
		{name: "the smallest set at paranoid 3", confined: confinement{Caps: full}, paranoid: "3", exact: true, finds: true},
		{name: "BPF and PERFMON at paranoid 4", confined: confinement{Caps: full[:2]}, paranoid: "4", reason: []string{"CAP_SYS_PTRACE missing"}},
		{name: "SYS_ADMIN alone", confined: confinement{Caps: []int{unix.CAP_SYS_ADMIN}}, reason: []string{"CAP_SYS_PTRACE missing"}},
		{name: "64 KiB of locked memory", confined: confinement{Caps: full, Memlock: 64 << 10}, exact: true, finds: true},
		{name: "bpf() refused", confined: confinement{Refuse: uint32(unix.EPERM)}, refused: []string{"seccomp"}},
		{name: "bpf() hidden", confined: confinement{Refuse: uint32(unix.ENOSYS)}, refused: []string{"CONFIG_BPF_SYSCALL", "seccomp"}},
		{name: "root of a user namespace", confined: confinement{UserSpace: true}, refused: []string{"user namespace"}},
		{name: "no type information, control groups of version 1", confined: confinement{Types: "hidden"}, refused: []string{typesFile}},
		{name: "no type information, control groups of version 2", confined: confinement{Types: "hidden", Options: Options{Numbering: NumberingUnified}},
			reason: []string{"removed control groups"}, finds: true},
		{name: "no types of modules", confined: confinement{Types: "alone"}, exact: true, finds: true},
		{name: "a module's types are broken", confined: confinement{Types: "broken module"}, exact: true, finds: true},
		{name: "tracefs read-only", confined: confinement{Tracing: "read-only", Options: Options{Dev: "null"}}, exact: true, finds: true, ioctls: true},
		{name: "tracefs read-only, the smallest set", confined: confinement{Caps: full, Tracing: "read-only", Options: Options{Dev: "null"}}, exact: true, finds: true, ioctls: true},
		{name: "no tracefs", confined: confinement{Tracing: "hidden", Options: Options{Dev: "null"}}, exact: true, finds: true, ioctls: true},
		{name: "no tracefs, the smallest set", confined: confinement{Caps: full, Tracing: "hidden", Options: Options{Dev: "null"}},
			reason: []string{"tracefs is not mounted", "CAP_SYS_ADMIN"}, finds: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.paranoid != "" {
				setParanoid(t, row.paranoid)
			}
			if row.confined.Options.Dev == "null" {
				row.confined.Options.Dev = nullDevices(t)
			}
			if !row.finds {
				row.confined.Options.Libraries = []string{library}
			}
			n := row.confined.Options.Numbering
			if n == "" {
				n = numbering()
			}
			g := newGroup(t, n)
			child := startConfined(t, row.confined)
			if row.refused != nil {
				mustSay(t, child.first.Error, row.refused)
				return
			}
			if child.first.Error != "" {
				t.Fatalf("no probes: %s", child.first.Error)
			}
			mustSay(t, child.first.Status.Reason, row.reason)
			if row.exact && child.first.Status.Reason != "" {
				t.Errorf("something is missing: %s", child.first.Status.Reason)
			}
			c := startCaller(t, cards(t), "")
			g.add(t, c.Pid)
			c.do("load %s", library)
			// Found or known ahead, it is probed when a call counts.
			c.do("begin")
			eventually(t, "a call is counted", func() bool {
				c.do("htod 1 1")
				return groupOf(child.ask().Groups, g.id).HostToDevice.Calls > 0
			})
			before := groupOf(child.ask().Groups, g.id)
			c.do("htod 7 100")
			c.do("ioctl /dev/null 9")
			after := groupOf(child.ask().Groups, g.id)
			if calls, bytes := after.HostToDevice.Calls-before.HostToDevice.Calls, after.HostToDevice.Bytes-before.HostToDevice.Bytes; calls != 7 || bytes != 700 {
				t.Errorf("%d copies of %d bytes counted, want 7 of 700", calls, bytes)
			}
			want := uint64(0)
			if row.ioctls {
				want = 9
			}
			if n := after.Ioctls - before.Ioctls; n != want || child.ask().Status.Ioctls != row.ioctls {
				t.Errorf("%d ioctls counted, want %d", n, want)
			}
		})
	}
}

func groupOf(groups []Group, id uint64) Group {
	for _, g := range groups {
		if g.CgroupID == id {
			return g
		}
	}
	return Group{}
}

func mustSay(t *testing.T, text string, words []string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("reason %q, want %q in it", text, word)
		}
	}
	if strings.Contains(text, "\n") {
		t.Errorf("reason of several lines: %q", text)
	}
}

func setParanoid(t *testing.T, value string) {
	t.Helper()
	const file = "/proc/sys/kernel/perf_event_paranoid"
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	err = os.WriteFile(file, []byte(value), 0o644)
	require.Need(t, "sysctl", err == nil, fmt.Sprint(err))
	t.Cleanup(func() { _ = os.WriteFile(file, old, 0o644) })
}

// TestExplain: the reasons that this machine's kernel cannot give.
func TestExplain(t *testing.T) {
	all := uint64(1)<<unix.CAP_BPF | 1<<unix.CAP_PERFMON
	denied := fmt.Errorf("load program: %w", unix.EPERM)
	for _, row := range []struct {
		name string
		m    machine
		err  error
		n    Numbering
		want []string
	}{
		{"old kernel asks for SYS_ADMIN", machine{kernel: "5.4.0"}, denied, NumberingUnified, []string{"CAP_BPF and CAP_PERFMON missing", "before 5.8: CAP_SYS_ADMIN"}},
		{"paranoid distribution", machine{caps: all, paranoid: 4}, denied, NumberingUnified, []string{"kernel.perf_event_paranoid is 4"}},
		{"paranoid distribution, other answer", machine{caps: all, paranoid: 3}, unix.EACCES, NumberingUnified, []string{"perf_event_paranoid is 3", "CAP_SYS_ADMIN"}},
		{"lockdown", machine{caps: all, lockdown: "confidentiality"}, denied, NumberingUnified, []string{"lockdown", "confidentiality"}},
		{"no bpf in the kernel", machine{caps: all}, unix.ENOSYS, NumberingUnified, []string{"CONFIG_BPF_SYSCALL"}},
		{"no types", machine{caps: all, types: os.ErrNotExist}, errors.New("no BTF found"), NumberingLegacy, []string{typesFile, "version 1", "CONFIG_DEBUG_INFO_BTF"}},
		{"link type missing", machine{caps: all, kernel: "5.10.0"}, fmt.Errorf("attach: %w", ebpf.ErrNotSupported), NumberingUnified, []string{"kernel 5.10.0", "5.15", "6.6"}},
		{"anything else", machine{caps: all}, errors.New("disk on fire\nlog"), NumberingUnified, []string{"disk on fire"}},
	} {
		t.Run(row.name, func(t *testing.T) { mustSay(t, row.m.explain(row.err, row.n), row.want) })
	}
}
