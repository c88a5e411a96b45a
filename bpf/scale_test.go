// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Many containers, and what probes cost. The figures are benchmarks; tests assert only what holds on a busy machine.

package bpf

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
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
	least := emptyHit(t, false)
	t.Logf("a hit costs %v (single-stepped %v), with empty programs %v", s.HitCost, s.SteppedCost, least)
	if s.HitCost > least+least/2+2*time.Microsecond {
		t.Errorf("a hit costs %v, with empty programs %v", s.HitCost, least)
	}
}

// emptyPrograms is a mechanism of two links whose programs do nothing: what it takes is the kernel's own.
func emptyPrograms(t testing.TB) *loaded {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: ebpf.AttachTraceUprobeMulti, License: "MIT",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = program.Close() })
	n := numbering()
	return &loaded{mechanism: MechanismMulti, numbering: n, collection: &ebpf.Collection{Programs: map[string]*ebpf.Program{
		"entry_" + string(n): program, "return_" + string(n): program,
	}}}
}

// emptyHit measures an entry and a return probe whose program does nothing, or the entry's alone.
func emptyHit(t testing.TB, entryAlone bool) time.Duration {
	t.Helper()
	d, err := openDryRun()
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	return emptyHitAt(t, d, driverLike, d.emulate, entryAlone)
}

func emptyHitAt(t testing.TB, d *dryRun, function int, place placed, entryAlone bool) time.Duration {
	t.Helper()
	probes, err := emptyPrograms(t).attach(d.file, []placed{place})
	if err != nil {
		t.Fatal(err)
	}
	defer probes.Close()
	if entryAlone {
		if err := probes[1].Close(); err != nil {
			t.Fatal(err)
		}
	}
	return d.time(function, 16, 160)
}

// BenchmarkTrap is what the kernel itself takes for a hit, with a program that does nothing, by the instruction that is
// probed, beside a system call that does nothing.
func BenchmarkTrap(b *testing.B) {
	if runtime.GOARCH != "amd64" {
		b.Skip("the functions are machine code of x86")
	}
	const at = 16
	for _, row := range []struct {
		name string
		code []byte // of a function that returns
	}{
		{"short je", []byte{0x74, 0x00, 0xc3}},
		{"push", []byte{0x55, 0x5d, 0xc3}},
		{"nop", []byte{0x90, 0xc3}},
		{"nop of 5 bytes (6.18: a system call)", []byte{0x0f, 0x1f, 0x44, 0, 0, 0xc3}},
		{"cmpl (single-stepped)", []byte{0x81, 0x3d, 0, 0, 0, 0, 0, 0, 0, 0, 0xc3}},
	} {
		b.Run(row.name, func(b *testing.B) {
			require.Root(b)
			code := make([]byte, os.Getpagesize())
			copy(code[at:], row.code)
			d, err := mapCode(code)
			if err != nil {
				b.Fatal(err)
			}
			defer d.close()
			for b.Loop() {
				b.ReportMetric(float64(emptyHitAt(b, d, at, placed{offset: at}, true).Nanoseconds()), "ns/entry")
				b.ReportMetric(float64(emptyHitAt(b, d, at, placed{offset: at}, false).Nanoseconds()), "ns/entry-and-return")
			}
			b.ReportMetric(float64(systemCall().Nanoseconds()), "ns/system-call")
		})
	}
}

// systemCall is the processor time of one that does nothing.
func systemCall() time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const calls = 1000
	least := time.Duration(1<<63 - 1)
	for range 16 {
		start := threadTime()
		for range calls {
			_, _, _ = unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0)
		}
		least = min(least, (threadTime()-start)/calls)
	}
	return least
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
			b.ReportMetric(float64(emptyHit(b, false).Nanoseconds()), "ns/empty-hit")
			b.ReportMetric(float64(emptyHit(b, true).Nanoseconds()), "ns/empty-entry")
		})
	}
}

// BenchmarkAttach attaches to the whole driver, while one program or 500 have it mapped, and detaches; also to what is
// probed in mode sampled, and with programs that do nothing, which shows what is the kernel's.
func BenchmarkAttach(b *testing.B) {
	for _, row := range []struct {
		mechanism Mechanism // "": two links of programs that do nothing
		users     int
		mode      Mode
	}{
		{MechanismSession, 1, ModeFull}, {MechanismMulti, 1, ModeFull},
		{MechanismSession, containers, ModeFull}, {MechanismMulti, containers, ModeFull}, {"", containers, ModeFull},
		{MechanismSession, containers, ModeSampled},
	} {
		b.Run(fmt.Sprintf("%s %s users=%d", cmp.Or(row.mechanism, "empty uprobe.multi"), row.mode, row.users), func(b *testing.B) {
			require.Root(b)
			library := hostCopy(b)
			l := emptyPrograms(b)
			if row.mechanism != "" {
				var err error
				l, err = load(row.mechanism, numbering())
				require.Need(b, "bpf", err == nil, fmt.Sprint(err))
				defer l.close()
			}
			file, err := os.Open(library)
			if err != nil {
				b.Fatal(err)
			}
			defer file.Close()
			c := startCaller(b, cards(b), "")
			c.do("load %s", library)
			c.do("crowd %d", row.users-1)
			d, err := place(simImage(b))
			if err != nil {
				b.Fatal(err)
			}
			attachAndDetach(b, l, file, slices.DeleteFunc(distinct(d.functions), func(p placed) bool { return row.mode == ModeSampled && !p.rare() }))
		})
	}
}

// attachAndDetach reports times by the clock, and of those what the thread was at work, and what it was kept from that by
// others who had the processor. What is left of them it waited for the kernel's grace periods.
func attachAndDetach(b *testing.B, l *loaded, file *os.File, places []placed) {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var attaching, detaching, working, queued time.Duration
	for b.Loop() {
		start, before, kept := time.Now(), threadTime(), keptWaiting(b)
		probes, err := l.attach(file, places)
		if err != nil {
			b.Fatal(err)
		}
		attaching += time.Since(start)
		start = time.Now()
		if err := probes.Close(); err != nil {
			b.Fatal(err)
		}
		detaching += time.Since(start)
		working += threadTime() - before
		queued += keptWaiting(b) - kept
	}
	report := func(d time.Duration, unit string) {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), unit)
	}
	report(attaching, "ms/attach")
	report(detaching, "ms/detach")
	report(working, "cpu-ms/both")
	report(queued, "queued-ms/both")
	b.ReportMetric(float64(len(places)), "functions")
}

// keptWaiting is how long this thread has waited for a processor.
func keptWaiting(b *testing.B) time.Duration {
	b.Helper()
	raw, err := os.ReadFile("/proc/thread-self/schedstat")
	if err != nil {
		b.Fatal(err)
	}
	var ran, waited int64
	if _, err := fmt.Sscan(string(raw), &ran, &waited); err != nil {
		b.Fatal(err)
	}
	return time.Duration(waited)
}

// BenchmarkFiles attaches to as many private copies of the driver as are probed at most, and detaches from all, as the agent
// does when it stops.
func BenchmarkFiles(b *testing.B) {
	for _, m := range []Mechanism{MechanismSession, MechanismMulti, MechanismSingle} {
		b.Run(string(m), func(b *testing.B) {
			require.Root(b)
			l, err := load(m, numbering())
			require.Need(b, "bpf", err == nil, fmt.Sprint(err))
			defer l.close()
			d, err := place(simImage(b))
			if err != nil {
				b.Fatal(err)
			}
			places := distinct(d.functions)
			files := make([]*os.File, maxLibraries)
			if m == MechanismSingle {
				places, files = slices.DeleteFunc(places, func(p placed) bool { return !p.rare() }), files[:4]
			}
			for i := range files {
				if files[i], err = os.Open(hostCopy(b)); err != nil {
					b.Fatal(err)
				}
				defer files[i].Close()
			}
			var attaching, detaching time.Duration
			for b.Loop() {
				w := &watcher{loaded: l, libraries: map[fileID]*library{}}
				start := time.Now()
				for i, file := range files {
					one := &library{}
					if err := w.attach(one, file, slices.Clone(places)); err != nil {
						b.Fatal(err)
					}
					w.libraries[fileID{inode: uint64(i)}] = one
				}
				attaching += time.Since(start)
				start = time.Now()
				if err := w.close(); err != nil {
					b.Fatal(err)
				}
				detaching += time.Since(start)
			}
			b.ReportMetric(float64(attaching.Milliseconds())/float64(b.N), "ms/attach")
			b.ReportMetric(float64(detaching.Milliseconds())/float64(b.N), "ms/detach")
			b.ReportMetric(float64(len(files)), "files")
			b.ReportMetric(float64(len(places)), "functions")
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

// BenchmarkContainer is what probes take of a container's processor time, by how often it calls: calls that are counted,
// and those over the cap, which are missed and pay for the trap alone. The budget is half a percent.
func BenchmarkContainer(b *testing.B) {
	library := filepath.Join(require.Sim(b), "libcuda.so.1")
	for _, row := range []struct {
		name string
		cap  int
	}{{"counted", 1e8}, {"over the cap", 1}} {
		b.Run(row.name, func(b *testing.B) {
			p := openProbes(b, Options{Cap: row.cap})
			c := startCaller(b, cards(b), "")
			c.do("load %s", library)
			awaitProbed(b, p, c.Pid)
			c.do("begin")
			const calls = 2000
			least := 1 << 62
			for b.Loop() {
				for range 20 {
					least = min(least, c.do("quick %d", calls))
				}
			}
			if err := p.Close(); err != nil {
				b.Fatal(err)
			}
			bare := 1 << 62
			for range 20 {
				bare = min(bare, c.do("quick %d", calls))
			}
			added := time.Duration(least - bare)
			b.ReportMetric(float64(added.Nanoseconds()), "ns/call")
			for _, rate := range []int{capFor(added), 1000, 5000, 16000} {
				name := fmt.Sprintf("%%-at-%d/s", rate)
				if rate == capFor(added) {
					name = "%-at-the-cap"
				}
				b.ReportMetric(100*added.Seconds()*float64(rate), name)
			}
			b.ReportMetric(float64(capFor(added)), "calls/s-in-the-budget")
		})
	}
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
