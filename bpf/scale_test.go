// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Many containers, and what probes cost. The figures are benchmarks; tests assert only what holds on a busy machine.

package bpf

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
)

const containers = 500

// TestManyContainers: 500 control groups, each with a program in a mount namespace of its own that sees the host's library
// by a bind mount of its own: one file is probed, each call counts once, and each group's counts are its own.
func TestManyContainers(t *testing.T) {
	library := hostCopy(t)
	p := openProbes(t, Options{Libraries: []string{library}})
	host := awaitProbed(t, p, 0)
	groups := make([]group, containers)
	for i := range groups {
		groups[i] = newGroup(t, p.Status().Numbering)
	}
	c := startCaller(t, cards(t), "")
	for i, g := range groups {
		c.do("container %s %s %d %d", g.dir, library, 1+i%7, 10+i)
	}
	if s := p.Status(); len(probedBy(p, 0)) != 1 || !isProbed(p, host) || s.Reason != "" {
		t.Errorf("probed ahead: %v, %s", probedBy(p, 0), s.Reason)
	}
	rows, err := p.Groups()
	if err != nil {
		t.Fatal(err)
	}
	for i, g := range groups {
		got, calls := groupOf(rows, g.id), uint64(1+i%7)
		if got.HostToDevice.Calls != calls || got.HostToDevice.Bytes != calls*uint64(10+i) || got.Retained != 1 {
			t.Fatalf("container %d: %+v, want %d copies of %d bytes", i, got, calls, 10+i)
		}
	}
}

// TestCostIsNearTheLeast: a hit in a driver, entry and return, costs little more than the kernel takes for a return probe
// that does nothing, and far less than one that is single-stepped.
func TestCostIsNearTheLeast(t *testing.T) {
	require.Root(t)
	p := openProbes(t, Options{})
	s := p.Status()
	least := emptyHit(t, p.loaded)
	t.Logf("a hit costs %v (single-stepped %v), with empty programs %v", s.HitCost, s.SteppedCost, least)
	if s.HitCost > 4*least+2*time.Microsecond {
		t.Errorf("a hit costs %v, with empty programs %v", s.HitCost, least)
	}
}

// emptyHit measures a return probe whose program does nothing.
func emptyHit(t testing.TB, l *loaded) time.Duration {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	empty := &loaded{mechanism: MechanismMulti, numbering: l.numbering, collection: &ebpf.Collection{Programs: map[string]*ebpf.Program{
		"entry_" + string(l.numbering): program, "return_" + string(l.numbering): program,
	}}}
	d, err := openDryRun()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	probes, err := empty.attach(d.file, []placed{d.emulate})
	if err != nil {
		t.Fatal(err)
	}
	defer probes.Close()
	return d.time(driverLike, 8, 160)
}

// BenchmarkHit is what a probed call takes, by mechanism.
func BenchmarkHit(b *testing.B) {
	for _, m := range []Mechanism{MechanismSession, MechanismMulti} {
		b.Run(string(m), func(b *testing.B) {
			require.Root(b)
			l, err := load(m, numbering())
			require.Need(b, "bpf", err == nil, fmt.Sprint(err))
			defer l.close()
			for b.Loop() {
				c, err := l.measure()
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(c.emulated.Nanoseconds()), "ns/hit")
				b.ReportMetric(float64(c.stepped.Nanoseconds()), "ns/stepped-hit")
			}
			b.ReportMetric(float64(emptyHit(b, l).Nanoseconds()), "ns/empty-hit")
		})
	}
}

// BenchmarkAttach attaches to the whole driver, while one program or 500 have it mapped, and detaches.
func BenchmarkAttach(b *testing.B) {
	for _, row := range []struct {
		mechanism Mechanism
		users     int
	}{{MechanismSession, 1}, {MechanismMulti, 1}, {MechanismSession, containers}, {MechanismMulti, containers}} {
		m := row.mechanism
		b.Run(fmt.Sprintf("%s users=%d", m, row.users), func(b *testing.B) {
			require.Root(b)
			library := hostCopy(b)
			l, err := load(m, numbering())
			require.Need(b, "bpf", err == nil, fmt.Sprint(err))
			defer l.close()
			file, err := os.Open(library)
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			c := startCaller(b, cards(b), "")
			c.do("load %s", library)
			c.do("crowd %d", row.users-1)
			im, err := openImage(file)
			if err != nil {
				b.Fatal(err)
			}
			d, err := place(im)
			if err != nil {
				b.Fatal(err)
			}
			var attaching, detaching, processor time.Duration
			for b.Loop() {
				start, before := time.Now(), ownTime(b)
				probes, err := l.attach(file, distinct(d.functions))
				if err != nil {
					b.Fatal(err)
				}
				attaching += time.Since(start)
				start = time.Now()
				if err := probes.Close(); err != nil {
					b.Fatal(err)
				}
				detaching += time.Since(start)
				processor += ownTime(b) - before
			}
			b.ReportMetric(float64(attaching.Milliseconds())/float64(b.N), "ms/attach")
			b.ReportMetric(float64(detaching.Milliseconds())/float64(b.N), "ms/detach")
			b.ReportMetric(float64(processor.Milliseconds())/float64(b.N), "cpu-ms/both")
			b.ReportMetric(float64(len(d.functions)), "functions")
		})
	}
}

// BenchmarkRead reads the counts of 500 control groups.
func BenchmarkRead(b *testing.B) {
	require.Root(b)
	l, err := load("", numbering())
	require.Need(b, "bpf", err == nil, fmt.Sprint(err))
	defer l.close()
	m := l.collection.Maps[probesMapGroups]
	for i := range containers {
		if err := m.Put(uint64(i), probesCounts{Ioctls: 1}); err != nil {
			b.Fatal(err)
		}
	}
	var r reader
	for b.Loop() {
		groups, err := r.read(m)
		if err != nil || len(groups) != containers {
			b.Fatalf("%d groups, %v", len(groups), err)
		}
	}
}

// BenchmarkContainer is the share of a container's processor time that probes take at a thousand calls a second.
func BenchmarkContainer(b *testing.B) {
	library := filepath.Join(require.Sim(b), "libcuda.so.1")
	p := openProbes(b, Options{})
	c := startCaller(b, cards(b), "")
	c.do("load %s", library)
	awaitProbed(b, p, c.Pid)
	c.do("begin")
	least := 1 << 62
	for b.Loop() {
		least = min(least, c.do("quick 2000"))
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
	bare := 1 << 62
	for range 20 {
		bare = min(bare, c.do("quick 2000"))
	}
	added := float64(least - bare)
	b.ReportMetric(added, "ns/call")
	b.ReportMetric(added*1000/1e9*100, "%-at-1000/s")
}

// BenchmarkIdle is the processor time that looking for libraries takes of one core, with nothing to find.
func BenchmarkIdle(b *testing.B) {
	openProbes(b, Options{})
	runtime.GC()
	time.Sleep(5 * time.Second) // memory of loading is given back
	for b.Loop() {
		start, before := time.Now(), ownTime(b)
		time.Sleep(5 * time.Second)
		b.ReportMetric(100*float64(ownTime(b)-before)/float64(time.Since(start)), "%-of-a-core")
	}
}

// BenchmarkIoctl is what the tracepoint adds to an ioctl on another device, and to any other call of the kernel.
func BenchmarkIoctl(b *testing.B) {
	measure := func(c *caller) (ioctl, other int) {
		ioctl, other = 1<<62, 1<<62
		for range 20 {
			ioctl, other = min(ioctl, c.do("control 5000")), min(other, c.do("syscalls 5000"))
		}
		return ioctl, other
	}
	for b.Loop() {
		c := startCaller(b, cards(b), "")
		ioctl, other := measure(c)
		p := openProbes(b, Options{Dev: nullDevices(b)})
		if !p.Status().Ioctls {
			b.Fatal("ioctls are not counted")
		}
		ioctlWith, otherWith := measure(c)
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(ioctl), "ns/ioctl-without")
		b.ReportMetric(float64(ioctlWith), "ns/ioctl")
		b.ReportMetric(float64(other), "ns/other-without")
		b.ReportMetric(float64(otherWith), "ns/other")
	}
}

// ownTime is the processor time of the test so far.
func ownTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
