// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Many real processes on one pair of pages: races for the last bytes, and kills at random instructions.

package limiter_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/limiter"
)

const mib = 1 << 20

// driver mirrors struct driver of testdata/worker.c: one word per field, in its order.
type driver struct {
	path   string
	mapped []byte
}

const (
	wordHeld = iota
	wordHighWater
	wordAdmitted
	wordRefused
	wordErrors
	wordSlowestNS
	wordObservations
	wordObservedHigh
	wordReady
	wordStart
	wordStop
	wordCount
)

func newDriver(t *testing.T) *driver {
	t.Helper()
	path := filepath.Join(t.TempDir(), "driver")
	if err := os.WriteFile(path, make([]byte, wordCount*8), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped, err := unix.Mmap(int(file.Fd()), 0, wordCount*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mapped) })
	return &driver{path: path, mapped: mapped}
}

func (d *driver) word(i int) *uint64 { return (*uint64)(unsafe.Pointer(&d.mapped[i*8])) }

func (d *driver) get(i int) uint64 { return atomic.LoadUint64(d.word(i)) }

func (d *driver) set(i int) { atomic.StoreUint64(d.word(i), 1) }

// waitFor polls until the word is at least want.
func (d *driver) waitFor(t *testing.T, i int, want uint64) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for d.get(i) < want {
		if time.Now().After(deadline) {
			t.Fatalf("word %d is %d, still not %d", i, d.get(i), want)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// workerDir holds the worker, built once.
var workerDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "limiter-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	workerDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// buildWorker compiles testdata/worker.c with the core.
func buildWorker(t *testing.T) string {
	t.Helper()
	cc := require.Tool(t, "gcc")
	binary := filepath.Join(workerDir, "worker")
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	sources, err := filepath.Glob("../libvgpu/core/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("sources of the core: %v, %v", sources, err)
	}
	args := append([]string{"-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", binary,
		"testdata/worker.c"}, sources...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("build worker: %v\n%s", err, out)
	}
	return binary
}

// start starts a worker; it is killed when the test ends, if it still runs.
func start(t *testing.T, binary string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

func wait(t *testing.T, cmds ...*exec.Cmd) {
	t.Helper()
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("worker: %v", err)
		}
	}
}

// TestRace: 8 processes with 4 threads each, 10^5 rounds together: what the driver holds is never above the limit,
// and neither is any stable sum of the page.
func TestRace(t *testing.T) {
	const processes, threads, rounds, limit = 8, 4, 3200, 1000 * mib
	worker, dir, d := buildWorker(t), newPages(t, limit), newDriver(t)
	observer := start(t, worker, "observe", dir, d.path)
	var cmds []*exec.Cmd
	for range processes {
		cmds = append(cmds, start(t, worker, "race", dir, d.path, fmt.Sprint(threads), fmt.Sprint(rounds)))
	}
	d.waitFor(t, wordReady, processes+1)
	d.set(wordStart)
	wait(t, cmds...)
	d.set(wordStop)
	wait(t, observer)

	if got := d.get(wordHighWater); got > limit {
		t.Errorf("driver held %d bytes, limit %d", got, limit)
	}
	if got := d.get(wordObservedHigh); got > limit {
		t.Errorf("usage page charged %d bytes, limit %d", got, limit)
	}
	admitted, refused := d.get(wordAdmitted), d.get(wordRefused)
	t.Logf("%d admitted, %d refused, high water %d MiB, %d observations up to %d MiB, slowest request %v", admitted, refused,
		d.get(wordHighWater)/mib, d.get(wordObservations), d.get(wordObservedHigh)/mib, time.Duration(d.get(wordSlowestNS)))
	if admitted+refused != processes*threads*rounds || d.get(wordErrors) != 0 {
		t.Errorf("%d rounds, %d errors, want %d rounds without error", admitted+refused, d.get(wordErrors), processes*threads*rounds)
	}
	if admitted == 0 || refused == 0 || d.get(wordObservations) == 0 {
		t.Error("nothing admitted, nothing refused or nothing observed: no race took place")
	}
	if u := readUsage(t, dir); u.Devices[0].UsedBytes != 0 || u.Devices[0].Allocations != admitted ||
		u.Devices[0].Frees != admitted || u.Devices[0].Refusals != refused {
		t.Errorf("usage page after the race: %+v, want nothing used, %d admitted, %d refused", u.Devices[0], admitted, refused)
	}
}

// TestExactlyThreeOfEight: 8 processes ask for 300 MiB of 1000 MiB at once; exactly 3 get it, in every round.
func TestExactlyThreeOfEight(t *testing.T) {
	const rounds, processes, bytes, limit = 50, 8, 300 * mib, 1000 * mib
	worker, dir := buildWorker(t), newPages(t, limit)
	for round := range rounds {
		d := newDriver(t)
		var cmds []*exec.Cmd
		for range processes {
			cmds = append(cmds, start(t, worker, "hold", dir, d.path, fmt.Sprint(bytes)))
		}
		d.waitFor(t, wordReady, processes)
		d.set(wordStart)
		deadline := time.Now().Add(30 * time.Second)
		for d.get(wordAdmitted)+d.get(wordRefused) < processes && time.Now().Before(deadline) {
			time.Sleep(100 * time.Microsecond)
		}
		if u := readUsage(t, dir); u.Devices[0].UsedBytes != 3*bytes {
			t.Errorf("round %d: %d bytes used, want 3 times 300 MiB", round, u.Devices[0].UsedBytes)
		}
		d.set(wordStop)
		wait(t, cmds...)
		if admitted, refused := d.get(wordAdmitted), d.get(wordRefused); admitted != 3 || refused != 5 {
			t.Fatalf("round %d: %d admitted and %d refused, want 3 and 5", round, admitted, refused)
		}
	}
}

// TestKills: workers are killed at random instructions, many while they register or reserve. No charge stays, no
// request hangs, no sum passes the limit.
func TestKills(t *testing.T) {
	const limit, atOnce = 1000 * mib, 3
	kills := 1000
	if testing.Short() {
		kills = 100
	}
	worker, dir, d := buildWorker(t), newPages(t, limit), newDriver(t)
	observer := start(t, worker, "observe", dir, d.path)
	d.waitFor(t, wordReady, 1)
	running := make([]*exec.Cmd, atOnce)
	for i := range running {
		running[i] = start(t, worker, "loop", dir, d.path)
	}
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range kills {
		i := random.IntN(atOnce)
		kill(t, running[i])
		ready := d.get(wordReady)
		running[i] = start(t, worker, "loop", dir, d.path)
		if random.IntN(8) == 0 { // else one of them may be killed while it registers
			d.waitFor(t, wordReady, ready+1)
		}
		time.Sleep(time.Duration(random.IntN(1000)) * time.Microsecond)
	}
	for _, cmd := range running {
		kill(t, cmd)
	}
	d.set(wordStop)
	wait(t, observer)

	slowest := time.Duration(d.get(wordSlowestNS))
	t.Logf("%d admitted, %d refused, %d observations up to %d MiB, slowest request %v", d.get(wordAdmitted),
		d.get(wordRefused), d.get(wordObservations), d.get(wordObservedHigh)/mib, slowest)
	if got := d.get(wordObservedHigh); got > limit || d.get(wordObservations) == 0 {
		t.Errorf("usage page charged %d bytes in %d observations, limit %d", got, d.get(wordObservations), limit)
	}
	if slowest > 10*time.Second || d.get(wordErrors) != 0 {
		t.Errorf("slowest request %v, %d errors", slowest, d.get(wordErrors))
	}
	book := openBook(t, dir)
	from := time.Now()
	if err := book.Reserve(0, limiter.KindDevice, limit); err != nil {
		t.Errorf("reserve all after the kills: %v", err)
	}
	if took := time.Since(from); took > 5*time.Second {
		t.Errorf("reserve all after the kills took %v", took)
	}
	if u := readUsage(t, dir); u.Devices[0].UsedBytes != limit {
		t.Errorf("%d bytes used, want %d", u.Devices[0].UsedBytes, limit)
	}
}

func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("worker ended by itself: %v", err)
	}
}

// TestTruncatedUnderReader: a container that cuts the page off and grows it again, all the time, never harms a
// reader.
func TestTruncatedUnderReader(t *testing.T) {
	dir := newPages(t, mib)
	path := filepath.Join(dir, limiter.UsageFile)
	size := fileSize(t, path)
	stop := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			for _, s := range []int64{0, 100, size * 3, size} {
				if err := os.Truncate(path, s); err != nil {
					done <- err
					return
				}
			}
		}
	}()
	for range 2000 {
		if u, err := limiter.ReadUsage(dir); err == nil && u.Devices[0].UsedBytes != 0 {
			t.Fatalf("empty page has %d bytes used", u.Devices[0].UsedBytes)
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := limiter.RestoreUsage(dir); err != nil {
		t.Fatal(err)
	}
	readUsage(t, dir)
}

// words of a little-endian page file, for tests that tamper.
func pokeUint64(t *testing.T, path string, offset int64, value uint64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(binary.LittleEndian.AppendUint64(nil, value), offset); err != nil {
		t.Fatal(err)
	}
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	return size
}
