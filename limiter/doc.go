// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package limiter is the Go side of enforcement: it creates, publishes, reads, repairs and removes the two pages
// that an allocation shares with libvgpu, and it drives the shim's own memory book for tests, fuzzers and
// benchmarks.
//
// It is the only package with import "C". The layout is libvgpu/include/vgpu_abi.h and the code that touches a page
// is libvgpu/core, compiled here a second time: there is no mirror to keep in step.
//
// An allocation's pages are two files in a directory of their own:
//
//	DIR/limits  written by this package, mounted read-only into the container
//	DIR/usage   written by the container's processes; every byte of it is hostile here
//
// A usage page is read with pread into private memory and checked there, or the kernel copies it there out of a mapping (Heads);
// nobody here touches such a mapping (a container that truncates the file would kill him), and no lock on a page is ever
// waited for. Files are opened through a handle of their directory, without following links.
//
// GPU time is granted in the limits page (Compute), steered through a handle that is kept open (Steering: rates out, meters
// in), and bought by the processes without asking anybody (Pacer is that side, in virtual time).
//
// The functions take no lock: per directory, one caller at a time may change a page (the lock of the agent's pageStore
// does that), while any number read. Callers: agent (pages source, plugin wiring, exec).
package limiter
