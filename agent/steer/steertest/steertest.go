// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package steertest stands in for a container's program that wants GPU time.
package steertest

import (
	"time"

	"github.com/vgpud/vgpud/limiter"
)

// Launch launches kernels of one millisecond for so much GPU time, or until it would have to wait.
func Launch(pacer *limiter.Pacer, now, amount time.Duration) {
	const kernel = time.Millisecond
	for range amount / kernel {
		var ticket limiter.Ticket
		if pacer.Ask(1, 64, 256, now, 0, limiter.PatienceMax, &ticket) > 0 {
			pacer.Waiting(now, now+20*time.Millisecond, 0)
			pacer.Waited(now, time.Millisecond)
			return
		}
		if ticket.Sample {
			pacer.Measured(&ticket, kernel, now)
		}
	}
}
