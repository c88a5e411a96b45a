/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * copies.c - what libvgpu counts of copies, held against what was copied: every call and every form of it, on the driver
 * that logs its calls (test/fake_gpu.h).
 */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "traffic.h"

enum { H2D = VGPU_HOST_TO_DEVICE, D2H = VGPU_DEVICE_TO_HOST, D2D = VGPU_WITHIN_DEVICE, PEER = VGPU_BETWEEN_DEVICES };

/* So much was counted on `device` since the view in this direction, and nothing in the others. */
static void check_counted(const char *what, const struct vgpu_traffic_view *before, int device, int direction,
                          uint64_t calls, uint64_t bytes) {
  struct vgpu_traffic_view after = look(device);
  for (int i = 0; i < VGPU_DIRECTION_COUNT; i++) {
    uint64_t wanted_calls = i == direction ? calls : 0, wanted_bytes = i == direction ? bytes : 0;
    CHECK(after.calls[i] - before->calls[i] == wanted_calls && after.bytes[i] - before->bytes[i] == wanted_bytes,
          "%s: counted %lu calls, %lu bytes in direction %d, not %lu and %lu", what, after.calls[i] - before->calls[i],
          after.bytes[i] - before->bytes[i], i, wanted_calls, wanted_bytes);
  }
}

/* Each call is made twice: it goes well, and it fails. */
#define COPIES(name, direction, bytes, ...)                        \
  do {                                                             \
    struct vgpu_traffic_view view = look(0);                       \
    CHECK_EQUAL(name(__VA_ARGS__), 0, #name);                      \
    check_counted(#name, &view, 0, direction, 1, bytes);           \
    fake_fail_call = #name;                                        \
    view = look(0);                                                \
    CHECK_EQUAL(name(__VA_ARGS__), 999, #name " that fails");      \
    check_counted(#name " that fails", &view, 0, direction, 0, 0); \
    fake_fail_call = NULL;                                         \
    functions++;                                                   \
  } while (0)
#define FORMS(name, direction, ...)                        \
  COPIES(name, direction, 4097, __VA_ARGS__, 4097);        \
  COPIES(name##_v2, direction, 70001, __VA_ARGS__, 70001); \
  COPIES(name##_v2_ptds, direction, 300, __VA_ARGS__, 300)
#define FORMS_ASYNC(name, direction, ...)                          \
  COPIES(name, direction, 4097, __VA_ARGS__, 4097, stream);        \
  COPIES(name##_v2, direction, 70001, __VA_ARGS__, 70001, stream); \
  COPIES(name##_v2_ptsz, direction, 300, __VA_ARGS__, 300, NULL)

/* Rectangles of 10 by 20 bytes and boxes of three such layers, with wide gaps, between all kinds of memory. */
static int test_rectangles(CUcontext context, CUstream stream, CUdeviceptr device, void *host) {
  static const struct {
    CUmemorytype from, to;
    int direction;
  } ways[] = {{CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE, H2D},    {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, D2H},
              {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE, D2D},  {CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_HOST, D2H},
              {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_ARRAY, H2D},     {CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_DEVICE, H2D},
              {CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_UNIFIED, D2H}, {CU_MEMORYTYPE_ARRAY, CU_MEMORYTYPE_DEVICE, D2D}};
  int functions = 0;
  for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
    CUdeviceptr unified = (uintptr_t)host;
    CUDA_MEMCPY2D flat = {.width_bytes = 10, .height = 20, .src_pitch = 50, .dst_pitch = 100};
    CUDA_MEMCPY2D_v1 flat1 = {.width_bytes = 10, .height = 20, .src_pitch = 50, .dst_pitch = 100};
    CUDA_MEMCPY3D box = {.width_bytes = 10, .height = 20, .depth = 3, .src_pitch = 50, .dst_pitch = 100};
    CUDA_MEMCPY3D_v1 box1 = {.width_bytes = 10, .height = 20, .depth = 3, .src_pitch = 50, .dst_pitch = 100};
    flat.src_type = box.src_type = flat1.src_type = box1.src_type = ways[i].from;
    flat.dst_type = box.dst_type = flat1.dst_type = box1.dst_type = ways[i].to;
    flat.src_host = box.src_host = flat.dst_host = box.dst_host = host;
    flat.src_device = box.src_device = ways[i].from == CU_MEMORYTYPE_UNIFIED ? unified : device;
    flat.dst_device = box.dst_device = ways[i].to == CU_MEMORYTYPE_UNIFIED ? unified : device;
    flat1.src_device = box1.src_device = flat1.dst_device = box1.dst_device = (CUdeviceptr_v1)device;
    int direction = ways[i].direction;
    functions = 0;
    COPIES(cuMemcpy2D_v2, direction, 200, &flat);
    COPIES(cuMemcpy2D_v2_ptds, direction, 200, &flat);
    COPIES(cuMemcpy2DUnaligned_v2, direction, 200, &flat);
    COPIES(cuMemcpy2DUnaligned_v2_ptds, direction, 200, &flat);
    COPIES(cuMemcpy2DAsync_v2, direction, 200, &flat, stream);
    COPIES(cuMemcpy2DAsync_v2_ptsz, direction, 200, &flat, NULL);
    COPIES(cuMemcpy3D_v2, direction, 600, &box);
    COPIES(cuMemcpy3D_v2_ptds, direction, 600, &box);
    COPIES(cuMemcpy3DAsync_v2, direction, 600, &box, stream);
    COPIES(cuMemcpy3DAsync_v2_ptsz, direction, 600, &box, NULL);
    box.src_context = box.dst_context = context;
    COPIES(cuMemcpy3DPeer, direction, 600, &box);
    COPIES(cuMemcpy3DPeer_ptds, direction, 600, &box);
    COPIES(cuMemcpy3DPeerAsync, direction, 600, &box, stream);
    COPIES(cuMemcpy3DPeerAsync_ptsz, direction, 600, &box, NULL);
    if (ways[i].from == CU_MEMORYTYPE_UNIFIED || ways[i].to == CU_MEMORYTYPE_UNIFIED) continue;
    COPIES(cuMemcpy2D, direction, 200, &flat1);
    COPIES(cuMemcpy2DUnaligned, direction, 200, &flat1);
    COPIES(cuMemcpy2DAsync, direction, 200, &flat1, stream);
    COPIES(cuMemcpy3D, direction, 600, &box1);
    COPIES(cuMemcpy3DAsync, direction, 600, &box1, stream);
  }
  return functions;
}

/* Boxes of 10 by 20 by 3 elements: of bytes, and of 8 bytes where an array is a side. */
static int test_boxes(CUstream stream, CUdeviceptr device, void *host) {
  CUmemcpy3DOperand on_host = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .pointer = {.address = (uintptr_t)host}};
  CUmemcpy3DOperand on_device = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER, .pointer = {.address = device}};
  CUmemcpy3DOperand array = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .array = {.array = host}};
  CUDA_MEMCPY3D_BATCH_OP up = {.dst = on_device, .src = on_host, .width = 10, .height = 20, .depth = 3};
  CUDA_MEMCPY3D_BATCH_OP down = up, into = up, within = up;
  down.dst = on_host, down.src = into.dst = within.dst = array, within.src = on_device;
  int functions = 0;
  COPIES(cuMemcpy3DBatchAsync, H2D, 600, 1, &up, NULL, 0, stream);
  COPIES(cuMemcpy3DBatchAsync_ptsz, D2H, 4800, 1, &down, NULL, 0, NULL);
  COPIES(cuMemcpy3DBatchAsync_v2, H2D, 4800, 1, &into, 0, stream);
  COPIES(cuMemcpy3DBatchAsync_v2_ptsz, D2D, 4800, 1, &within, 0, NULL);
  COPIES(cuMemcpy3DWithAttributesAsync, H2D, 600, &up, 0, stream);
  COPIES(cuMemcpy3DWithAttributesAsync_ptsz, D2H, 4800, &down, 0, NULL);
  CUDA_MEMCPY3D_BATCH_OP all[] = {up, down, into, within, up};
  struct vgpu_traffic_view before = look(0);
  CHECK_EQUAL(cuMemcpy3DBatchAsync_v2(5, all, 0, stream), 0, "a batch of boxes");
  struct vgpu_traffic_view after = look(0);
  CHECK_EQUAL(after.calls[H2D] - before.calls[H2D], 3, "boxes up");
  CHECK_EQUAL(after.bytes[H2D] - before.bytes[H2D], 600 + 4800 + 600, "bytes of boxes up");
  CHECK_EQUAL(after.bytes[D2H] - before.bytes[D2H], 4800, "bytes of boxes down");
  CHECK_EQUAL(after.bytes[D2D] - before.bytes[D2D], 4800, "bytes of boxes within the card");
  CHECK_EQUAL(cuMemcpy3DBatchAsync_v2(0, NULL, 0, stream), 0, "a batch of nothing");
  check_counted("a batch of nothing", &after, 0, -1, 0, 0);
  return functions;
}

/* Every call and form, each of them counted as what it copied. */
static void test_all(void) {
  static char host[1 << 17];
  int functions = 0;
  CUstream stream;
  CUcontext context;
  CUarray array = (CUarray)host;
  CUdeviceptr device = memory(), other = memory(), on_host = (uintptr_t)host;
  CHECK_EQUAL(cuStreamCreate(&stream, 1), 0, "cuStreamCreate");
  CHECK_EQUAL(cuCtxGetCurrent(&context), 0, "cuCtxGetCurrent");
  FORMS(cuMemcpyHtoD, H2D, device, host);
  FORMS(cuMemcpyDtoH, D2H, host, device);
  FORMS(cuMemcpyDtoD, D2D, device, other);
  FORMS(cuMemcpyDtoA, D2D, array, 8, device);
  FORMS(cuMemcpyAtoD, D2D, device, array, 8);
  FORMS(cuMemcpyHtoA, H2D, array, 8, host);
  FORMS(cuMemcpyAtoH, D2H, host, array, 8);
  FORMS(cuMemcpyAtoA, D2D, array, 8, array, 16);
  FORMS_ASYNC(cuMemcpyHtoDAsync, H2D, device, host);
  FORMS_ASYNC(cuMemcpyDtoHAsync, D2H, host, device);
  FORMS_ASYNC(cuMemcpyDtoDAsync, D2D, device, other);
  FORMS_ASYNC(cuMemcpyHtoAAsync, H2D, array, 8, host);
  FORMS_ASYNC(cuMemcpyAtoHAsync, D2H, host, array, 8);
  COPIES(cuMemcpy, H2D, 5000, device, on_host, 5000);
  COPIES(cuMemcpy_ptds, D2H, 80000, on_host, device, 80000);
  COPIES(cuMemcpyAsync, D2D, 5000, device + 100, other + 200, 5000, stream);
  COPIES(cuMemcpyAsync_ptsz, D2H, 5000, on_host, device, 5000, NULL);
  COPIES(cuMemcpyAsync, -1, 5000, on_host + 50, on_host, 5000, stream); /* from host to host */
  COPIES(cuMemcpyWithAttributesAsync, H2D, 5000, device, on_host, 5000, NULL, stream);
  COPIES(cuMemcpyWithAttributesAsync_ptsz, D2H, 5000, on_host, device, 5000, NULL, NULL);
  COPIES(cuMemcpyPeer, D2D, 5000, device, context, other, context, 5000);
  COPIES(cuMemcpyPeer_ptds, D2D, 5000, device, context, other, context, 5000);
  COPIES(cuMemcpyPeerAsync, D2D, 5000, device, context, other, context, 5000, stream);
  COPIES(cuMemcpyPeerAsync_ptsz, D2D, 5000, device, context, other, context, 5000, NULL);
  functions += test_rectangles(context, stream, device, host);
  functions += test_boxes(stream, device, host);
  CUdeviceptr to[] = {device, on_host, other}, from[] = {on_host, device, on_host};
  size_t bytes[] = {1000, 200, 30000};
  for (int i = 0; i < 4; i++) {
    struct vgpu_traffic_view before = look(0);
    CUresult result = i == 0   ? cuMemcpyBatchAsync(to, from, bytes, 3, NULL, NULL, 0, NULL, stream)
                      : i == 1 ? cuMemcpyBatchAsync_ptsz(to, from, bytes, 3, NULL, NULL, 0, NULL, NULL)
                      : i == 2 ? cuMemcpyBatchAsync_v2(to, from, bytes, 3, NULL, NULL, 0, stream)
                               : cuMemcpyBatchAsync_v2_ptsz(to, from, bytes, 3, NULL, NULL, 0, NULL);
    struct vgpu_traffic_view after = look(0);
    CHECK_EQUAL(result, 0, "a batch");
    CHECK_EQUAL(after.calls[H2D] - before.calls[H2D], 2, "copies up of a batch");
    CHECK_EQUAL(after.bytes[H2D] - before.bytes[H2D], 31000, "bytes up of a batch");
    CHECK_EQUAL(after.bytes[D2H] - before.bytes[D2H], 200, "bytes down of a batch");
    functions++;
  }
  CHECK(functions >= 76, "only %d functions", functions);
}

/* Into a capture nothing is copied; what else is copied meanwhile is. */
static void test_capture(void) {
  static char host[1 << 20];
  CUstream captured, other;
  CUgraph graph;
  CUdeviceptr device = memory();
  CHECK_EQUAL(cuStreamCreate(&captured, 1), 0, "cuStreamCreate");
  CHECK_EQUAL(cuStreamCreate(&other, 1), 0, "cuStreamCreate");
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 100, other), 0, "before the capture");
  struct vgpu_traffic_view before = look(0);
  uint64_t from = fake_calls;
  CHECK_EQUAL(cuStreamBeginCapture_v2(captured, 0), 0, "begin");
  for (int i = 0; i < 40; i++) {
    CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, sizeof(host), captured), 0, "a copy into the capture");
    CHECK_EQUAL(cuMemcpyDtoHAsync_v2(host, device, sizeof(host), other), 0, "a copy beside it");
  }
  CHECK_EQUAL(calls_since(from, "cuEventRecord", NULL) + calls_since(from, "cuEventQuery", NULL) +
                  calls_since(from, "cuEventCreate", NULL),
              0, "no event is touched while something captures");
  CHECK_EQUAL(cuStreamEndCapture(captured, &graph), 0, "end: nothing of ours has spoilt it");
  check_counted("copies beside a capture", &before, 0, D2H, 40, 40 * sizeof(host));
  CHECK_EQUAL(cuMemcpyHtoDAsync_v2(device, host, 7, captured), 0, "after it");
  check_counted("all together",
                &(struct vgpu_traffic_view){
                    .calls = {look(0).calls[H2D] - 1, before.calls[D2H] + 40, before.calls[D2D], before.calls[PEER]},
                    .bytes = {look(0).bytes[H2D] - 7, before.bytes[D2H] + 40 * sizeof(host), before.bytes[D2D],
                              before.bytes[PEER]}},
                0, H2D, 1, 7);
}

enum { THREADS = 4, PROCESSES = 3, ROUNDS = 2000 };

static void *copy_much(void *stream) {
  static char host[1 << 17];
  CUdeviceptr device = 1 << 20;
  use_device(0);
  for (int i = 0; i < ROUNDS; i++) {
    uint64_t bytes = i % 50 == 0 ? 100000 : 1000;
    if (cuMemcpyHtoDAsync_v2(device, host, bytes, stream) != CUDA_SUCCESS) abort();
    if (cuMemcpyDtoHAsync_v2(host, device, 10, stream) != CUDA_SUCCESS) abort();
  }
  return NULL;
}

static void copy_in_threads(void) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    CUstream stream;
    if (cuStreamCreate(&stream, 1) != CUDA_SUCCESS) abort();
    pthread_create(&threads[i], NULL, copy_much, stream);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
}

/* Several threads of several processes, forked ones: not a byte is lost. */
static void test_together(void) {
  struct vgpu_traffic_view before = look(0);
  pid_t children[PROCESSES];
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    if (children[i] == 0) {
      copy_in_threads();
      _exit(0);
    }
  }
  copy_in_threads();
  for (int i = 0; i < PROCESSES; i++) {
    int status = 1;
    waitpid(children[i], &status, 0);
    CHECK_EQUAL(status, 0, "a child");
  }
  struct vgpu_traffic_view after = look(0);
  uint64_t all = (uint64_t)THREADS * (PROCESSES + 1) * ROUNDS, large = all / 50;
  CHECK_EQUAL(after.calls[H2D] - before.calls[H2D], all, "copies up");
  CHECK_EQUAL(after.bytes[H2D] - before.bytes[H2D], (all - large) * 1000 + large * 100000, "bytes up");
  CHECK_EQUAL(after.bytes[D2H] - before.bytes[D2H], all * 10, "bytes down");
}

/* Processes that are killed in the middle: at most one call of each is in doubt, and the book goes on. */
static void test_kill(void) {
  struct vgpu_traffic_view before = look(0);
  uint64_t *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  enum { KILLS = 20 };
  for (int i = 0; i < KILLS; i++) {
    pid_t child = fork();
    if (child == 0) {
      static char host[1 << 20];
      use_device(0);
      for (;;) {
        if (cuMemcpyHtoD_v2(1 << 20, host, sizeof(host)) != CUDA_SUCCESS) abort();
        __atomic_fetch_add(made, 1, __ATOMIC_RELAXED);
      }
    }
    uint64_t least = __atomic_load_n(made, __ATOMIC_RELAXED) + 2;
    for (int j = 0; j < 10000 && __atomic_load_n(made, __ATOMIC_RELAXED) < least; j++)
      usleep(1000);
    usleep(53 * (useconds_t)i);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  struct vgpu_traffic_view after = look(0);
  uint64_t calls = after.calls[H2D] - before.calls[H2D], bytes = after.bytes[H2D] - before.bytes[H2D];
  CHECK(calls >= *made && calls <= *made + KILLS, "%lu calls counted, %lu made", calls, *made);
  CHECK(bytes >= *made * MIB && bytes <= (*made + KILLS) * MIB, "%lu bytes counted of %lu calls", bytes, *made);
  CHECK(*made > KILLS, "%lu copies", *made);
  static char host[1 << 20];
  CUdeviceptr device = memory();
  CHECK_EQUAL(cuMemcpyHtoD_v2(device, host, MIB), 0, "one more");
  CHECK_EQUAL(look(0).calls[H2D], after.calls[H2D] + 1, "is counted");
  for (int i = 0; i < 3000 && look(0).class_count == 0; i++) { /* a second, if one died making room */
    if (cuMemcpyHtoD_v2(device, host, MIB) != CUDA_SUCCESS) abort();
    usleep(1000);
  }
  CHECK(look(0).class_count > 0, "measuring goes on");
}

/* Two GPUs: what crosses is counted on both. */
static void test_two(void) {
  static char host[4096];
  CUcontext contexts[2];
  CUdeviceptr pointers[2];
  for (int i = 1; i >= 0; i--) {
    contexts[i] = use_device(i);
    pointers[i] = memory();
  }
  struct vgpu_traffic_view before[2] = {look(0), look(1)};
  CHECK_EQUAL(cuMemcpyHtoD_v2(pointers[1], host, 1000), 0, "up to the one that is not current");
  check_counted("the first", &before[0], 0, -1, 0, 0);
  check_counted("the second", &before[1], 1, H2D, 1, 1000);
  CHECK_EQUAL(cuMemcpyDtoD_v2(pointers[1], pointers[0], 200), 0, "across");
  check_counted("across, on the first", &before[0], 0, PEER, 1, 200);
  CHECK_EQUAL(cuMemcpyPeer(pointers[0], contexts[0], pointers[1], contexts[1], 30), 0, "back");
  check_counted("and back", &before[0], 0, PEER, 2, 230);
  CUDA_MEMCPY3D box = {.width_bytes = 10,
                       .height = 2,
                       .depth = 2,
                       .src_type = CU_MEMORYTYPE_DEVICE,
                       .dst_type = CU_MEMORYTYPE_DEVICE,
                       .src_device = pointers[0],
                       .dst_device = pointers[1],
                       .src_context = contexts[0],
                       .dst_context = contexts[1]};
  CHECK_EQUAL(cuMemcpy3DPeer(&box), 0, "a box");
  check_counted("and a box", &before[0], 0, PEER, 3, 270);
  CHECK_EQUAL(look(1).bytes[PEER] - before[1].bytes[PEER], 270, "on the second, too");
  before[0] = look(0);
  CHECK_EQUAL(cuMemcpyPeer(pointers[0], contexts[0], pointers[0], contexts[0], 30), 0, "within");
  CHECK_EQUAL(cuMemcpyDtoD_v2(pointers[0], pointers[0] + 64, 5), 0, "within");
  check_counted("within the first", &before[0], 0, D2D, 2, 35);
}

/* Pages of an older agent have no books: everything goes as ever. */
static void test_older(void) {
  static char host[1 << 20];
  CUdeviceptr device = memory();
  CHECK_EQUAL(cuMemcpyHtoD_v2(device, host, MIB), 0, "copy");
  CHECK_EQUAL(launch_on(kernel_of(10), NULL), 0, "launch");
  CHECK_EQUAL(cuCtxSynchronize(), 0, "wait");
}

static const struct test tests[] = {
    {"all", test_all, false},   {"capture", test_capture, false}, {"together", test_together, false},
    {"kill", test_kill, false}, {"two", test_two, true},          {"older", test_older, false}};

int main(int argc, char **argv) {
  return run_traffic_case(tests, sizeof(tests) / sizeof(tests[0]), argc, argv);
}
