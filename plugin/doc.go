// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package plugin is the kubelet's view of the agent: it offers slices through the v1beta1 device plugin protocol,
// answers Allocate from the ledger, and checks before every container start that the files which an answer named
// are still what they were.
//
// Inputs: the GPUs and their health (Server.Update, called by the tick), the ledger's books, and the kubelet's
// calls. Outputs: device lists, allocate responses, limits and usage pages (through Pages), records in the ledger.
// Allocate looks at device IDs alone: no pod, no API server, no NVML; it fails as an RPC error or answers in full.
//
// Life of a registration: listen under a socket name never used before, serve, call ourselves, Register, and wait
// until the kubelet has opened ListAndWatch; if it does not, or later the stream ends, our socket goes, or
// kubelet.sock is another one, everything is closed and begins anew under a new name, at least 100 ms later.
// Kubelets before 1.37 kill a new registration when the old stream ends after it, and 1.37 can lose a socket path
// that is used twice; a fresh name after a complete stop is safe with all of them.
//
// Locks: Inventory.mu and the ledger's own; Inventory.mu is taken first. Server holds no lock across an RPC.
package plugin
