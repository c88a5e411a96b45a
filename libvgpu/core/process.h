/* SPDX-License-Identifier: Apache-2.0
 * Copyright The vgpud Authors
 *
 * process.h - who this process is, and whether another one is gone. Reads /proc; no libc, no allocation.
 */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* What tells one program in one process from any other, before and after. 0 means unknown in every field. */
struct vgpu_process {
  uint64_t start_time;    /* /proc/PID/stat field 22: clock ticks after boot; tells a reused pid */
  uint64_t start_stack;   /* field 28: where the stack began; tells a program that was replaced by execve */
  uint64_t pid_namespace; /* inode of /proc/self/ns/pid: pids of another namespace mean nothing here */
  uint32_t pid;           /* in its own namespace */
  uint32_t proc_is_ours;  /* nonzero: /proc shows our own pid namespace, so /proc/PID is PID */
};

/* Fills `self` for the calling process. Never fails: what cannot be read is unknown. A few system calls. */
void vgpu_process_self(struct vgpu_process *self);

/* Inode of the calling process's pid namespace, from the kernel; 0: unknown. */
uint64_t vgpu_process_namespace(void);

/* Pid of the calling process, from the kernel. */
uint32_t vgpu_process_pid(void);

enum vgpu_look {
  VGPU_LOOK_UNKNOWN, /* cannot be told: of another pid namespace, or out of sight */
  VGPU_LOOK_ALIVE,
  VGPU_LOOK_DEAD,  /* certainly gone: no such process, a zombie without living threads, a reused pid, or a program that
                     was replaced by execve (its device memory went with it) */
  VGPU_LOOK_OTHER, /* its pid is another process's by now; or its own, and its clock another (time_namespaces(7)) */
  VGPU_LOOK_SELF   /* this very process; so an earlier program of it, if it is not this one's own registration */
};

/* What has become of `other`. */
enum vgpu_look vgpu_process_look(const struct vgpu_process *self, const struct vgpu_process *other);

/* What /proc/PID/stat says. */
struct vgpu_process_stat {
  uint64_t pid;
  uint64_t num_threads;
  uint64_t start_time;
  uint64_t start_stack;
  char state;
};

/* Parses the text of a /proc/PID/stat. The name in it is chosen by the program and may hold blanks, digits and
 * parentheses. False if the text is not complete. */
bool vgpu_process_parse_stat(const char *text, uint64_t length, struct vgpu_process_stat *stat);

#endif
