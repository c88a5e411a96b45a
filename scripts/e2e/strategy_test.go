// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// The strategy for nodes whose runtime brings the GPU in by environment variable (NVIDIA's container runtime). The
// runtime here does not: the pod mounts libraries and device nodes itself, as the runtime would.
func TestStrategyEnvvar(t *testing.T) {
	restartWith(t, map[string]string{"device-list-strategy": "envvar"})
	pod := onePod("envvar", 1, "sh", "-c", "env && "+clientPath+" info && "+clientPath+" fill")
	for _, path := range [][2]string{
		{simPath("libcuda.so.1"), filepath.Join(libraryDir, "libcuda.so.1")},
		{simPath("libnvidia-ml.so.1"), filepath.Join(libraryDir, "libnvidia-ml.so.1")},
		{gpuDir, gpuDir}, {"/dev/nvidiactl", "/dev/nvidiactl"}, {"/dev/nvidia-uvm", "/dev/nvidia-uvm"},
		{"/dev/nvidia0", "/dev/nvidia0"}, {"/dev/nvidia1", "/dev/nvidia1"},
	} {
		mountFromNode(pod, path[0], path[1])
	}
	create(t, pod)
	log, code := awaitEnd(t, pod.Name)
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, log)
	}
	visible, _ := find(log, "NVIDIA_VISIBLE_DEVICES")
	uuid := visible["NVIDIA_VISIBLE_DEVICES"]
	if !slices.Contains(env.gpus.uuids, uuid) {
		t.Errorf("NVIDIA_VISIBLE_DEVICES=%s, want one of %v", uuid, env.gpus.uuids)
	}
	// The pod has brought in both GPUs. Only the one of its slice has memory for it.
	for _, line := range strings.Split(log, "\n") {
		if !strings.HasPrefix(line, "cuda=") {
			continue
		}
		want := uint64(0)
		if parse(line)["uuid"] == uuid {
			want = env.gpus.sliceBytes()
		}
		if got := parse(line).number(t, "total"); got != want {
			t.Errorf("a GPU shows %d bytes, want %d: %s", got, want, line)
		}
	}
	if got := mustFind(t, log, "filled").number(t, "filled"); got != env.gpus.sliceBytes() {
		t.Errorf("client got %d bytes on all GPUs, want %d", got, env.gpus.sliceBytes())
	}
}

// mountFromNode adds a path of the node to the pod's container.
func mountFromNode(pod *corev1.Pod, nodePath, containerPath string) {
	name := "node" + strings.NewReplacer("/", "-", ".", "-", "_", "-").Replace(strings.ToLower(containerPath))
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: nodePath}}})
	c := &pod.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: containerPath})
}
