// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package virtual

import (
	"time"

	"github.com/vgpud/vgpud/scripts/computebench/scene"
)

// What calls of the driver cost the thread that makes them.
const (
	launchTime    = 2 * time.Microsecond
	markTime      = time.Microsecond
	graphTime     = 15 * time.Microsecond
	graphNodeTime = 600 * time.Nanosecond
	kernelJitter  = 0.05 // of a kernel's time
)

// launch is one launch as a limiter sees it, and what it really takes.
type launch struct {
	function uintptr
	blocks   uint64
	threads  uint32
	path     scene.Path
	takes    time.Duration // GPU time, running alone
	fills    float64
	host     time.Duration // of the launching thread
	meet     *meeting
}

// law decides when a process's launches go.
type law interface {
	// launch lets one launch of the thread go to a card, at last.
	launch(t *thread, caller *caller, card, stream int, l launch)
}

// process is one program of a tenant.
type process struct {
	world    *world
	tenant   *tenant
	contexts []*context // by card
	law      law
	kernel   time.Duration // GPU time of one of its kernels
	meetings []*meeting    // of collective rounds
	dead     bool
}

// caller is what a limiter keeps of one thread.
type caller struct {
	grouped bool // its last launch was a collective
	card    int  // on that card
}

// tenant is one container.
type tenant struct {
	scene.Tenant
	number    int
	processes []*process
	rounds    int           // collectives that all ranks have done
	longest   time.Duration // a launch waited
	throttled time.Duration
	factor    float64     // what marks show of the truth
	onShare   []func(int) // who is to know when the share changes, in percent
}

// item is the launch as the card's work.
func (l launch) item() item { return item{left: l.takes, fills: l.fills, meet: l.meet} }

// submit hands the launch to the driver.
func (t *thread) submit(x *context, stream int, l launch) {
	t.spend(l.host)
	t.enqueue(x, stream, l.item())
}

// start starts a thread of the process.
func (p *process) start(number int) {
	p.world.spawn(p.tenant.From, func(t *thread) {
		c := &caller{}
		for n := number; ; {
			from, until := p.tenant.NextOn(t.world.now)
			if from >= p.tenant.Until {
				return
			}
			t.until(from)
			for ; t.world.now < until && !p.dead; n++ {
				if p.tenant.Load.Path == scene.Collective {
					p.round(t, c, number, n-number)
				} else {
					p.step(t, c, n)
				}
			}
			if p.dead {
				return
			}
		}
	})
}

// newLaunch is the next launch of the tenant's kind.
func (p *process) newLaunch() launch {
	load := p.tenant.Load
	takes := time.Duration(0)
	host := launchTime
	for range load.Nodes {
		takes += p.world.jitter(p.kernel, kernelJitter)
	}
	if load.Path == scene.Graph {
		host = graphTime + time.Duration(load.Nodes)*graphNodeTime
	}
	return launch{function: kernelFunction, blocks: load.Blocks, threads: load.Threads, path: load.Path, takes: takes,
		fills: load.Fills, host: host}
}

// step is one launch on each card, waited for if the tenant is of that kind.
func (p *process) step(t *thread, c *caller, n int) {
	load := p.tenant.Load
	stream := n % load.Streams
	for card := range p.contexts {
		p.law.launch(t, c, card, stream, p.newLaunch())
	}
	if load.Duty == 0 || p.dead {
		return
	}
	for _, x := range p.contexts {
		t.synchronize(x, stream)
	}
	t.spend(time.Duration(float64(load.Kernel) * (1 - load.Duty) / load.Duty))
}

// Shape of a round of the collective tenant: kernels on each card, then all meet, as in data-parallel training.
const (
	roundKernels       = 5
	meetingTime        = 500 * time.Microsecond
	kernelFunction     = 0x1000 // handles
	collectiveFunction = 0x2000
)

// round is one round of one rank, on its own card.
func (p *process) round(t *thread, c *caller, rank, number int) {
	for range roundKernels {
		l := p.newLaunch()
		l.path = scene.Plain
		p.law.launch(t, c, rank, 0, l)
	}
	if number == len(p.meetings) {
		p.meetings = append(p.meetings, &meeting{missing: len(p.contexts), takes: meetingTime})
	}
	p.law.launch(t, c, rank, 0, launch{function: collectiveFunction, blocks: 24, threads: 512, path: scene.Collective, fills: 1,
		host: launchTime, meet: p.meetings[number]})
	t.synchronize(p.contexts[rank], 0)
	if rank == 0 {
		p.tenant.rounds++
	}
}
