// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package bpf sees from the kernel what processes ask of the CUDA driver: calls that copy, allocate, wait or make contexts,
// by control group, whatever is preloaded into the process or not. It observes and enforces nothing; launches of kernels
// are never probed.
//
// In: which processes have a driver's library mapped (perf_ring.go, watch.go), where in it probes cost least (prologue.go),
// and where there are so many calls that probes rest (rest.go). Out: Groups, counts since the first probe, and Status, what
// is seen, what is not and why.
//
// # What it takes
//
//	kernel       attached by                what is probed
//	6.13         uprobe.session links       everything (functions.go)
//	6.6          two uprobe.multi for each  everything
//	5.15         a perf event per function  allocations and contexts: mode sampled
//	older        –                          nothing
//
// A file has two links, as copies and waits can rest apart from calls that are rare.
//
//	capability             why                                                             without it
//	CAP_BPF                bpf(): maps, programs, links                                    no probes
//	CAP_PERFMON            programs that look at processes; records of mappings            no probes
//	CAP_SYS_PTRACE         other users' /proc/PID/maps                                     only libraries that are named ahead
//	CAP_CHECKPOINT_RESTORE /proc/PID/map_files: a mapped file whose name is gone or new    such files are told of as unobservable
//	CAP_DAC_READ_SEARCH    files and folders that root's own rights do not open; tracefs   such files are told of as unobservable
//
// CAP_SYS_ADMIN stands for the first two and CAP_CHECKPOINT_RESTORE. Kernels before 5.8 know neither of the first two.
// Single uprobes (kernels before 6.6) take CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 1, and so do all perf
// events where a distribution's kernel knows the values 3 and 4. CAP_SYS_RESOURCE is never needed: since 5.11 maps are
// charged to the control group and not to the limit of locked memory. Where tracefs is not mounted CAP_SYS_ADMIN makes an
// instance of it that is mounted nowhere; else ioctls are not counted. The seccomp profile must allow bpf() and
// perf_event_open(). The process must be in the host's pid namespace and in no user namespace.
//
// Type information of the kernel (/sys/kernel/btf/vmlinux) is needed where control groups are of version 1 or hybrid, and
// for ioctls, uprobe.session, and libraries below an overlay on kernels since 6.8.
//
// # Locks
//
// One goroutine finds libraries and attaches; it alone may wait for somebody's file. Groups and Status take one lock,
// which it holds for moments only.
package bpf
