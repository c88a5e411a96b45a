/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * race.c - many processes of one container want more than its limit at the same moment.
 *   race burst PROCESSES MIB WANTED ROUNDS       each takes MIB once per round; exactly WANTED must get it
 *   race churn PROCESSES THREADS ROUNDS BYTES US   each thread allocates BYTES, holds them US, frees; none is left
 *   race hold BYTES                              takes BYTES, says "held", and waits to be killed
 *   race kill KILLS VICTIMS LIMIT                kills clients at random moments, VICTIMS at once; none leaves a charge
 *   race victim BYTES                            such a client: allocates and frees in a loop for ever
 *   race fork-before                             the same when the child is the first to ask
 *   race fork                                    a forked child has its own charge and leaves its parent's alone
 */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

enum { MAX_PROCESSES = 64, MAX_ROUNDS = 1024 };

struct shared {
  pthread_barrier_t barrier;
  int succeeded[MAX_ROUNDS];
  int odd[MAX_ROUNDS]; /* results that are neither success nor out of memory */
  int refused;
};

static struct shared *share(unsigned processes) {
  struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, processes);
  return shared;
}

/* Runs `child` in that many processes; returns how many ended badly. */
static int run_processes(int processes, void (*child)(struct shared *, char **), struct shared *shared, char **argv) {
  int bad = 0, status;
  for (int i = 0; i < processes; i++) {
    if (fork() == 0) {
      use_device(0);
      child(shared, argv);
      _exit(check_failed != 0);
    }
  }
  while (wait(&status) > 0)
    bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  return bad;
}

static void burst_child(struct shared *shared, char **argv) {
  uint64_t bytes = strtoull(argv[3], NULL, 10) * MIB;
  int rounds = atoi(argv[5]);
  for (int round = 0; round < rounds; round++) {
    CUdeviceptr pointer = 0;
    pthread_barrier_wait(&shared->barrier);
    CUresult result = cuMemAlloc_v2(&pointer, bytes);
    if (result == CUDA_SUCCESS) __atomic_add_fetch(&shared->succeeded[round], 1, __ATOMIC_RELAXED);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) shared->odd[round]++;
    pthread_barrier_wait(&shared->barrier);
    if (pointer) CHECK_EQUAL(cuMemFree_v2(pointer), 0, "free");
  }
}

static void test_burst(char **argv) {
  int processes = atoi(argv[2]), wanted = atoi(argv[4]), rounds = atoi(argv[5]), wrong = 0, odd = 0;
  struct shared *shared = share((unsigned)processes);
  CHECK_EQUAL(run_processes(processes, burst_child, shared, argv), 0, "processes that ended badly");
  for (int round = 0; round < rounds; round++) {
    if (shared->succeeded[round] != wanted) printf("round %d: %d succeeded\n", round, shared->succeeded[round]);
    wrong += shared->succeeded[round] != wanted;
    odd += shared->odd[round];
  }
  CHECK_EQUAL(wrong, 0, "rounds in which not exactly the wanted number succeeded");
  CHECK_EQUAL(odd, 0, "odd results");
}

struct churn {
  CUcontext context;
  uint64_t bytes;
  long hold_ns;
  int rounds;
  int refused;
  int failed;
};

static void *churn_thread(void *data) {
  struct churn *churn = data;
  CUdeviceptr pointer;
  cuCtxSetCurrent(churn->context);
  for (int i = 0; i < churn->rounds; i++) {
    CUresult result = cuMemAlloc_v2(&pointer, churn->bytes);
    churn->refused += result == CUDA_ERROR_OUT_OF_MEMORY;
    churn->failed += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
      sched_yield();
      continue;
    }
    nanosleep(&(struct timespec){0, churn->hold_ns}, NULL);
    churn->failed += cuMemFree_v2(pointer) != CUDA_SUCCESS;
  }
  return NULL;
}

static void churn_child(struct shared *shared, char **argv) {
  int threads = atoi(argv[3]), failed = 0, refused = 0;
  pthread_t ids[MAX_PROCESSES];
  struct churn churns[MAX_PROCESSES];
  CUcontext context = use_device(0);
  pthread_barrier_wait(&shared->barrier);
  for (int i = 0; i < threads; i++) {
    churns[i] = (struct churn){.context = context,
                               .bytes = strtoull(argv[5], NULL, 10),
                               .rounds = atoi(argv[4]),
                               .hold_ns = atol(argv[6]) * 1000};
    pthread_create(&ids[i], NULL, churn_thread, &churns[i]);
  }
  for (int i = 0; i < threads; i++) {
    pthread_join(ids[i], NULL);
    failed += churns[i].failed;
    refused += churns[i].refused;
  }
  CHECK_EQUAL(failed, 0, "odd results");
  __atomic_add_fetch(&shared->refused, refused, __ATOMIC_RELAXED);
}

static void test_churn(char **argv) {
  int processes = atoi(argv[2]), all = processes * atoi(argv[3]) * atoi(argv[4]);
  struct shared *shared = share((unsigned)processes);
  CHECK_EQUAL(run_processes(processes, churn_child, shared, argv), 0, "processes that ended badly");
  printf("%d of %d rounds were refused\n", shared->refused, all);
  CHECK(shared->refused > 0 && shared->refused < all, "some were refused, some were not");
  use_device(0);
  CHECK_EQUAL(used_bytes(), 0, "nothing is left charged");
}

static void hold(uint64_t bytes) {
  CUdeviceptr pointer;
  use_device(0);
  printf("%s\n", cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS ? "held" : "refused");
  fflush(stdout);
  pause();
}

/* Takes and frees as fast as it can until it is killed: plain, pitched, managed and pool memory, and queries. Says
 * that it is there after its first call. */
static void churn_for_ever(uint64_t bytes) {
  CUdeviceptr pointer, pool;
  size_t pitch, free_bytes, total;
  use_device(0);
  for (int i = 0;; i++) {
    if (cuMemAlloc_v2(&pointer, bytes) == CUDA_SUCCESS) cuMemFree_v2(pointer);
    if (i == 0 && write(STDOUT_FILENO, "+", 1) != 1) _exit(1);
    if (cuMemAllocPitch_v2(&pointer, &pitch, 1000, bytes / 1024, 4) == CUDA_SUCCESS) cuMemFree_v2(pointer);
    if (cuMemAllocManaged(&pointer, bytes, 1) == CUDA_SUCCESS) cuMemFree_v2(pointer);
    if (cuMemAllocAsync(&pool, bytes, NULL) == CUDA_SUCCESS) cuMemFreeAsync(pool, NULL);
    cuMemGetInfo_v2(&free_bytes, &total);
  }
}

/* A new program, or a child of this one, in which the driver was not called yet; `ready` gets a byte when it has
 * begun. */
static pid_t start_victim(const char *bytes, int ready, bool is_new_program) {
  pid_t child = fork();
  if (child == 0) {
    dup2(ready, STDOUT_FILENO);
    if (is_new_program) execl("/proc/self/exe", "race", "victim", bytes, NULL);
    if (!is_new_program) churn_for_ever(strtoull(bytes, NULL, 10));
    _exit(127);
  }
  return child;
}

/* What a new process finds after the kills: the whole limit to the byte, and no more. */
static int take_all(uint64_t limit) {
  CUdeviceptr pointer, more;
  use_device(0);
  CHECK_EQUAL(used_bytes(), 0, "charged before");
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, limit), 0, "the whole limit");
  CHECK_EQUAL(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte more");
  CHECK_EQUAL(used_bytes(), limit, "and only that is charged");
  fflush(stdout);
  return check_failed != 0;
}

static void run_take_all(uint64_t limit, const char *when) {
  int status = 1;
  pid_t child = fork();
  if (child == 0) _exit(take_all(limit));
  waitpid(child, &status, 0);
  CHECK(status == 0, "a new process %s: status %d", when, status);
}

/* Every victim wants three quarters of the limit at once, so that one of them is in the way of the others. Each has
 * begun its loop when it is killed, at a random microsecond of the next two milliseconds or so. */
static void test_kill(int kills, int victims, uint64_t limit) {
  pid_t children[MAX_PROCESSES];
  char bytes[32], said[MAX_PROCESSES];
  int ready[2], killed = 0;
  snprintf(bytes, sizeof(bytes), "%llu", (unsigned long long)limit / 4 * 3);
  CHECK_EQUAL(pipe(ready), 0, "pipe");
  srandom(1);
  for (int left = kills; left > 0; left -= victims) {
    for (int i = 0; i < victims; i++)
      children[i] = start_victim(bytes, ready[1], i == 0);
    for (int got = 0; got < victims;)
      got += (int)read(ready[0], said, (size_t)(victims - got));
    for (int i = 0; i < victims; i++) {
      int status = 0;
      usleep((useconds_t)(random() % 300));
      kill(children[i], SIGKILL);
      waitpid(children[i], &status, 0);
      killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    }
    if (left == kills / 2) run_take_all(limit, "half way");
  }
  CHECK_EQUAL(killed, kills, "victims that were killed at work");
  run_take_all(limit, "after the kills");
}

/* A child that ends does not touch its parent's charge. */
static void test_fork(void) {
  CUdeviceptr pointer;
  int status;
  use_device(0);
  CHECK_EQUAL(cuMemAlloc_v2(&pointer, 400 * MIB), 0, "400 MiB");
  pid_t child = fork();
  if (child == 0) exit(0);
  waitpid(child, &status, 0);
  CHECK_EQUAL(used_bytes(), 400 * MIB, "after a child's exit");
  child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (child == 0) {
    /* A free of the parent's pointer in the child must not give the parent's charge back. */
    cuMemFree_v2(pointer);
    _exit(0);
  }
  waitpid(child, &status, 0);
  CHECK_EQUAL(used_bytes(), 400 * MIB, "after a raw clone's free and exit");
  CHECK_EQUAL(cuMemFree_v2(pointer), 0, "the parent's free");
  CHECK_EQUAL(used_bytes(), 0, "used at the end");
}

/* The parent has asked for nothing; a child that does has its own slot. */
static void test_fork_before(void) {
  size_t before = 0;
  CUdeviceptr pointer;
  int status;
  cuDeviceTotalMem_v2(&before, 0); /* builds the view, then fails or not */
  pid_t child = fork();
  if (child == 0) {
    use_device(0);
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 300 * MIB), 0, "300 MiB in the child");
    CHECK_EQUAL(used_bytes(), 300 * MIB, "its own charge");
    CHECK_EQUAL(cuMemAlloc_v2(&pointer, 800 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "800 MiB more");
    fflush(stdout);
    _exit(check_failed != 0);
  }
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child");
  use_device(0);
  CHECK_EQUAL(used_bytes(), 0, "nothing is left of it");
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  if (strcmp(name, "hold") == 0) hold(strtoull(argv[2], NULL, 10));
  if (strcmp(name, "burst") == 0 && argc == 6) test_burst(argv);
  if (strcmp(name, "churn") == 0 && argc == 7) test_churn(argv);
  if (strcmp(name, "victim") == 0) churn_for_ever(strtoull(argv[2], NULL, 10));
  if (strcmp(name, "kill") == 0 && argc == 5) test_kill(atoi(argv[2]), atoi(argv[3]), strtoull(argv[4], NULL, 10));
  if (strcmp(name, "fork") == 0) test_fork();
  if (strcmp(name, "fork-before") == 0) test_fork_before();
  CHECK(check_passed > 0, "no such case: %s", name);
  return check_done();
}
