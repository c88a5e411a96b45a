// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of what is pure: names, sizes, slices, preference, responses.

package plugin

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/vgpud/vgpud/plugin/ledger"
)

func TestValidateResourceName(t *testing.T) {
	for _, c := range []struct{ name, rule string }{ // an empty rule: the name is good
		{"example.com/vgpu", ""},
		{"nvidia.com/gpu", ""},
		{"example.com/VGPU_1.x", ""},
		{"example.com/" + strings.Repeat("a", 63), ""},
		{"example.com/" + strings.Repeat("a", 64), "no more than 63"},
		{"vgpu", "must contain a slash"},
		{"kubernetes.io/vgpu", "kubernetes.io/"},
		{"x.kubernetes.io/vgpu", "kubernetes.io/"},
		{"requests.example.com/vgpu", "requests."},
		{"Example.com/VGPU_1", "before the slash"},
		{"example.com/a/b", "one slash"},
		{"/vgpu", "before the slash"},
		{"example.com/", "non-empty"},
		{"example.com/-x", "start and end"},
		{strings.Repeat("a.", 121) + "a/x", ""},
		{strings.Repeat("a.", 122) + "a/x", "as requests."}, // a domain of 245 characters: fits only without requests.
		{"", "slash"},
	} {
		err := ValidateResourceName(c.name)
		switch {
		case c.rule == "" && err != nil:
			t.Errorf("%q: %v", c.name, err)
		case c.rule != "" && (err == nil || !strings.Contains(err.Error(), c.rule)):
			t.Errorf("%q: error %v, want the rule %q named", c.name, err, c.rule)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	good := Config{ResourceName: resource, KubeletDir: "/var/lib/kubelet", Strategy: StrategyCDI, CDIKind: "nvidia.com/gpu",
		ContainerDir: "/usr/local/vgpud", LibraryDir: "/var/lib/vgpud/lib", PagesDir: "/run/vgpud/pages", BuildID: testID}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"resource name":       func(c *Config) { c.ResourceName = "vgpu" },
		"strategy":            func(c *Config) { c.Strategy = "volume-mounts" },
		"CDI kind":            func(c *Config) { c.CDIKind = "nvidia.com" },
		"kubelet directory":   func(c *Config) { c.KubeletDir = "var/lib/kubelet" },
		"container directory": func(c *Config) { c.ContainerDir = "/usr/local/v gpud" },
		"library directory":   func(c *Config) { c.LibraryDir = "/a/../b" },
		"pages directory":     func(c *Config) { c.PagesDir = "" },
		"build ID":            func(c *Config) { c.BuildID = "../x" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestListBytesIsExact compares the arithmetic with the encoder.
func TestListBytesIsExact(t *testing.T) {
	for _, uuid := range []string{"GPU-a", uuidA, "MIG-" + strings.Repeat("x", 52)} {
		for _, slices := range []int{1, 9, 10, 11, 99, 100, 101, 1234, 10001} {
			for _, numa := range []int{NoNUMA, 0, 1, 127, 128} {
				g := GPU{GPU: ledger.GPU{UUID: uuid, UsableBytes: 1 << 50, Slices: slices}, NUMA: numa}
				g.Health = Health{Reason: "x"}
				want := proto.Size(listMessage(deriveSlices([]GPU{g}, "", nil, nil)))
				if got := listBytes(g); got != want {
					t.Errorf("%s × %d on node %d: %d bytes, encoder says %d", uuid, slices, numa, got, want)
				}
			}
		}
	}
}

// TestListSizeLimit: refused with the three numbers, or served.
func TestListSizeLimit(t *testing.T) {
	gpus := func(slices int) []GPU {
		var all []GPU
		for _, c := range "abcdefgh" {
			uuid := strings.ReplaceAll(uuidA, "aaaaaaaa", strings.Repeat(string(c), 8))
			all = append(all, GPU{GPU: ledger.GPU{UUID: uuid, UsableBytes: 80 * gib, Slices: slices}, NUMA: 0})
		}
		return all
	}
	err := refusal(gpus(81920))
	if err == nil {
		t.Fatal("655360 devices were accepted")
	}
	for _, number := range []string{"655360 devices", "3145728 bytes", "bytes when all are unhealthy"} {
		if !strings.Contains(err.Error(), number) {
			t.Errorf("error %q lacks %q", err, number)
		}
	}
	if !strings.Contains(refusal([]GPU{{GPU: ledger.GPU{UUID: "GPU-a", UsableBytes: 1 << 62, Slices: 1 << 40}}}).Error(), "1099511627776 devices") {
		t.Error("an absurd number of slices")
	}
	for _, slices := range []int{320, 80} { // 2560 and 640 devices
		if err := refusal(gpus(slices)); err != nil {
			t.Error(err)
		}
	}
}

func TestImpossibleGPUs(t *testing.T) {
	gpu := func(uuid string, bytes uint64, slices int) GPU {
		return GPU{GPU: ledger.GPU{UUID: uuid, UsableBytes: bytes, Slices: slices}}
	}
	for rule, gpus := range map[string][]GPU{
		"listed twice":   {gpu("GPU-a", gib, 1), gpu("GPU-a", gib, 1)},
		"UUID is empty":  {gpu("", gib, 1)},
		"0 slices":       {gpu("GPU-a", gib, 0)},
		"-2 slices":      {gpu("GPU-a", gib, -2)},
		"limit is 63":    {gpu(strings.Repeat("x", 61), gib, 1)},
		"less than 1 Mi": {gpu("GPU-a", gib, 2000)},
	} {
		if err := refusal(gpus); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	if err := refusal([]GPU{gpu("GPU-a", gib, 1)}); err != nil {
		t.Errorf("one slice: %v", err)
	}
}

// refusal is why some of gpus cannot be offered.
func refusal(gpus []GPU) error {
	_, err := choose(gpus, nil)
	return err
}

func TestDeriveSlices(t *testing.T) {
	gpu := func(h Health) []GPU {
		return []GPU{{GPU: ledger.GPU{UUID: "G", UsableBytes: 4 * gib, Slices: 4}, NUMA: NoNUMA, Health: h}}
	}
	held := map[string]bool{"G::1": true}
	for _, c := range []struct {
		name   string
		health Health
		node   string
		held   uint64
		want   string // one letter per slice: h healthy, else the first letter of the reason
	}{
		{"healthy", Health{}, "", gib, "hhhh"},
		{"soft: free slices only", Health{Reason: "contention"}, "", gib, "chcc"},
		{"soft, bounded: the highest numbers", Health{Reason: "contention", Most: 2}, "", gib, "hhcc"},
		{"soft, bounded: beside a full book", Health{Reason: "contention", Most: 1}, "", 4 * gib, "mhmc"},
		{"soft, with allocated ones", Health{Reason: "contention", Allocated: true}, "", gib, "cccc"},
		{"soft, bounded: free ones first", Health{Reason: "contention", Allocated: true, Most: 3}, "", gib, "chcc"},
		{"hard: no bound", Health{Reason: "lost", Hard: true, Most: 1}, "", gib, "llll"},
		{"hard: every slice", Health{Reason: "lost", Hard: true}, "", gib, "llll"},
		{"node fault: free slices", Health{}, "library", gib, "lhll"},
		{"book has room for one more", Health{}, "", 3*gib - 1, "hhmm"},
		{"book has room for none", Health{}, "", 4 * gib, "mhmm"},
		{"book is over", Health{}, "", 9 * gib, "mhmm"},
	} {
		var got strings.Builder
		for _, s := range deriveSlices(gpu(c.health), c.node, held, []ledger.BookRow{{UUID: "G", HeldBytes: c.held}}) {
			got.WriteString((s.Reason + "h")[:1])
		}
		if got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.String(), c.want)
		}
	}
}

// TestTakenMemoryIsNotOffered: what somebody holds beyond his grant cannot be given to another.
func TestTakenMemoryIsNotOffered(t *testing.T) {
	held := map[string]bool{"G::1": true}
	for taken, want := range map[uint64]string{0: "hhhm", 1: "hhtm", gib: "hhtm", 2 * gib: "thtm", 1 << 63: "thtm"} {
		gpu := GPU{GPU: ledger.GPU{UUID: "G", UsableBytes: 4 * gib, Slices: 4}, NUMA: NoNUMA, TakenBytes: taken}
		got := ""
		for _, s := range deriveSlices([]GPU{gpu}, "", held, []ledger.BookRow{{UUID: "G", HeldBytes: 2 * gib}}) {
			got += map[string]string{"": "h", ReasonMemoryTaken: "t", ReasonMemoryCommitted: "m"}[s.Reason]
		}
		if got != want {
			t.Errorf("%d bytes taken: %s, want %s", taken, got, want)
		}
	}
}

func TestPrefer(t *testing.T) {
	ids := strings.Fields
	for _, c := range []struct {
		name            string
		available, must []string
		size            int
		want            []string
	}{
		{"one from each GPU", ids("A::0 A::1 B::0 B::1"), nil, 2, ids("A::0 B::0")},
		{"emptier GPU first", ids("A::3 B::1 B::2"), nil, 1, ids("B::1")},
		{"different GPUs before free ones", ids("A::3 B::1 B::2 B::3"), nil, 2, ids("B::1 A::3")},
		{"wrap around to the emptier", ids("A::0 B::0 B::1 B::2"), nil, 3, ids("B::0 A::0 B::1")},
		{"numbers, not text", ids("A::10 A::9"), nil, 1, ids("A::9")},
		{"must-include counts as spread", ids("A::0 A::1 A::2 B::0"), ids("A::1"), 2, ids("A::1 B::0")},
		{"must-include not in available", ids("A::0 B::0"), ids("A::7"), 2, ids("A::7 B::0")},
		{"must-include is enough", ids("A::0"), ids("A::1 A::2"), 2, ids("A::1 A::2")},
		{"must-include is too much", ids("A::0"), ids("A::1 A::2"), 1, ids("A::1 A::2")},
		{"too few", ids("A::0"), nil, 3, ids("A::0")},
		{"foreign IDs are left out", ids("x A::0"), nil, 1, ids("A::0")},
		{"twice in the list", ids("A::0 A::0 B::0"), nil, 2, ids("A::0 B::0")},
	} {
		if diff := cmp.Diff(c.want, Prefer(c.available, c.must, c.size)); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
	}
}

var anyLibrary = ledger.Library{BuildID: testID, ContainerDir: "/usr/local/vgpud"}

// TestResponseGoldens compares with testdata/allocate; -update rewrites it.
func TestResponseGoldens(t *testing.T) {
	rec := ledger.Record{Key: "00112233445566778899aabbccddeeff", Resource: resource, Library: anyLibrary, PagesDir: "/run/vgpud/pages", Grants: []ledger.Grant{
		{UUID: uuidA, SliceIDs: []string{uuidA + "::2", uuidA + "::9"}, MemoryLimitBytes: 16 * gib,
			Compute: ledger.Compute{Mode: ledger.ComputeElastic, SharePPM: 200_000, CeilingPPM: ledger.WholePPM}},
		{UUID: uuidB, SliceIDs: []string{uuidB + "::3"}, MemoryLimitBytes: 8 * gib,
			Compute: ledger.Compute{Mode: ledger.ComputeElastic, SharePPM: 100_000, CeilingPPM: ledger.WholePPM}},
	}}
	cfg := Config{ResourceName: resource, KubeletDir: "/var/lib/kubelet", CDIKind: "nvidia.com/gpu",
		ContainerDir: "/not/what/counts", LibraryDir: "/var/lib/vgpud/lib", PagesDir: "/nor/this", BuildID: "ff00ff00"}
	moved := rec
	moved.Library.ContainerDir = "/opt/vgpud"
	for name, c := range map[string]struct {
		rec      ledger.Record
		strategy string
	}{"envvar": {rec, StrategyEnvvar}, "cdi-cri": {rec, StrategyCDI}, "container-dir": {moved, StrategyEnvvar}} {
		cfg.Strategy = c.strategy
		raw, err := protojson.Marshal(Response(c.rec, cfg))
		if err != nil {
			t.Fatal(err)
		}
		var tree any // the encoder varies its blanks on purpose
		if err := json.Unmarshal(raw, &tree); err != nil {
			t.Fatal(err)
		}
		got, err := json.MarshalIndent(tree, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, '\n')
		path := filepath.Join("testdata", "allocate", name+".json")
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestComputeTexts(t *testing.T) {
	hard := ledger.Compute{Mode: ledger.ComputeHard, SharePPM: 333_333, CeilingPPM: 333_333}
	elastic := ledger.Compute{Mode: ledger.ComputeElastic, SharePPM: 300_000, CeilingPPM: 650_000}
	for want, grants := range map[string][]ledger.Grant{
		"none":                        {{UUID: "GPU-a", Compute: ledger.Compute{Mode: ledger.ComputeNone}}, {UUID: "GPU-b"}},
		"hard share=33.3333":          {{UUID: "GPU-a", Compute: hard}},
		"elastic share=30 ceiling=65": {{UUID: "GPU-a", Compute: elastic}, {UUID: "GPU-b", Compute: elastic}},
		"GPU-a hard share=33.3333; GPU-b elastic share=30 ceiling=65": {{UUID: "GPU-a", Compute: hard}, {UUID: "GPU-b", Compute: elastic}},
	} {
		if got := computeTexts(grants); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPreloadFileNamesTheMountPath(t *testing.T) {
	for _, dir := range []string{"/usr/local/vgpud", "/opt/x"} {
		m := mounts(ledger.Record{Key: "k", Library: ledger.Library{BuildID: testID, ContainerDir: dir}, PagesDir: "/p"}, Config{LibraryDir: "/l"})
		if preloadContent(dir) != m[0].GetContainerPath()+"\n" {
			t.Errorf("preload file names %q, the library is mounted at %q", preloadContent(dir), m[0].GetContainerPath())
		}
	}
}

func TestPercentText(t *testing.T) {
	for ppm, want := range map[uint32]string{1_000_000: "100", 300_000: "30", 333_333: "33.3333", 10_000: "1", 12_500: "1.25", 0: "0"} {
		if got := PercentText(ppm); got != want {
			t.Errorf("%d: got %q, want %q", ppm, got, want)
		}
	}
}
