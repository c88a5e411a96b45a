// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"io"
	"os"
	"testing"
	"time"
)

func TestOptions(t *testing.T) {
	for _, bad := range [][]string{{"--cards", "0"}, {"--cards", "17"}, {"--containers", "81"}, {"--containers", "0"}, {"--measure", "0s"}, {"--profile", "-1s"},
		{"--out", "x", "--measure", "2s"}, {"--out", "x", "--", "--probes", "off"}, {"--what"}, {"--phase", "busy"}, {"--out", "x", "--phase", "idle"}} {
		if _, err := parseOptions(bad, io.Discard); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	o, err := parseOptions([]string{"--cards", "2", "--containers", "20", "--phase", "light", "--", "--probes", "off"}, io.Discard)
	if err != nil || len(o.agent) != 2 || len(phases(o.phase)) != 1 || len(phases("")) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestUsage has this process use processor time, and looks for it.
func TestUsage(t *testing.T) {
	before, err := readUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; {
		after, err := readUsage(os.Getpid()) // system calls and parsing
		if err != nil {
			t.Fatal(err)
		}
		used := after.user + after.system - before.user - before.system
		if used >= 10*tick {
			if passed := after.at.Sub(before.at); used > passed*8 {
				t.Errorf("%s used in %s", used, passed)
			}
			if after.rss == 0 || after.peak < after.rss || after.threads < 1 || after.switches < before.switches {
				t.Errorf("%+v", after)
			}
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("only %s seen in a minute", used)
		}
	}
}

func TestHostileNameInStat(t *testing.T) {
	var u usage
	if err := u.readStat([]byte("7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 12 34 0 0 20 0 1 0 5")); err != nil || u.user != 12*tick || u.system != 34*tick {
		t.Errorf("%+v, %v", u, err)
	}
	if err := u.readStat([]byte("7 (a) S 1")); err == nil {
		t.Error("a short line is accepted")
	}
}

func TestProfileIsRead(t *testing.T) {
	const top = `File: vgpud
Duration: 30s, Total samples = 150ms ( 0.50%)
Showing nodes accounting for 150ms, 100% of 150ms total
      flat  flat%   sum%        cum   cum%
      60ms 40.00% 40.00%       60ms 40.00%  internal/runtime/syscall.Syscall6
         0     0% 40.00%      120ms 80.00%  main.(*steerer).round
`
	_, spots := parseTop(top)
	if len(spots) != 2 || spots[0] != (spot{40, 40, "internal/runtime/syscall.Syscall6"}) || spots[1] != (spot{0, 80, "main.(*steerer).round"}) {
		t.Errorf("%+v", spots)
	}
	if n := countSamples("PeriodType: cpu nanoseconds\nSamples:\nsamples/count cpu/nanoseconds\n          3   30000000: 1 2 3\n          2   20000000: 4\nLocations\n     1: 0x1 M=1 f\n"); n != 5 {
		t.Errorf("%d samples, want 5", n)
	}
}
