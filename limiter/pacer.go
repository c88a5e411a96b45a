// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The shim's own pacing of launches, driven from Go in virtual time.

package limiter

/*
#include <stdlib.h>
#include "../libvgpu/core/pace.h"

struct vgpu_process_pacer {
  struct vgpu_pacer pacer;
  struct vgpu_costs costs;
};

// One launch that asks: the quick way first, as libvgpu does.
static uint64_t pacer_ask(struct vgpu_process_pacer *p, uint64_t function, uint64_t blocks, uint32_t threads,
                          uint64_t now, uint64_t waited, uint64_t patience, bool collective, struct vgpu_ticket *ticket) {
  struct vgpu_cost *cost = vgpu_cost_find(&p->costs, (const void *)(uintptr_t)function, blocks, threads);
  if (collective) {
    __atomic_fetch_or(&cost->flags, VGPU_COST_COLLECTIVE, __ATOMIC_RELAXED);
  }
  if (ticket->cost == NULL && vgpu_pace_quick(&p->pacer, cost, ticket)) {
    return 0;
  }
  return vgpu_pace(&p->pacer, cost, now, waited, patience, ticket);
}

static void pacer_doubt(struct vgpu_process_pacer *p, uint64_t function) {
  vgpu_cost_doubt(vgpu_cost_find(&p->costs, (const void *)(uintptr_t)function, 0, 0));
}
*/
import "C"

import (
	"time"
	"unsafe"
)

// PatienceMax is the longest that a launch is kept waiting while its allocation launches nothing; see pace.h.
const PatienceMax = time.Duration(C.VGPU_WAIT_MAX_NS)

// Pacer paces the launches of one process on one device, with the code that libvgpu runs and the caller's clock. For tests
// and benchmarks. Several books of one program act as several processes of the container. Methods may be called from
// several goroutines, each with tickets of its own.
type Pacer struct {
	c           *C.struct_vgpu_process_pacer
	collectives map[uintptr]bool
}

// Ticket is one launch. The zero value asks for the first time.
type Ticket struct {
	Blind   bool          // set by the caller before it first asks: the launch cannot be measured
	Sample  bool          // it is to be measured: Measured or Unmeasured follows
	Busy    bool          // it was kept waiting for another launch to be measured, and not for GPU time
	Charged time.Duration // for the launch when it was let go, by estimate

	c C.struct_vgpu_ticket
}

// NewPacer makes a pacer for a device of the book. The caller closes it before the book.
func NewPacer(book *Book, device int) *Pacer {
	return NewCappedPacer(book, device, PPM)
}

// NewCappedPacer is NewPacer for a process with a cap of its own, from its environment.
func NewCappedPacer(book *Book, device int, ceilingPPM uint32) *Pacer {
	p := &Pacer{c: (*C.struct_vgpu_process_pacer)(C.calloc(1, C.sizeof_struct_vgpu_process_pacer)),
		collectives: map[uintptr]bool{}}
	C.vgpu_rate_open(&p.c.pacer.rate, book.book, C.uint32_t(device), C.uint32_t(ceilingPPM))
	return p
}

// Close frees the pacer.
func (p *Pacer) Close() {
	C.free(unsafe.Pointer(p.c))
	p.c = nil
}

// SetCollective says, before its first launch, that a function is a collective: what it takes may be waiting for its peers.
func (p *Pacer) SetCollective(function uintptr) { p.collectives[function] = true }

// Ask asks for a launch of a function (0 blocks and threads: of a graph). 0: launch. Else: wait at most so long, then ask
// again with the same ticket. waited: how long this launch has waited in all; patience: after this time it launches
// whatever the debt.
func (p *Pacer) Ask(function uintptr, blocks uint64, threads uint32, now, waited, patience time.Duration, t *Ticket) time.Duration {
	t.c.blind = C.bool(t.Blind)
	wait := C.pacer_ask(p.c, C.uint64_t(function), C.uint64_t(blocks), C.uint32_t(threads), C.uint64_t(now),
		C.uint64_t(waited), C.uint64_t(patience), C.bool(p.collectives[function]), &t.c)
	t.Sample, t.Busy, t.Charged = bool(t.c.sample), bool(t.c.busy), time.Duration(t.c.charged_ns)
	return time.Duration(wait)
}

// Measured tells how long a launch with Sample, which is done by now, took by the GPU's clock.
func (p *Pacer) Measured(t *Ticket, elapsed, now time.Duration) {
	C.vgpu_pace_measured(&p.c.pacer, &t.c, C.uint64_t(elapsed), C.uint64_t(now))
}

// Unmeasured tells that it could not be measured.
func (p *Pacer) Unmeasured(t *Ticket) { C.vgpu_pace_unmeasured(&p.c.pacer, &t.c) }

// Refused tells that the driver would not launch it.
func (p *Pacer) Refused(t *Ticket) { C.vgpu_pace_refused(&p.c.pacer, &t.c) }

// Waiting tells that a thread begins to wait for GPU time until a time (waited 0), or goes on waiting, and for how long
// it has since the last call.
func (p *Pacer) Waiting(now, until, waited time.Duration) {
	C.vgpu_rate_waiting(&p.c.pacer.rate, C.uint64_t(now), C.uint64_t(until), C.uint64_t(waited))
}

// Waited tells that it waits no longer. Once for each wait that began.
func (p *Pacer) Waited(now, waited time.Duration) {
	C.vgpu_rate_waited(&p.c.pacer.rate, C.uint64_t(now), C.uint64_t(waited))
}

// Doubt tells that the content of a graph changed.
func (p *Pacer) Doubt(graph uintptr) { C.pacer_doubt(p.c, C.uint64_t(graph)) }

// Debt is how far the process is in debt, in GPU time.
func (p *Pacer) Debt(now time.Duration) time.Duration {
	return time.Duration(C.vgpu_rate_debt_ns(&p.c.pacer.rate, C.uint64_t(now)))
}

// Flush puts the launches that were counted into the usage page.
func (p *Pacer) Flush(now time.Duration) { C.vgpu_pace_flush(&p.c.pacer, C.uint64_t(now)) }
