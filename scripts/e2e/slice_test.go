// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// ffmpegArgs make the checksums of 30 frames; through the GPU, or without any.
func ffmpegArgs(filters string) []string {
	return strings.Fields("-hide_banner -loglevel error -nostdin -init_hw_device cuda=gpu:0 -filter_hw_device gpu " +
		"-f lavfi -i testsrc2=size=640x360:rate=10:duration=3 -vf " + filters + " -f framemd5 -")
}

const (
	throughGPU = "format=nv12,hwupload,hwdownload,format=nv12"
	withoutGPU = "format=nv12"
)

func TestNodeOffersEverySlice(t *testing.T) {
	count, err := env.cluster.Allocatable(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	if count != gpuCount*slicesPerGPU {
		t.Fatalf("the node shows %s: %d, want %d", resource, count, gpuCount*slicesPerGPU)
	}
}

// The client sees one GPU that has the slice's memory, by every call that tells, through both doors to the driver.
func TestPodSeesItsSlice(t *testing.T) {
	besideOthers(t)
	slice := env.gpus.sliceBytes()
	create(t, newPod("sees-slice", 1, clientPath, "hold", "1000000"))
	awaitLog(t, "sees-slice", "held")
	for _, door := range []string{"dlsym", "getproc"} {
		out := inPod(t, "sees-slice", "env", "CLIENT_DOOR="+door, clientPath, "info")
		if n := mustFind(t, out, "cuda_devices").number(t, "cuda_devices"); n != 1 {
			t.Errorf("door %s: the driver shows %d devices, want 1", door, n)
		}
		cuda, nvml := mustFind(t, out, "cuda"), mustFind(t, out, "nvml")
		for _, check := range []struct {
			what      string
			line      fields
			key       string
			wantBytes uint64
		}{
			{"cuDeviceTotalMem", cuda, "device_total", slice},
			{"cuMemGetInfo", cuda, "total", slice},
			{"cuMemGetInfo", cuda, "free", slice - 1000000},
			{"nvmlDeviceGetMemoryInfo", nvml, "total", slice},
			{"nvmlDeviceGetMemoryInfo", nvml, "free", slice - 1000000},
			{"nvmlDeviceGetMemoryInfo", nvml, "used", 1000000},
		} {
			if got := check.line.number(t, check.key); got != check.wantBytes {
				t.Errorf("door %s: %s says %s=%d, want %d", door, check.what, check.key, got, check.wantBytes)
			}
		}
		if cuda["uuid"] != nvml["uuid"] {
			t.Errorf("door %s: driver and NVML name different GPUs: %s and %s", door, cuda["uuid"], nvml["uuid"])
		}
	}
}

// The slice's memory can be had to the last byte, and not one more; data that goes there comes back.
func TestPodIsRefusedTheByteBeyondItsSlice(t *testing.T) {
	besideOthers(t)
	create(t, onePod("fills-slice", 1, "sh", "-c", clientPath+" fill && "+clientPath+" copy-check 33554432"))
	log, code := awaitEnd(t, "fills-slice")
	if code != 0 {
		t.Fatalf("client ended with %d:\n%s", code, log)
	}
	filled := mustFind(t, log, "filled")
	if got, want := filled.number(t, "filled"), env.gpus.sliceBytes(); got != want {
		t.Errorf("client got %d bytes in all, want %d", got, want)
	}
	const outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY
	if got := filled.number(t, "refusal"); got != outOfMemory {
		t.Errorf("the byte beyond was refused with %d, want %d", got, outOfMemory)
	}
	if mustFind(t, log, "copied")["same"] != "1" {
		t.Errorf("copied data came back changed:\n%s", log)
	}
}

// Several slices on one GPU are one device with the sum; on two GPUs, two devices.
func TestPodWithSeveralSlices(t *testing.T) {
	besideOthers(t)
	create(t, onePod("two-slices", 2, clientPath, "info"))
	log, code := awaitEnd(t, "two-slices")
	if code != 0 {
		t.Fatalf("client ended with %d:\n%s", code, log)
	}
	if n := mustFind(t, log, "cuda_devices").number(t, "cuda_devices"); n != 2 {
		t.Fatalf("two slices show %d devices, want 2 (spread over GPUs):\n%s", n, log)
	}
	for _, line := range strings.Split(log, "\n") {
		if strings.HasPrefix(line, "cuda=") && parse(line).number(t, "total") != env.gpus.sliceBytes() {
			t.Errorf("a device's total is not one slice: %s", line)
		}
	}
}

func TestFFmpegInPodGivesTheFramesOfAnUnslicedRun(t *testing.T) {
	besideOthers(t)
	requireTool(t, "ffmpeg")
	create(t, onePod("ffmpeg", 1, append([]string{"ffmpeg"}, ffmpegArgs(throughGPU)...)...))
	want := onNode(t, "ffmpeg", ffmpegArgs(throughGPU)...)
	if plain := onNode(t, "ffmpeg", ffmpegArgs(withoutGPU)...); plain != want {
		t.Fatalf("the simulated GPU changes frames even without a slice:\n%s\nwithout GPU:\n%s", want, plain)
	}
	log, code := awaitEnd(t, "ffmpeg")
	if code != 0 {
		t.Fatalf("ffmpeg ended with %d:\n%s", code, log)
	}
	if frames := strings.Count(want, "\n0,"); frames != 30 {
		t.Fatalf("the unsliced run gave %d frames, want 30:\n%s", frames, want)
	}
	if log != want {
		t.Errorf("frames differ from the unsliced run\nsliced:\n%s\nunsliced:\n%s", log, want)
	}
}

// A pod without a slice gets nothing of ours.
func TestPodWithoutSliceIsLeftAlone(t *testing.T) {
	besideOthers(t)
	create(t, onePod("no-slice", 0, "sh", "-c", fmt.Sprintf("ls /etc/ld.so.preload %s/libcuda.so.1", libraryDir)))
	if log, code := awaitEnd(t, "no-slice"); code == 0 || !strings.Contains(log, "No such file") {
		t.Errorf("a pod that asked for no slice has preload file or driver (exit code %d):\n%s", code, log)
	}
}
