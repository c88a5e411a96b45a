// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpud/vgpud/scripts/e2e/cluster"
)

// reportTimeout is how long a report may take on a busy machine. On an idle one it takes less than ten seconds; the tests
// log how long it took.
const reportTimeout = 20 * time.Second

// reports says what the agent has said of a pod since it was started, by kind.
func reports(t *testing.T, pod string) (kinds []string, text string) {
	t.Helper()
	log, err := os.ReadFile(env.agent.process.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(log), "\n") {
		if !strings.Contains(line, "container uses a GPU past what it was given") || !strings.Contains(line, pod) || !strings.Contains(line, "pid") {
			continue
		}
		text += line + "\n"
		for _, kind := range []string{"no-slot", "memory-beyond-book", "time-beyond-grant", "replaced-file", "no-allocation"} {
			if strings.Contains(line, "kind="+kind) || strings.Contains(line, `"kind":"`+kind+`"`) {
				kinds = append(kinds, kind)
			}
		}
	}
	return kinds, text
}

// awaitReport waits until the agent has said that a pod does this.
func awaitReport(t *testing.T, pod, kind string) {
	t.Helper()
	began := time.Now()
	eventually(t, reportTimeout, "the agent reports "+kind+" of pod "+pod, func() (bool, string) {
		kinds, text := reports(t, pod)
		return strings.Contains(strings.Join(kinds, " "), kind), text
	})
	t.Logf("%s: reported after %.1f s", kind, time.Since(began).Seconds())
}

// configMap makes a map with one file for a test.
func configMap(t *testing.T, name, key, content string) {
	t.Helper()
	maps := env.cluster.API.CoreV1().ConfigMaps(cluster.Namespace)
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: content}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := maps.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// mountOver puts one file of a map at a path of a pod's container.
func mountOver(pod *corev1.Pod, name, key, path string) *corev1.Pod {
	volume := corev1.Volume{Name: name}
	volume.ConfigMap = &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
	pod.Spec.Volumes = append(pod.Spec.Volumes, volume)
	container := &pod.Spec.Containers[0]
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: path, SubPath: key, ReadOnly: true})
	return pod
}

func privileged(pod *corev1.Pod) *corev1.Pod {
	yes := true
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	return pod
}

// Whoever gets past the library is seen from outside: reported with pod and process, and counted.
func TestBypassIsReported(t *testing.T) {
	restartWith(t, nil)
	const much = 9 << 30 // more than a slice
	hold := []string{clientPath, "hold", fmt.Sprint(uint64(much))}
	t.Run("static program", func(t *testing.T) {
		const name = "bypass-static"
		create(t, newPod(name, 1, roguePath, fmt.Sprint(uint64(much))))
		awaitLog(t, name, "held")
		awaitReport(t, name, "no-slot")
		awaitReport(t, name, "memory-beyond-book")
		eventually(t, metricsTimeout, "the bytes are counted", func() (bool, string) {
			found := readSeries(t, readMetricsFile(t), "vgpud_gpu_memory_unaccounted_bytes", nil)
			sum := 0.0
			for _, one := range found {
				sum += one.value
			}
			return sum >= much, fmt.Sprint(found)
		})
	})
	t.Run("configuration over the preload file", func(t *testing.T) {
		const name = "bypass-preload"
		configMap(t, name, "nothing", "\n")
		create(t, mountOver(newPod(name, 1, hold...), name, "nothing", "/etc/ld.so.preload"))
		awaitLog(t, name, "held")
		awaitReport(t, name, "replaced-file")
		awaitReport(t, name, "no-slot")
	})
	t.Run("configuration over the library", func(t *testing.T) {
		const name = "bypass-library"
		configMap(t, name, "nothing", "not a library\n")
		create(t, mountOver(newPod(name, 1, hold...), name, "nothing", "/usr/local/vgpud/libvgpu.so"))
		awaitLog(t, name, "held")
		awaitReport(t, name, "replaced-file")
		awaitReport(t, name, "no-slot")
	})
	t.Run("another limits page", func(t *testing.T) {
		const name = "bypass-limits"
		// The path of the pages has the allocation's key in it, so only somebody who may mount can do it.
		create(t, privileged(newPod(name, 1, "/usr/bin/sh", "-c", "mount --bind /etc/hostname "+allocDir+"limits && exec sleep 1000")))
		awaitReport(t, name, "replaced-file")
	})
	t.Run("no allocation", func(t *testing.T) {
		const name = "bypass-none"
		pod := privileged(newPod(name, 0, roguePath, fmt.Sprint(1<<30)))
		directory := corev1.HostPathVolumeSource{Path: gpuDir}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "gpu", VolumeSource: corev1.VolumeSource{HostPath: &directory}})
		pod.Spec.Containers[0].VolumeMounts = append(pod.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "gpu", MountPath: gpuDir})
		create(t, pod)
		awaitLog(t, name, "held")
		awaitReport(t, name, "no-allocation")
	})
}

// What does not get past it is limited, and nothing is said.
func TestWhatIsLimitedIsNotReported(t *testing.T) {
	const name = "no-bypass"
	half := env.gpus.sliceBytes() / 2
	create(t, newPod(name, 1, clientPath, "hold", fmt.Sprint(half)))
	awaitLog(t, name, "held")
	for what, script := range map[string]string{
		"stripped environment": "exec env -i " + clientPath + " fill",
		"own driver": "mkdir -p /tmp/own && cp " + libraryDir + "/libcuda.so.1 /tmp/own/libcuda.so.1 && LD_LIBRARY_PATH=/tmp/own exec env GPUSIM_DIR=" +
			gpuDir + " LD_LIBRARY_PATH=/tmp/own " + clientPath + " fill",
	} {
		result := tryInPod(t, name, "sh", "-c", script)
		filled, ok := find(result.Stdout, "filled")
		if !ok || filled.number(t, "filled") > half {
			t.Errorf("%s: %s%s", what, result.Stdout, result.Stderr)
		}
	}
	time.Sleep(reportTimeout / 2) // as long as a report takes
	if kinds, text := reports(t, name); kinds != nil {
		t.Errorf("%v is reported: %s", kinds, text)
	}
}

// A frozen pod can be deleted, and one whose agent stops runs on.
func TestBypassIsFrozen(t *testing.T) {
	restartWith(t, map[string]string{"witness": "freeze"})
	const name, second = "bypass-frozen", "bypass-thawed"
	for _, pod := range []string{name, second} {
		create(t, newPod(pod, 1, "/usr/bin/sh", "-c", roguePath+" 1000000 & while :; do echo tick=1; sleep 0.1; done"))
		awaitLog(t, pod, "held")
		awaitStandstill(t, pod)
	}
	began := time.Now()
	remove(t, name)
	t.Logf("deleted after %.1f s", time.Since(began).Seconds())
	if err := env.agent.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if !ticks(t, second) {
		t.Error("the agent has stopped, and the pod is frozen")
	}
}

func TestBypassIsKilled(t *testing.T) {
	restartWith(t, map[string]string{"witness": "kill"})
	const name, honest = "bypass-killed", "bypass-honest"
	create(t, newPod(honest, 1, clientPath, "hold", "1000000"))
	awaitLog(t, honest, "held")
	create(t, newPod(name, 1, roguePath, "1000000"))
	eventually(t, podTimeout+reportTimeout, "the container is killed", func() (bool, string) {
		status, phase := container(t, name)
		return status.RestartCount > 0, fmt.Sprintf("%s %+v", phase, status.State)
	})
	if status, _ := container(t, honest); status.RestartCount != 0 {
		t.Errorf("another container was killed: %+v", status)
	}
}

// ticks says whether a pod's container goes on writing.
func ticks(t *testing.T, pod string) bool {
	t.Helper()
	size := func() int {
		log, err := env.cluster.Logs(t.Context(), pod, containerName, false)
		if err != nil {
			t.Fatal(err)
		}
		return len(log)
	}
	before := size()
	for range 10 {
		time.Sleep(200 * time.Millisecond)
		if size() > before {
			return true
		}
	}
	return false
}

func awaitStandstill(t *testing.T, pod string) {
	t.Helper()
	eventually(t, reportTimeout+podTimeout, "pod "+pod+" is frozen", func() (bool, string) { return !ticks(t, pod), env.agent.lastWords() })
}
