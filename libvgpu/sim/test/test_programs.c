/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * test_programs.c - real programs on the simulated card. Those that are not installed are skipped; nvidia-smi and
 * nvtop are also found in $GPUSIM_TEST_PROGRAMS, a colon list of directories with unpacked ones.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static void need_program(const char *name) {
  const char *more = getenv("GPUSIM_TEST_PROGRAMS");
  char path[8192];
  if (more) {
    snprintf(path, sizeof path, "%s:%s", more, getenv("PATH"));
    setenv("PATH", path, 1);
  }
  if (run("command -v %s >/dev/null", name) != 0) skip_without(name, "not installed");
}

/* Uploads and downloads every frame: the frames must be those of a run without a card. */
void test_ffmpeg_frames(void) {
  need_program("ffmpeg");
  const char *source = "-hide_banner -loglevel error -f lavfi -i testsrc2=size=320x240:duration=1";
  CHECK_EQUAL(run("ffmpeg %s -vf format=nv12 -f framemd5 - >$GPUSIM_DIR/bare </dev/null", source), 0);
  CHECK_EQUAL(
      run("ffmpeg -init_hw_device cuda=cu -filter_hw_device cu %s -vf format=nv12,hwupload_cuda,hwdownload,format=nv12 "
          "-f framemd5 - >$GPUSIM_DIR/card </dev/null",
          source),
      0);
  CHECK_EQUAL(run("cmp $GPUSIM_DIR/bare $GPUSIM_DIR/card && grep -q '^0,' $GPUSIM_DIR/bare"), 0);
  CHECK(status_number("cuMemcpy2DAsync_v2") >= 50);
  CHECK_EQUAL(status_number("used_bytes"), 0);
}

void test_nvidia_smi(void) {
  need_program("nvidia-smi");
  CHECK_EQUAL(run("nvidia-smi >$GPUSIM_DIR/out"), 0);
  CHECK_EQUAL(run("grep -q '0MiB / 81920MiB' $GPUSIM_DIR/out"), 0);
  CHECK_EQUAL(run("test $(nvidia-smi -L | grep -c '^GPU [01]: NVIDIA A100-SXM4-80GB (UUID: GPU-') = 2"), 0);
  CHECK_EQUAL(run("test \"$(nvidia-smi --query-gpu=memory.total --format=csv,noheader -i 1)\" = '81920 MiB'"), 0);
}

/* nvtop draws on a terminal: `script` lends one. */
void test_nvtop(void) {
  CUdeviceptr memory;
  need_program("nvtop");
  need_program("script");
  begin_cuda();
  CHECK_EQUAL(cuMemAlloc_v2(&memory, 40ll << 30), CUDA_SUCCESS);
  run("TERM=xterm timeout 3 script -qc 'stty rows 40 cols 160; nvtop' $GPUSIM_DIR/screen >/dev/null 2>&1 </dev/null");
  CHECK_EQUAL(run("grep -aq 'A100-SXM4-80GB' $GPUSIM_DIR/screen"), 0);
  CHECK_EQUAL(run("grep -aq '40.000Gi/80.000Gi' $GPUSIM_DIR/screen"), 0);
  CHECK(status_number("nvmlDeviceGetComputeRunningProcesses") > 0);
}
