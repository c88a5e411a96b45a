// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// streamCalls are what a driver is asked for about streams, events, graphs, memory and waiting: what can end a
// capture, or get into it.
var streamCalls = []string{"cuStream", "cuEvent", "cuLaunch", "cuGraph", "cuMem", "cuCtxSynchronize", "cuThread"}

// captured is what the driver was asked for during a capture.
type captured struct {
	calls map[string]uint64
	took  float64 // ms
}

// capture runs the program's capture and returns it at the point where it begins to replay.
func captureOn(t *testing.T, c *card, p *process) captured {
	t.Helper()
	p.await("capturing", 1, patience)
	before := c.status().Calls
	p.goOn()
	line := p.await("captured", 1, patience)[0]
	after := c.status().Calls
	p.goOn()
	result := captured{calls: map[string]uint64{}, took: line.number(t, "took_ms")}
	for name, count := range after {
		if slices.ContainsFunc(streamCalls, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) && count > before[name] {
			result.calls[name] = count - before[name]
		}
	}
	return result
}

// A capture stays legal: the driver is asked for exactly what the program asks for, nothing is kept waiting, and the
// graph's replays pay in full.
func TestCaptureIsLeftAlone(t *testing.T) {
	t.Parallel()
	for mode, name := range []string{"global", "thread-local", "relaxed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const kernels = 400
			kernel := pick("busy_10us", "busy_20us")
			program, length := program(t, "capture"), pick(5*time.Second, 20*time.Second)
			arguments := []string{fmt.Sprint(mode), kernel, "100000", fmt.Sprint((length + patience).Seconds())}
			c := newCard(t)
			p := c.bare(program, fmt.Sprint(mode), kernel, "1")
			want := captureOn(t, c, p)
			if done := p.done(patience); done.number(t, "kernels") != kernels {
				t.Fatalf("the graph has %s kernels, want %d", done["kernels"], kernels)
			}
			mustShare(t, 30, 2, func() used {
				c := newCard(t)
				p := c.limited(30, program, arguments...)
				defer p.kill()
				got := captureOn(t, c, p)
				if !maps.Equal(got.calls, want.calls) {
					t.Errorf("during the capture the driver was asked for\n%v\nwithout limits for\n%v", got.calls, want.calls)
				}
				if got.took > 1000 {
					t.Errorf("the capture took %.0f ms, without limits %.0f", got.took, want.took)
				}
				time.Sleep(settle)
				return c.over(length - settle)
			})
		})
	}
}

// All replays that were asked for are done, under a limit, too.
func TestCapturedGraphRunsToItsEnd(t *testing.T) {
	t.Parallel()
	replays := pick(200, 1000)
	c := newCard(t)
	p := c.limited(30, program(t, "capture"), "1", "busy_10us", fmt.Sprint(replays))
	begun := c.mark()
	captureOn(t, c, p)
	p.done(pick(30*time.Second, time.Minute))
	busy, want := c.mark().busy-begun.busy, time.Duration(replays*400)*10*time.Microsecond
	if busy < want || busy > want+want/100+time.Millisecond {
		t.Errorf("the card was busy for %s, the graph's replays take %s", busy, want)
	}
}
