// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/monitor"
)

// A fault is said when it begins, when it becomes another one and when it is over, each time with what it is about.
func TestNotes(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attr
	}}))
	var noted notes
	repair, observe := subject{stage: stageRepair, allocation: "k1"}, subject{stage: stageObserve, source: "nvml"}
	noted.change(log, repair, nil)
	for range 3 {
		noted.change(log, repair, errors.New("no room"))
		noted.change(log, observe, errors.New("no driver"))
	}
	noted.change(log, observe, errors.New("driver hangs"))
	noted.change(log, observe, nil)
	noted.keep(map[string]monitor.Allocation{"k1": {}})
	noted.change(log, repair, errors.New("no room"))
	noted.keep(nil) // the allocation is no more
	noted.change(log, repair, errors.New("no room"))
	want := `level=WARN msg=fault stage=repair allocation=k1 error="no room"
level=WARN msg=fault stage=observe source=nvml error="no driver"
level=WARN msg=fault stage=observe source=nvml error="driver hangs"
level=INFO msg="fault is over" stage=observe source=nvml
level=WARN msg=fault stage=repair allocation=k1 error="no room"
`
	if diff := cmp.Diff(want, text.String()); diff != "" {
		t.Error(diff)
	}
}
