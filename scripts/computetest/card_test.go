// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vgpud/vgpud/internal/require"
)

// card is a simulated GPU of this test alone.
type card struct {
	t    *testing.T
	sim  string // directory of the simulated driver
	dir  string // its state
	uuid string

	enter []string // command that leads to where the card is looked at; empty: here
}

// simStatus is what `gpusim status --json` says, as far as it is read here.
type simStatus struct {
	MonotonicNS int64 `json:"monotonic_ns"` // when it was read
	GPUs        []struct {
		UUID    string `json:"uuid"`
		BusyNS  int64  `json:"busy_ns"`
		Clients []struct {
			PID    int   `json:"pid"`
			BusyNS int64 `json:"busy_ns"`
		} `json:"clients"`
	} `json:"gpus"`
	Calls map[string]uint64 `json:"calls"`
}

// newCard makes a card; settings are KEY=VALUE of gpusim init.
func newCard(t *testing.T, settings ...string) *card {
	t.Helper()
	return newCardIn(t, nil, settings...)
}

// newCardIn is newCard, and whoever looks at the card does so through the command enter.
func newCardIn(t *testing.T, enter []string, settings ...string) *card {
	t.Helper()
	c := &card{t: t, sim: require.Sim(t), dir: filepath.Join(shortTemp(t), "card"), enter: enter}
	arguments := []string{"init", "--memory", "16GiB"}
	for _, setting := range settings {
		arguments = append(arguments, "--set", setting)
	}
	if out, err := c.gpusim(arguments...).CombinedOutput(); err != nil {
		t.Fatalf("gpusim init: %v\n%s", err, out)
	}
	c.uuid = c.status().GPUs[0].UUID
	return c
}

func (c *card) gpusim(arguments ...string) *exec.Cmd {
	all := slices.Concat(c.enter, []string{filepath.Join(c.sim, "gpusim"), "--dir", c.dir}, arguments)
	return exec.Command(all[0], all[1:]...)
}

func (c *card) status() (status simStatus) {
	c.t.Helper()
	out, err := c.gpusim("status", "--json").Output()
	if err == nil {
		err = json.Unmarshal(out, &status)
	}
	if err != nil || len(status.GPUs) != 1 {
		c.t.Fatalf("gpusim status: %v\n%s", err, out)
	}
	return status
}

// environment is what a program needs to find the card.
func (c *card) environment() []string {
	return []string{"GPUSIM_DIR=" + c.dir, "LD_LIBRARY_PATH=" + c.sim}
}

// mark is a reading of the card's books.
type mark struct {
	at      time.Duration         // monotonic
	busy    time.Duration         // the whole card
	clients map[int]time.Duration // live processes
	waiting map[int]time.Duration // what each of their threads has waited for a processor
}

func (c *card) mark() mark {
	c.t.Helper()
	status := c.status()
	m := mark{at: time.Duration(status.MonotonicNS), busy: time.Duration(status.GPUs[0].BusyNS), clients: map[int]time.Duration{}}
	for _, client := range status.GPUs[0].Clients {
		m.clients[client.PID] = time.Duration(client.BusyNS)
	}
	m.waiting = waitedForProcessor(slices.Collect(maps.Keys(m.clients)))
	return m
}

// percentSince is how much of the time since an earlier mark the card was busy.
func (m mark) percentSince(earlier mark) float64 {
	return 100 * float64(m.busy-earlier.busy) / float64(m.at-earlier.at)
}

// percentOf is percentSince for one process, which has to be alive.
func (m mark) percentOf(t *testing.T, pid int, earlier mark) float64 {
	t.Helper()
	busy, ok := m.clients[pid]
	if !ok {
		t.Fatalf("the card does not know process %d: %v", pid, m.clients)
	}
	return 100 * float64(busy-earlier.clients[pid]) / float64(m.at-earlier.at)
}

// over watches the card for a while.
func (c *card) over(d time.Duration) used {
	c.t.Helper()
	first := c.mark()
	time.Sleep(d)
	return c.mark().since(first)
}

// shortTemp is a directory with a path short enough for sockets, removed when the test ends.
func shortTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ct")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// pick chooses between the time that a test takes and the one that it takes with VGPU_TEST_LONG.
func pick[T any](scaled, long T) T {
	if longTimes {
		return long
	}
	return scaled
}
