// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

const (
	// As a pod's slices are spread over the GPUs, these pods have 3, 5 and 6 slices of each of the two.
	slices30 = gpuCount * 3
	slices50 = gpuCount * 5
	slices60 = gpuCount * 6

	computeSettle = time.Second // from which on shares are judged
	// computeRun is how long two pods are watched, in real time.
	computeRun = 30 * time.Second
)

// flooding is a pod that keeps both GPUs busy with kernels of this name, until it is deleted.
func flooding(t *testing.T, name string, slices int, kernel string, options ...string) {
	t.Helper()
	create(t, newPod(name, slices, append([]string{floodPath, "kernel=" + kernel, "seconds=3600", fmt.Sprintf("devices=%d", gpuCount),
		fmt.Sprintf("threads=%d", gpuCount)}, options...)...))
}

// pidInNode is the process number of a pod's program as the node sees it.
func pidInNode(t *testing.T, pod string) int {
	t.Helper()
	awaitRunning(t, pod)
	pid, err := env.cluster.MainPID(t.Context(), pod, containerName)
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			inAll := strings.Fields(numbers) // from the outermost namespace to the container's
			n, err := strconv.Atoi(inAll[len(inAll)-2])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no NSpid in the status of process %d", pid)
	return 0
}

// gpuTime is a reading of the GPUs' own books: who had how much GPU time by then, by GPU and process.
type gpuTime struct {
	at   time.Duration // monotonic
	busy [gpuCount]map[int]time.Duration
}

func readGPUTime(t *testing.T) (g gpuTime) {
	t.Helper()
	status, err := readSim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.at = time.Duration(status.MonotonicNS)
	for i, gpu := range status.GPUs {
		g.busy[i] = map[int]time.Duration{}
		for _, client := range gpu.Clients {
			g.busy[i][client.PID] = time.Duration(client.BusyNS)
		}
	}
	return g
}

// percentOf is what a process had of each GPU since an earlier reading.
func (g gpuTime) percentOf(pid int, earlier gpuTime) (percent [gpuCount]float64) {
	for i := range gpuCount {
		percent[i] = 100 * float64(g.busy[i][pid]-earlier.busy[i][pid]) / float64(g.at-earlier.at)
	}
	return percent
}

// mustHave fails the test unless a process had between low and high percent of each GPU.
func mustHave(t *testing.T, what string, got [gpuCount]float64, low, high float64) {
	t.Helper()
	for i, percent := range got {
		if percent < low || percent > high {
			t.Errorf("%s: %.2f %% of GPU %d, want %g to %g", what, percent, i, low, high)
		}
	}
	t.Logf("%s: %.2f %%", what, got)
}

// Hard: two pods with 30 and 60 percent of each GPU hold their shares, with an agent, while one is away, and when the
// next one comes; their programs are never held up.
func TestPodsHoldTheirSharesWithAndWithoutTheAgent(t *testing.T) {
	restartWith(t, map[string]string{"compute-mode": "hard"})
	flooding(t, "share-30", slices30, "busy_2ms")
	flooding(t, "share-60", slices60, "busy_10ms")
	awaitLog(t, "share-30", "ready")
	awaitLog(t, "share-60", "ready")
	a, b := pidInNode(t, "share-30"), pidInNode(t, "share-60")
	watch := func(what string, d time.Duration, less, more float64) {
		t.Helper()
		first := readGPUTime(t)
		for end := time.Now().Add(d); time.Now().Before(end); { // no second passes without a kernel of both
			before := readGPUTime(t)
			time.Sleep(min(time.Second, time.Until(end)))
			if now := readGPUTime(t); now.percentOf(a, before)[0] == 0 || now.percentOf(b, before)[0] == 0 {
				t.Errorf("%s: a pod's program did nothing for a second", what)
			}
		}
		last := readGPUTime(t)
		mustHave(t, what+", 30 percent", last.percentOf(a, first), 30-less, 30+more)
		mustHave(t, what+", 60 percent", last.percentOf(b, first), 60-less, 60+more)
	}
	time.Sleep(computeSettle)
	watch("with the agent", computeRun, 2, 2)
	mustShowPolicy(t, "share-30", "hard", "hard share=30")

	before := mustCountRegistrations(t)
	if err := env.agent.stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	watch("without an agent", 8*time.Second, 5, 5) // what a program costs on average stays as the agent left it
	if err := env.agent.launch(map[string]string{"compute-mode": "hard"}); err != nil {
		t.Fatal(err)
	}
	watch("while an agent starts", 3*time.Second, 4, 4) // scales are learnt anew
	mustComeBack(t, before)
	watch("with the next agent", 5*time.Second, 3, 3)
}

// mustShowPolicy fails the test unless users can see which rule holds for the pod: in its environment, in the agent's
// log and in the metrics.
func mustShowPolicy(t *testing.T, pod, mode, text string) {
	t.Helper()
	if out := inPod(t, pod, "env"); !strings.Contains(out, "VGPUD_COMPUTE="+text+"\n") {
		t.Errorf("the pod's environment does not say VGPUD_COMPUTE=%s:\n%s", text, out)
	}
	log, err := os.ReadFile(env.agent.process.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), text) {
		t.Errorf("the agent's log does not say %q", text)
	}
	labels := ofPod(pod)
	labels["mode"] = mode
	eventually(t, metricsTimeout, "the metrics name the mode", func() (bool, string) {
		found := readSeries(t, readMetricsFile(t), "vgpud_slice_compute_info", labels)
		return len(found) == gpuCount, fmt.Sprint(found)
	})
}

// Elastic, the default: a pod that is alone has the whole GPU; one that comes has its share back within a second. The
// fifth that is granted to nobody is lent by weights while both are at work: 37.5 and 62.5 percent.
func TestElasticPodGivesBackWhatItBorrowed(t *testing.T) {
	awaitRemovals(t)
	flooding(t, "borrower", slices30, "busy_2ms")
	awaitLog(t, "borrower", "ready")
	a := pidInNode(t, "borrower")
	time.Sleep(computeSettle)
	first := readGPUTime(t)
	for before, i := first, 1; i <= 5; i++ {
		time.Sleep(time.Second)
		now := readGPUTime(t)
		t.Logf("alone, second %d: %.1f %%", i, now.percentOf(a, before))
		before = now
	}
	mustHave(t, "alone", readGPUTime(t).percentOf(a, first), 95, 101)
	mustShowPolicy(t, "borrower", "elastic", "elastic share=30 ceiling=100")

	flooding(t, "lender", slices50, "busy_5ms")
	awaitFirstKernel(t, a)
	time.Sleep(computeSettle)
	b := pidInNode(t, "lender")
	first = readGPUTime(t)
	for before, i := first, 1; i <= 5; i++ { // it has its share in each second, the first one too
		time.Sleep(time.Second)
		now := readGPUTime(t)
		mustHave(t, fmt.Sprintf("lender, second %d", i), now.percentOf(b, before), 45, 100)
		before = now
	}
	mustHave(t, "borrower beside the lender", readGPUTime(t).percentOf(a, first), 28, 39.5)

	remove(t, "lender")
	time.Sleep(computeSettle)
	first = readGPUTime(t)
	time.Sleep(3 * time.Second)
	mustHave(t, "alone again", readGPUTime(t).percentOf(a, first), 95, 101)
}

// awaitFirstKernel waits until somebody else has used a GPU.
func awaitFirstKernel(t *testing.T, known int) {
	t.Helper()
	eventually(t, podTimeout, "another pod uses a GPU", func() (bool, string) {
		g := readGPUTime(t)
		for pid, busy := range g.busy[0] {
			if pid != known && busy > 0 {
				return true, ""
			}
		}
		return false, fmt.Sprint(g.busy)
	})
}
