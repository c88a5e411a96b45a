// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpud/vgpud/scripts/e2e/cluster"
	"github.com/vgpud/vgpud/scripts/e2e/node"
)

const (
	// Two pods that have a slice of each GPU, and use the first one: one process and two, whose kernels fill 0.3 of it each, so
	// that all run at once, and want 2.5 times the bandwidth of its memory. They are long, so that a busy machine, which
	// launches the next one late, changes little.
	victimKernel     = "busy_10ms_dram65_bound95"
	antagonistKernel = "busy_10ms_dram92_bound95"
	contentionGrid   = 108 * 2048 * 30 / 100 / 256 // blocks of 256 threads, of 108 multiprocessors with room for 2048

	aloneFor      = 63 * time.Second // nobody is judged in the first minute of a process
	verdictAfter  = 2 * time.Minute  // a mean over 60 s has to rise to 30 %
	recoveryAfter = 2 * time.Minute  // and to fall
	kubeletWithin = 2 * time.Second  // of a verdict, or of the end of one
	statusWithin  = 12 * time.Second
	storyWithin   = 15 * time.Second // an Event in the API server
)

// contentionFlags are an agent with short times, which tells the cluster.
func contentionFlags() map[string]string {
	return map[string]string{
		"compute-mode": "none", "contention": "health", "contention-preset": "custom", "contention-above": "30", "contention-below": "29",
		"contention-bad-for": "10s", "contention-good-for": "10s", "contention-hold": "10s", "tick-interval": "500ms",
		"events": "auto", "node-name": node.Name, "kubeconfig": filepath.Join(env.build, "e2e", "run", "pki", "admin.kubeconfig"),
	}
}

// setSim changes the simulated cards, and changes them back when the test ends.
func setSim(t *testing.T, settings, back []string) {
	t.Helper()
	set := func(settings []string) error {
		ctx, cancel := cleanupContext()
		defer cancel()
		_, err := env.cluster.Node.Output(ctx, nil, simPath("gpusim"), append([]string{"set", "--dir", gpuDir}, settings...)...)
		return err
	}
	t.Cleanup(func() {
		if err := set(back); err != nil {
			t.Error(err)
		}
	})
	if err := set(settings); err != nil {
		t.Fatal(err)
	}
}

// worker is a pod that launches its kernel on the first GPU and waits for it, over and over.
func worker(t *testing.T, name, kernel string, options ...string) {
	t.Helper()
	create(t, newPod(name, gpuCount, append([]string{floodPath, "kernel=" + kernel, "sync=each", "seconds=3600", "block=256",
		fmt.Sprintf("grid=%d", contentionGrid)}, options...)...))
	awaitLog(t, name, "ready")
}

// offered is how many slices there are by kubelet, at this moment, and by the node's status.
func offered(t *testing.T) (inKubelet int, inStatus int64) {
	t.Helper()
	inKubelet, err := env.cluster.AllocatableDevices(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	if inStatus, err = env.cluster.Allocatable(t.Context(), resource); err != nil {
		t.Fatal(err)
	}
	return inKubelet, inStatus
}

// agentLogLength is the length of the agent's log.
func agentLogLength(t *testing.T) int64 {
	t.Helper()
	info, err := os.Stat(env.agent.process.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// awaitAgentLog waits for a line with this message in the agent's log, after an offset, and returns it and when it was there.
func awaitAgentLog(t *testing.T, timeout time.Duration, from int64, message string) (line string, at time.Time) {
	t.Helper()
	eventually(t, timeout, "the agent says "+message, func() (bool, string) {
		text, err := os.ReadFile(env.agent.process.LogPath())
		if err != nil {
			return false, err.Error()
		}
		for found := range strings.SplitSeq(string(text[min(from, int64(len(text))):]), "\n") {
			if strings.Contains(found, message) {
				line, at = found, time.Now()
				return true, ""
			}
		}
		pressure := readSeries(t, readMetricsFile(t), "vgpud_slice_pressure_ratio", map[string]string{"kind": "full", "window": "60s"})
		return false, fmt.Sprintf("%s; pressures %v", env.agent.lastWords(), pressure)
	})
	return line, at
}

// awaitOffered waits until kubelet and the node's status offer so many slices, and says so if that comes later after
// `since` than it may.
func awaitOffered(t *testing.T, want int, since time.Time) {
	t.Helper()
	eventually(t, statusWithin, fmt.Sprintf("kubelet offers %d slices", want), func() (bool, string) {
		inKubelet, _ := offered(t)
		return inKubelet == want, fmt.Sprint(inKubelet)
	})
	if took := time.Since(since); took > kubeletWithin {
		t.Errorf("kubelet offers %d slices %.1f s after the verdict, want at most %s", want, took.Seconds(), kubeletWithin)
	}
	eventually(t, 2*statusWithin, fmt.Sprintf("the node's status offers %d slices", want), func() (bool, string) {
		_, inStatus := offered(t)
		return int(inStatus) == want, fmt.Sprint(inStatus)
	})
	if took := time.Since(since); took > statusWithin {
		t.Errorf("the node's status offers %d slices %.1f s after the verdict, want at most %s", want, took.Seconds(), statusWithin)
	}
}

// awaitEvent waits for an Event about an object, with all these words in its note.
func awaitEvent(t *testing.T, reason, about string, words ...string) {
	t.Helper()
	eventually(t, storyWithin, fmt.Sprintf("an Event %s about %s", reason, about), func() (bool, string) {
		list, err := env.cluster.API.EventsV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return false, err.Error()
		}
		var notes []string
		for _, e := range list.Items {
			notes = append(notes, e.Regarding.Kind+" "+e.Regarding.Name+": "+e.Note)
			if e.Regarding.Name == about && hasWords(e, words) {
				return true, ""
			}
		}
		return false, strings.Join(notes, "; ")
	})
}

func hasWords(e eventsv1.Event, words []string) bool {
	for _, word := range words {
		if !strings.Contains(e.Note, word) {
			return false
		}
	}
	return true
}

// progress is how much GPU time two pods' programs had on the first GPU: that of the first one's process, and of all others.
func progress(t *testing.T, first int) (had [2]time.Duration) {
	t.Helper()
	for pid, busy := range readGPUTime(t).busy[0] {
		if pid == first {
			had[0] += busy
		} else {
			had[1] += busy
		}
	}
	return had
}

// Sustained contention between two pods: the free slices of their GPU are not offered any more, by kubelet and in the node's
// status; both run on, through a restart of kubelet too; they come back when the antagonist has ended; Events, log and
// metrics say what happened and to whom.
func TestContendedGPUIsWithdrawnAndComesBack(t *testing.T) {
	const all = gpuCount * slicesPerGPU
	const left = all - (slicesPerGPU - 2) // of the contended GPU, those that the two pods have
	awaitRemovals(t)
	setSim(t, []string{"sharing=mps", "gpm=1", "dram_reach_permille=920"}, []string{"sharing=time-slice", "gpm=0", "dram_reach_permille=1000"})
	restartWith(t, contentionFlags())
	worker(t, "victim", victimKernel)
	victim := pidInNode(t, "victim")
	time.Sleep(aloneFor)
	if inKubelet, _ := offered(t); inKubelet != all {
		t.Errorf("%d slices are offered while one pod uses the GPU, want all %d", inKubelet, all)
	}
	from := agentLogLength(t)
	worker(t, "antagonist", antagonistKernel, "processes=2", "on_ms=9000", "off_ms=900")
	began := time.Now()
	line, verdict := awaitAgentLog(t, verdictAfter, from, "GPU is contended")
	t.Logf("verdict after %.0f s: %s", verdict.Sub(began).Seconds(), line)
	awaitOffered(t, left, verdict)
	for _, want := range []string{"resource=dram", cluster.Namespace + "/victim/" + containerName, cluster.Namespace + "/antagonist/" + containerName} {
		if !strings.Contains(line, want) {
			t.Errorf("the agent's log does not name %s: %s", want, line)
		}
	}
	contended := ""
	for _, s := range readSeries(t, readMetricsFile(t), "vgpud_gpu_contended", nil) {
		if s.value == 1 {
			contended = s.labels["gpu_uuid"]
		}
	}
	if contended != env.gpus.uuids[0] {
		t.Errorf("the metrics call %q contended, want %s", contended, env.gpus.uuids[0])
	}
	awaitEvent(t, "GPUContended", node.Name, "victim", "antagonist")
	awaitEvent(t, "GPUSlowedByNeighbour", "victim")
	awaitEvent(t, "GPUSlowsNeighbours", "antagonist")

	before := progress(t, victim)
	if err := env.cluster.RestartKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, backTimeout, "the new kubelet has its slices", func() (bool, string) {
		inKubelet, _ := offered(t)
		return inKubelet == left, fmt.Sprint(inKubelet)
	})
	for i, name := range []string{"victim", "antagonist"} {
		if status, _ := container(t, name); status.State.Running == nil || status.RestartCount != 0 {
			t.Errorf("%s did not run on through the kubelet's restart: %+v", name, status)
		}
		eventually(t, podTimeout, name+" goes on", func() (bool, string) {
			now := progress(t, victim)
			return now[i] > before[i], fmt.Sprint(now)
		})
	}

	from = agentLogLength(t)
	remove(t, "antagonist")
	line, verdict = awaitAgentLog(t, recoveryAfter, from, "GPU is no longer contended")
	t.Logf("over after: %s", line)
	awaitOffered(t, all, verdict)
	awaitEvent(t, "GPUContentionOver", node.Name)
	awaitMetric(t, "vgpud_gpu_contended", map[string]string{"gpu_uuid": env.gpus.uuids[0]}, 0)
	if status, _ := container(t, "victim"); status.State.Running == nil || status.RestartCount != 0 {
		t.Errorf("victim did not run on: %+v", status)
	}
}
