// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package ledger holds the books of what is granted: how much of each GPU's memory and time the allocations of this
// node hold, and one record per allocation on disk. It is the only owner of both; everything else reads.
//
// A grant is made in three steps by the device plugin: Hold (in memory, mints the allocation key), Commit (the
// record is on disk, synced, before any reply), and much later Release. Release also takes back a hold that was
// never committed. Nothing is decided here about when an allocation ends: whoever knows that a pod is gone calls
// Release.
//
// A device ID counts once in the books, whoever holds it. The kubelet hands an ID out again only when its older
// holder is gone, or was an ordinary init container of the same pod; the newer allocation is granted, and both
// records stay until each is released.
//
// One mutex guards a Ledger; no other lock is taken under it. Disk writes happen under it too: an allocation is
// rare, and an answer that overtakes its record is what this package exists to prevent.
package ledger
