// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The arithmetic of pressure against that of the kernel: as it is published, and as a kernel that runs does it.

package contention

import (
	"fmt"
	"math"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// published is the arithmetic of kernel/sched/psi.c and loadavg.c, written from their text alone: three averages in
// 11-bit fixed point percents, in units of its own nanoseconds.
type published struct {
	lastUpdate, nextUpdate uint64
	total, avgTotal        uint64
	avg                    [3]uint64
}

const publishedPeriod = 2_000_000_000

func (p *published) at(now uint64) {
	if now < p.nextUpdate {
		return
	}
	missed := uint64(0)
	if now-p.nextUpdate >= publishedPeriod {
		missed = (now - p.nextUpdate) / publishedPeriod
	}
	period := now - (p.lastUpdate + missed*publishedPeriod)
	p.nextUpdate += (1 + missed) * publishedPeriod
	p.lastUpdate = now
	sample := min(p.total-p.avgTotal, period)
	p.avgTotal += sample
	percent := sample * 100 / period * 2048
	for i, exp := range []uint64{1677, 1981, 2034} {
		if missed > 0 { // calc_load_n with nothing active
			power, x := uint64(2048), exp
			for n := missed; ; {
				if n%2 == 1 {
					power = (power*x + 1024) / 2048
				}
				if n /= 2; n == 0 {
					break
				}
				x = (x*x + 1024) / 2048
			}
			load := p.avg[i] * power
			if p.avg[i] == 0 {
				load += 2047
			}
			p.avg[i] = load / 2048
		}
		load := p.avg[i]*exp + percent*(2048-exp)
		if percent >= p.avg[i] {
			load += 2047
		}
		p.avg[i] = load / 2048
	}
}

// series is lost time by moment, of several kinds.
var series = map[string]func(random *rand.Rand, at time.Duration) float64{
	"steady":     func(*rand.Rand, time.Duration) float64 { return 0.35 },
	"all":        func(*rand.Rand, time.Duration) float64 { return 1 },
	"in excess":  func(_ *rand.Rand, at time.Duration) float64 { return 3 * float64((at/(7*time.Second))%2) },
	"bursts":     func(_ *rand.Rand, at time.Duration) float64 { return float64(b(at%time.Minute < 10*time.Second)) },
	"random":     func(random *rand.Rand, _ time.Duration) float64 { return random.Float64() },
	"next to no": func(random *rand.Rand, _ time.Duration) float64 { return 0.004 * random.Float64() },
}

func b(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Exactly the published arithmetic, looked at often, seldom, and with pauses of many periods; and within a percent of what it
// stands for, means with exponential weights.
func TestPressureIsThatOfTheKernel(t *testing.T) {
	for name, lost := range series {
		for _, every := range []time.Duration{100 * ms, time.Second, 1300 * ms, 4500 * ms} {
			random := rand.New(rand.NewSource(7))
			start := time.Hour
			kernel := published{lastUpdate: uint64(start), nextUpdate: uint64(start) + publishedPeriod}
			clock := pressureClock{}.begin(start)
			ours, exact := meter{}, [3]float64{}
			updates := 0
			for now := start; now < start+20*time.Minute; {
				step := every + time.Duration(random.Int63n(int64(every)/4))
				if random.Intn(200) == 0 {
					step = time.Duration(random.Intn(90)) * time.Second
				}
				step = max(step, ms)
				now += step
				part := scaled(min(step, every), lost(random, now-start))
				kernel.total += uint64(part)
				ours.lose(part)
				kernel.at(uint64(now))
				sampled := ours.sampled
				next, passed, ended := clock.end(now)
				if !ended {
					continue
				}
				clock = next
				ours.update(passed)
				updates++
				for i, over := range []float64{10, 60, 300} {
					exact[i] *= math.Exp(-2 * float64(passed.missed) / over)
					exact[i] += ((ours.sampled-sampled).Seconds()/passed.period.Seconds() - exact[i]) * (1 - math.Exp(-2/over))
				}
				got := [3]uint64{uint64(ours.avg10), uint64(ours.avg60), uint64(ours.avg300)}
				if got != kernel.avg || uint64(ours.total) != kernel.total || uint64(ours.sampled) != kernel.avgTotal {
					t.Fatalf("%s, every %s, at %s: %v, %+v; the kernel has %+v", name, every, now-start, got, ours, kernel)
				}
				published := ours.averages()
				for i, got := range []float64{published.Avg10, published.Avg60, published.Avg300} {
					if math.Abs(got-exact[i]) > 0.011 {
						t.Fatalf("%s, every %s, at %s: average %d is %.4f, exactly %.4f", name, every, now-start, i, got, exact[i])
					}
				}
			}
			if updates < 50 {
				t.Errorf("%s, every %s: %d updates", name, every, updates)
			}
		}
	}
}

// A control group whose processes are kept waiting for a CPU, in turns: what the kernel says of it, and what we make of the
// same lost time, differ by less than a percent.
func TestPressureOfAControlGroup(t *testing.T) {
	require.Root(t)
	t.Parallel()
	group := makeGroup(t)
	pids := spin(t, group, 3)
	first := readPressure(t, group)
	start := time.Now()
	clock, ours := pressureClock{}.begin(0), meter{}
	lastTotal, compared := first.total, 0
	kernel, far := first, 0
	for now := time.Duration(0); now < 16*time.Second; now = time.Since(start) {
		signal := syscall.SIGCONT
		if now%(5*time.Second) > 3*time.Second {
			signal = syscall.SIGSTOP
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, signal); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(20 * ms)
		read := readPressure(t, group) // updates the kernel's averages, if a period is over
		if read.avg != kernel.avg {    // a period of the kernel's is over: ours ends with it, for they are 1 to 10 ms longer
			passed := span{period: time.Since(start) - clock.last}
			clock.last = time.Since(start)
			ours.lose(time.Duration(read.total-lastTotal) * time.Microsecond)
			lastTotal = read.total
			ours.update(passed)
			compared++
			averages := ours.averages()
			for i, got := range []float64{averages.Avg10, averages.Avg60, averages.Avg300} {
				if wrong := math.Abs(got - read.avg[i]/100); wrong > 0.05 {
					t.Errorf("at %s: average %d is %.4f, the kernel's %.4f", now, i, got, read.avg[i]/100)
				} else if wrong > 0.01 {
					far++
					t.Logf("at %s: average %d is %.4f, the kernel's %.4f", now, i, got, read.avg[i]/100)
				}
			}
		}
		kernel = read
	}
	require.Need(t, "psi", compared >= 4 && kernel.avg[0] > 5, "the kernel had next to no pressure to show")
	if far > 3*compared/8 { // now and then this process is late itself, and reads more than the kernel had
		t.Errorf("%d of %d averages are more than a percent from the kernel's", far, 3*compared)
	}
}

// makeGroup makes a control group that has pressure files.
func makeGroup(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		group := filepath.Join(root, fmt.Sprintf("vgpud-pressure-%d", os.Getpid()))
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		if err := os.Mkdir(group, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			for range 100 { // its processes end a little later than they are killed
				if err := os.Remove(group); err == nil {
					return
				}
				time.Sleep(20 * ms)
			}
			t.Errorf("%s cannot be removed", group)
		})
		if _, err := os.ReadFile(filepath.Join(group, "cpu.pressure")); err == nil {
			return group
		}
	}
	require.Need(t, "psi", false, "no control group with pressure files can be made")
	return ""
}

// spin starts processes that compute for ever, on one CPU of a control group.
func spin(t *testing.T, group string, count int) []int {
	t.Helper()
	shell, taskset := require.Tool(t, "sh"), require.Tool(t, "taskset")
	var pids []int
	for range count {
		command := exec.Command(taskset, "-c", "0", shell, "-c", "while :; do :; done")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := command.Process.Kill(); err != nil {
				t.Error(err)
			}
			if err := command.Wait(); err == nil {
				t.Error("a process that computes for ever has ended")
			}
		})
		pids = append(pids, command.Process.Pid)
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(command.Process.Pid)), 0); err != nil {
			require.Need(t, "psi", false, "no process can be moved into a control group: "+err.Error())
		}
	}
	return pids
}

// pressureLine is the first line of a pressure file, in percent and microseconds.
type pressureLine struct {
	avg   [3]float64
	total int64
}

func readPressure(t *testing.T, group string) pressureLine {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(group, "cpu.pressure"))
	if err != nil {
		t.Fatal(err)
	}
	var read pressureLine
	line, _, _ := strings.Cut(string(text), "\n")
	if _, err := fmt.Sscanf(line, "some avg10=%f avg60=%f avg300=%f total=%d", &read.avg[0], &read.avg[1], &read.avg[2],
		&read.total); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return read
}
