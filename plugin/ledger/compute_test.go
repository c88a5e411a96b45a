// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of what a grant may use of a GPU's time, and of records that are older than that.

package ledger

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestComputeShareIsTheSlicesPart(t *testing.T) {
	elastic := ComputePolicy{Mode: ComputeElastic, CeilingPPM: 600_000}
	hard := ComputePolicy{Mode: ComputeHard, CeilingPPM: 600_000}
	for _, test := range []struct {
		name         string
		policy       ComputePolicy
		held, slices int
		want         Compute
	}{
		{"nothing said", ComputePolicy{}, 3, 10, Compute{Mode: ComputeNone}},
		{"none", ComputePolicy{Mode: ComputeNone, CeilingPPM: 600_000}, 3, 10, Compute{Mode: ComputeNone}},
		{"elastic", elastic, 3, 10, Compute{ComputeElastic, 300_000, 600_000}},
		{"share above the ceiling", elastic, 7, 10, Compute{ComputeElastic, 700_000, 700_000}},
		{"elastic, no ceiling", ComputePolicy{Mode: ComputeElastic, CeilingPPM: WholePPM}, 3, 10, Compute{ComputeElastic, 300_000, WholePPM}},
		{"hard knows no ceiling", hard, 3, 10, Compute{ComputeHard, 300_000, 300_000}},
		{"thirds", hard, 1, 3, Compute{ComputeHard, 333_333, 333_333}},
		{"all thirds", hard, 3, 3, Compute{ComputeHard, WholePPM, WholePPM}},
		{"the least share", hard, 1, 1000, Compute{ComputeHard, MinSharePPM, MinSharePPM}},
		{"more held than there are now", hard, 12, 10, Compute{ComputeHard, WholePPM, WholePPM}},
		{"a GPU that is not cut", hard, 1, 0, Compute{Mode: ComputeNone}},
	} {
		got := test.policy.grant(test.held, test.slices)
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
		if err := got.validate(); err != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// What was granted stays, whatever is granted from then on, over restarts as well.
func TestComputeIsOfTheGrant(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, GPU{"GPU-a", 80 * gib, 10})
	l.SetCompute(ComputePolicy{Mode: ComputeElastic, CeilingPPM: 800_000})
	first := grant(t, l, "GPU-a::0", "GPU-a::1")
	l.SetCompute(ComputePolicy{Mode: ComputeHard})
	second := grant(t, l, "GPU-a::2")
	again := open(t, dir, GPU{"GPU-a", 80 * gib, 4})
	again.SetCompute(ComputePolicy{Mode: ComputeNone})
	for key, want := range map[string]Compute{
		first.Key: {ComputeElastic, 200_000, 800_000}, second.Key: {ComputeHard, 100_000, 100_000}} {
		if record, _ := again.Record(key); record.Grants[0].Compute != want {
			t.Errorf("%+v, want %+v", record.Grants[0].Compute, want)
		}
	}
}

// olderRecord writes the record of an allocation of two slices as a build wrote it that knew nothing of GPU time.
func olderRecord(t *testing.T, dir string) (key string) {
	t.Helper()
	key = strings.Repeat("0a", KeyBytes/2)
	const text = `{
  "version": 1,
  "key": "KEY",
  "resource": "nvidia.com/gpu",
  "library": {"buildID": "abcd", "containerDir": "/usr/local/vgpud"},
  "pagesDir": "/run/vgpud/pages",
  "createdAt": "2026-11-29T12:00:00Z",
  "grants": [{"uuid": "GPU-a", "sliceIDs": ["GPU-a::0", "GPU-a::1"], "memoryLimitBytes": 17179869184}]
}
`
	if err := os.WriteFile(filepath.Join(dir, key+".json"), []byte(strings.ReplaceAll(text, "KEY", key)), 0o600); err != nil {
		t.Fatal(err)
	}
	return key
}

// The library that an older record names does not limit GPU time, whatever the policy is today.
func TestOlderRecordsHaveNoCompute(t *testing.T) {
	dir := t.TempDir()
	key := olderRecord(t, dir)
	l := open(t, dir, GPU{"GPU-a", 80 * gib, 10})
	if len(l.SetAside()) != 0 {
		t.Fatalf("set aside: %+v", l.SetAside())
	}
	l.SetCompute(ComputePolicy{Mode: ComputeElastic, CeilingPPM: WholePPM})
	want := Compute{Mode: ComputeNone}
	record, _ := l.Record(key)
	if record.Grants[0].Compute != want || record.Version != RecordVersion || record.Grants[0].MemoryLimitBytes != 16*gib {
		t.Errorf("%+v", record)
	}
	// Once it is written for another reason, it is written with what was granted.
	if err := l.Identify(key, Identity{PodUID: "uid"}); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, GPU{"GPU-a", 80 * gib, 10})
	if record, _ := again.Record(key); record.Grants[0].Compute != want {
		t.Errorf("after a restart: %+v", record)
	}
}

// A record that says of GPU time what none could have been granted is no record.
func TestImpossibleComputeIsSetAside(t *testing.T) {
	valid := Record{Version: RecordVersion, Key: strings.Repeat("a", KeyBytes), Resource: "a.com/b", Library: anyLibrary, PagesDir: anyPages}
	for _, compute := range []Compute{
		{}, {Mode: "soft", SharePPM: 300_000, CeilingPPM: 300_000}, {Mode: ComputeNone, SharePPM: 1}, {ComputeHard, 0, 300_000},
		{ComputeHard, MinSharePPM - 1, 300_000}, {ComputeElastic, 300_000, 299_999}, {ComputeElastic, 300_000, WholePPM + 1},
		{ComputeHard, 4_000_000_000, 4_000_000_000},
	} {
		record := valid
		record.Grants = []Grant{{"GPU-a", []string{"GPU-a::0"}, 5, compute}}
		data, err := record.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeRecord(data); err == nil {
			t.Errorf("%+v was accepted", compute)
		}
	}
	older := valid
	older.Version = memoryOnlyVersion
	older.Grants = []Grant{{"GPU-a", []string{"GPU-a::0"}, 5, Compute{ComputeHard, 300_000, 300_000}}}
	data, err := older.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeRecord(data); err == nil {
		t.Errorf("accepted, of a version that has none: %s", cmp.Diff(older, got))
	}
}

func TestRevisionChangesWithTheAllocations(t *testing.T) {
	l := open(t, t.TempDir(), GPU{"GPU-a", 80 * gib, 10})
	last := l.Revision()
	changed := func(what string, want bool) {
		t.Helper()
		if now := l.Revision(); (now != last) != want {
			t.Errorf("%s: revision %d after %d", what, now, last)
		}
		last = l.Revision()
	}
	changed("nothing", false)
	record := grant(t, l, "GPU-a::0")
	changed("a grant", true)
	for range 2 {
		if err := l.Identify(record.Key, Identity{PodUID: "uid"}); err != nil {
			t.Fatal(err)
		}
	}
	changed("an identity", true)
	if err := l.Release(record.Key); err != nil {
		t.Fatal(err)
	}
	changed("a release", true)
}
