// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of the configuration: precedence, validation, messages, printing and documentation.

package main

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/control"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// load runs the loader on a command line, an environment and the text of a file ("" for none).
func load(t testing.TB, arguments, environ []string, file string) (Config, error) {
	t.Helper()
	command := &cobra.Command{Use: "run"}
	addConfigFlags(command)
	if file != "" {
		path := filepath.Join(t.TempDir(), "vgpud.yaml")
		if err := os.WriteFile(path, []byte(file), 0o644); err != nil {
			t.Fatal(err)
		}
		arguments = append(arguments, "--config="+path)
	}
	if err := command.ParseFlags(append(arguments, "--library=/lib/libvgpu.so")); err != nil {
		t.Fatal(err)
	}
	return loadConfig(command, environ)
}

func TestDefaults(t *testing.T) {
	config, err := load(t, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if config.ResourceName != "nvidia.com/gpu" || config.SlicesPerGPU != 10 || config.TickInterval != time.Second ||
		config.ComputeMode != "elastic" || config.ComputeCeilingPercent != 100 || config.DeviceListStrategy != "envvar" || config.TextfileDir != "" || config.KubeletDir != "/var/lib/kubelet" {
		t.Errorf("%+v", config)
	}
}

func TestPrecedence(t *testing.T) {
	const file = "slices-per-gpu: 3\nresource-name: file.example/gpu\nmemory-margin: 1Gi\n"
	environ := []string{"VGPUD_SLICES_PER_GPU=4", "VGPUD_RESOURCE_NAME=env.example/gpu", "VGPUD_TICK_INTERVAL=", "VGPUD_PORT=tcp://x"}
	config, err := load(t, []string{"--slices-per-gpu=5"}, environ, file)
	if err != nil {
		t.Fatal(err)
	}
	if config.SlicesPerGPU != 5 || config.ResourceName != "env.example/gpu" || config.MemoryMarginBytes != 1<<30 || config.TickInterval != time.Second {
		t.Errorf("slices %d (flag: 5), resource %s (environment), margin %d (file), interval %v (default)",
			config.SlicesPerGPU, config.ResourceName, config.MemoryMarginBytes, config.TickInterval)
	}
}

func TestConfigFileFromEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpud.yaml")
	if err := os.WriteFile(path, []byte("slices-per-gpu: 7"), 0o644); err != nil {
		t.Fatal(err)
	}
	config, err := load(t, nil, []string{"VGPUD_CONFIG=" + path}, "")
	if err != nil || config.SlicesPerGPU != 7 {
		t.Errorf("%d slices, %v", config.SlicesPerGPU, err)
	}
}

// Bad values are refused with key, value and rule.
func TestBadValues(t *testing.T) {
	name64 := "example.com/" + strings.Repeat("a", 64)
	for _, test := range []struct{ key, value, rule string }{
		{"resource-name", "vgpu", ""}, {"resource-name", "kubernetes.io/vgpu", ""}, {"resource-name", "x.kubernetes.io/vgpu", ""},
		{"resource-name", "requests.example.com/vgpu", ""}, {"resource-name", "Example.com/VGPU_1", ""}, {"resource-name", name64, ""},
		{"resource-name", "", ""}, {"resource-name", "example.com/", ""},
		{"slices-per-gpu", "0", "1 to 1000"}, {"slices-per-gpu", "-2", "1 to 1000"}, {"slices-per-gpu", "1000000", "1 to 1000"},
		{"slices-per-gpu", "two", "1 to 1000"}, {"slices-per-gpu", "1.5", "1 to 1000"},
		{"memory-margin", "-1", "want e.g. 4Gi, 512Mi, 1.5G (1024-based) or bytes"}, {"memory-margin", "50%", "unknown suffix"}, {"memory-margin", "99999999999G", "64 bits"},
		{"compute-mode", "soft", "elastic, hard, none"}, {"compute-mode", "", "elastic, hard, none"}, {"compute-mode", "Hard", "elastic, hard, none"},
		{"compute-ceiling", "0", amount.PercentRule}, {"compute-ceiling", "101", amount.PercentRule}, {"compute-ceiling", "50%", amount.PercentRule},
		{"compute-ceiling", "12.5", amount.PercentRule}, {"compute-ceiling", "-5", amount.PercentRule}, {"compute-ceiling", "most", amount.PercentRule}, {"compute-ceiling", " ", amount.PercentRule},
		{"device-list-strategy", "volume-mounts", "envvar, cdi-cri"}, {"cdi-kind", "gpu", "<vendor>/<class>"},
		{"cdi-kind", "nvidia.com/gpu/x", "<vendor>/<class>"}, {"cdi-kind", "1nvidia/gpu", "start with letter"}, {"container-dir", "/a#b", "#"},
		{"kubelet-dir", "relative", "absolute"}, {"pages-dir", "/", "absolute"}, {"pages-dir", "/a b", "blanks"},
		{"container-dir", "/usr/local/a:b", "colons"}, {"state-dir", "/var/../lib", "clean"}, {"state-dir", "", "absolute"},
		{"library", "libvgpu.so", "absolute"}, {"textfile-dir", "x/", "absolute"},
		{"tick-interval", "1", "a unit is missing, e.g. 5s"}, {"tick-interval", "1ms", "100ms to 1m"}, {"tick-interval", "1h", "100ms to 1m"},
		{"contention", "on", "off, report, health"}, {"contention-preset", "slow", "default, fast, custom"},
		{"contention-above", "0", amount.PercentRule}, {"contention-above", "25%", amount.PercentRule}, {"contention-below", "", amount.PercentRule},
		{"contention-bad-for", "60", "a unit is missing"}, {"contention-bad-for", "2s", "10s to 1h"}, {"contention-good-for", "2h", "10s to 1h"},
		{"contention-hold", "1h", "10s to 30m"}, {"contention-lever-for", "forever", "30s to 30m"}, {"contention-mark-allocated", "yes", "true, false"},
		{"contention-lever", "100", "1 to 99"}, {"contention-lever", "-1", "1 to 99"}, {"contention-lever", "", "1 to 99"},
		{"probes", "on", "auto, full, sampled, off"}, {"witness", "shoot", "off, report, freeze, kill"}, {"witness-overhead", "5%", "unknown suffix"},
		{"witness-overhead", "", "want e.g. 4Gi"}, {"witness-trusted-namespaces", "a,B", "name of a namespace"}, {"witness-trusted-namespaces", "a.b", "name of a namespace"},
		{"events", "always", "auto, off"}, {"node-name", "Node_1", "name of a node"}, {"kubeconfig", "config", "absolute"},
		{"control-socket", "vgpud.sock", "absolute"}, {"control-socket", "/" + strings.Repeat("s", control.LongestPath), "103 bytes"},
		{"log-level", "loud", "debug, info"}, {"log-format", "xml", "text, json"},
	} {
		t.Run(test.key+"="+test.value, func(t *testing.T) {
			_, err := load(t, []string{"--" + test.key + "=" + test.value}, nil, "")
			if test.key == "library" { // the loader of this test sets it last
				command := &cobra.Command{Use: "run"}
				addConfigFlags(command)
				if parseErr := command.ParseFlags([]string{"--library=" + test.value}); parseErr != nil {
					t.Fatal(parseErr)
				}
				_, err = loadConfig(command, nil)
			}
			if err == nil {
				t.Fatal("accepted")
			}
			for _, part := range []string{test.key, `"` + test.value + `"`, "flag --" + test.key, test.rule} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

// Whatever --print-config prints as good, the plugin takes: the two have one rule.
func TestAcceptedValuesAreGoodForThePlugin(t *testing.T) {
	paths := []string{"", "/", "/a", "/a/", "//a", "/a/../b", "relative", "/a b", "/a\tb", "/a\rb", "/a\vb", "/a:b", "/a,b", "/a#b", "/a=b",
		"/a%b", "/ä", "/\xff", "/a\x00b"}
	values := map[string][]string{
		"kubelet-dir": paths, "state-dir": paths, "pages-dir": paths, "container-dir": paths,
		"resource-name":        {"nvidia.com/gpu", "gpu", "a/b", "a/b/c", "A.com/gpu", "x.kubernetes.io/gpu", "a.b/c_d", "a.b/-"},
		"device-list-strategy": {"envvar", "cdi-cri", "ENVVAR", ""},
		"cdi-kind": {"nvidia.com/gpu", "a/b", "A/B", "1a/b", "a/1b", "a_b/c", "a/b_", "a-/b", "a/b/c", "a", "/", "a/", "/b", "a/b=c", "a b/c",
			strings.Repeat("a", 300) + "/b"},
	}
	accepted := 0
	for key, texts := range values {
		for _, text := range texts {
			arguments := []string{"--device-list-strategy=cdi-cri", "--" + key + "=" + text}
			config, err := load(t, arguments, nil, "")
			if err != nil {
				continue
			}
			accepted++
			if err := pluginConfig(config, "0123456789abcdef", plugin.Timing{}).Validate(); err != nil {
				t.Errorf("%s=%q is accepted, and then refused: %v", key, text, err)
			}
		}
	}
	if accepted < 20 {
		t.Errorf("%d values accepted: nothing was tested", accepted)
	}
}

func TestComputeOptions(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		want      ledger.ComputePolicy
	}{
		{nil, ledger.ComputePolicy{Mode: "elastic", CeilingPPM: 1_000_000}},
		{[]string{"--compute-ceiling=60", "--slices-per-gpu=4"}, ledger.ComputePolicy{Mode: "elastic", CeilingPPM: 600_000}},
		{[]string{"--compute-mode=hard"}, ledger.ComputePolicy{Mode: "hard", CeilingPPM: 1_000_000}},
		{[]string{"--compute-mode=none", "--compute-ceiling=100"}, ledger.ComputePolicy{Mode: "none", CeilingPPM: 1_000_000}},
	} {
		config, err := load(t, test.arguments, nil, "")
		if got := config.compute(); err != nil || got != test.want {
			t.Errorf("%v: %+v, %v; want %+v", test.arguments, got, err, test.want)
		}
	}
	for _, mode := range []string{"hard", "none"} {
		_, err := load(t, []string{"--compute-mode=" + mode}, []string{"VGPUD_COMPUTE_CEILING=60"}, "")
		if err == nil || !strings.Contains(err.Error(), `compute-ceiling: value "60": compute-mode is `+mode) {
			t.Errorf("a ceiling beside %s: %v", mode, err)
		}
	}
}

func TestContentionOptions(t *testing.T) {
	config, err := load(t, []string{"--contention-preset=custom", "--contention-above=40", "--contention-hold=10m", "--contention-lever=30",
		"--witness-trusted-namespaces= gpu-operator, monitoring,", "--witness-overhead=0"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if want := (ContentionNumbers{Above: 0.4, Below: 0.12, BadFor: time.Minute, GoodFor: 2 * time.Minute, Hold: 10 * time.Minute}); config.ContentionNumbers != want {
		t.Errorf("%+v, want %+v", config.ContentionNumbers, want)
	}
	if config.ContentionLeverPercent != 30 || !slices.Equal(config.WitnessTrusted, []string{"gpu-operator", "monitoring"}) || config.WitnessOverheadBytes != 0 {
		t.Errorf("%+v", config)
	}
	for _, test := range []struct {
		arguments []string
		fault     string
	}{
		{[]string{"--contention-above=40"}, `contention-above: value "40": contention-preset is default`},
		{[]string{"--contention-preset=fast", "--contention-hold=10m"}, `contention-hold: value "10m": contention-preset is fast`},
		{[]string{"--contention-preset=custom", "--contention-below=25"}, `contention-below: value "25": want less`},
		{[]string{"--contention=report", "--contention-lever=30"}, `contention-lever: value "30": contention is report`},
		{[]string{"--contention=off", "--contention-mark-allocated=true"}, `contention-mark-allocated: value "true": contention is off`},
	} {
		if _, err := load(t, test.arguments, nil, ""); err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("%v: %v, want %s", test.arguments, err, test.fault)
		}
	}
}

func TestAllFaultsAreReported(t *testing.T) {
	_, err := load(t, []string{"--log-level=loud"}, []string{"VGPUD_LOG_FORMAT=xml"}, "slices-per-gpu: 0")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"flag --log-level", "environment VGPUD_LOG_FORMAT", "file "} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// A key that is unknown hides no other fault; each has a line of its own, and names that are nearly right are named.
func TestUnknownKeysHideNothing(t *testing.T) {
	_, err := load(t, nil, nil, "slices_per_gpu: 4\nslicesPerGPU: 4\nslice-per-gpus: 4\nfrobnicate: 1\nlog-level: loud\ntick-interval: 5\nlog-format:\n")
	if err == nil {
		t.Fatal("accepted")
	}
	lines := strings.Split(err.Error(), "\n")
	for _, want := range []string{"slices_per_gpu: unknown key: did you mean slices-per-gpu?", "slicesPerGPU: unknown key: did you mean slices-per-gpu?",
		"slice-per-gpus: unknown key: did you mean slices-per-gpu?", "frobnicate: unknown key; known are resource-name, ",
		`log-level: value "loud"`, "a unit is missing, e.g. 5s", "log-format: no value"} {
		if count := len(slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.Contains(line, want) })); count != 1 {
			t.Errorf("%q is in %d lines of\n%v", want, count, err)
		}
	}
	if len(lines) != 7 {
		t.Errorf("%d lines, want 7:\n%v", len(lines), err)
	}
}

// Variables that look like options and are none are said; those of Kubernetes and ours are no mistakes.
func TestUnknownVariables(t *testing.T) {
	config, err := load(t, nil, []string{"VGPUD_SLICES=4", "VGPUD_TICKINTERVAL=2s", "VGPUD_FROBNICATE=1", "VGPUD_PORT=tcp://x",
		"VGPUD_SERVICE_HOST=x", "VGPUD_SERVICE_PORT_HTTP=1", "VGPUD_METRICS_PORT_80_TCP_ADDR=x", "VGPUD_ALLOCATION=k", "VGPUD_LOG_LEVEL=info"}, "")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	config.warn(slog.New(slog.NewTextHandler(&text, nil)))
	for _, want := range []string{"variable=VGPUD_SLICES did_you_mean=VGPUD_SLICES_PER_GPU\n",
		"variable=VGPUD_TICKINTERVAL did_you_mean=VGPUD_TICK_INTERVAL\n", "variable=VGPUD_FROBNICATE\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	if count := strings.Count(text.String(), "level=WARN"); count != 3 {
		t.Errorf("%d warnings, want 3:\n%s", count, text.String())
	}
}

// Unknown and duplicate keys are errors; an empty file is none.
func TestFiles(t *testing.T) {
	for _, test := range []struct{ name, text, fault string }{
		{"unknown key", "slices: 10", "slices: unknown key"},
		{"wrong case", "Slices-Per-GPU: 10", "unknown key"},
		{"duplicate key", "slices-per-gpu: 3\nslices-per-gpu: 4", "already"},
		{"list", "- slices-per-gpu", "mapping"},
		{"text", "hello", "mapping"},
		{"nested", "slices-per-gpu: {a: 1}", "plain"},
		{"no value", "slices-per-gpu:", "no value"},
		{"truth", "log-level: true", "want one of debug"},
		{"word that is none here", "contention: yes", `value "yes" from file`},
		{"not YAML", "a: b: c", "YAML"},
		{"fraction", "slices-per-gpu: 1.5", "1 to 1000"},
		{"large number", "memory-margin: 18446744073709551616", "64 bits"},
		{"empty", "\n", ""}, {"comment", "# nothing\n", ""}, {"one slice", "slices-per-gpu: 1", ""},
		{"bytes", "memory-margin: 4294967296", ""}, {"unit", "memory-margin: 16Gi", ""},
		{"words that YAML has another meaning for", "contention: off\nprobes: off\nwitness: off\nevents: off", ""},
		{"truth of an option that is one", "contention-mark-allocated: true", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, nil, nil, test.text)
			if test.fault == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.fault) || !strings.Contains(err.Error(), "vgpud.yaml") {
				t.Errorf("error %v, want the file and %q", err, test.fault)
			}
		})
	}
	for name, path := range map[string]string{"missing": "/nonexistent/vgpud.yaml", "directory": t.TempDir(), "endless": "/dev/zero"} {
		if _, err := load(t, []string{"--config=" + path}, nil, ""); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s file: %v", name, err)
		}
	}
}

// What --print-config prints is a file that gives the same configuration.
func TestPrintRoundTrip(t *testing.T) {
	first, err := load(t, []string{"--slices-per-gpu=4", "--memory-margin=1.5G", "--textfile-dir=/t"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := first.Print(&text); err != nil {
		t.Fatal(err)
	}
	second, err := load(t, nil, nil, text.String())
	if err != nil {
		t.Fatalf("%v\n%s", err, text.String())
	}
	if !maps.Equal(first.values, second.values) || second.MemoryMarginBytes != 3<<29 || second.TextfileDir != "/t" {
		t.Errorf("%v\n%v", first.values, second.values)
	}
	if names := slices.Sorted(maps.Keys(first.values)); len(names) != len(options()) {
		t.Errorf("%d of %d options printed", len(names), len(options()))
	}
}

func TestChangedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpud.yaml")
	if err := os.WriteFile(path, []byte("slices-per-gpu: 7"), 0o644); err != nil {
		t.Fatal(err)
	}
	config, err := load(t, []string{"--config=" + path}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	if config.Changed() {
		t.Error("changed at once")
	}
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if !config.Changed() {
		t.Error("a change was not seen")
	}
	if (Config{}).Changed() {
		t.Error("no file changed")
	}
}

func TestLibraryMustExist(t *testing.T) {
	command := &cobra.Command{Use: "run"}
	addConfigFlags(command)
	if _, err := loadConfig(command, nil); err == nil || !strings.Contains(err.Error(), "--library") {
		t.Errorf("error %v does not say how to name the library", err)
	}
}

// Help says what each option takes, in lines that a terminal has room for.
func TestOptionsHelp(t *testing.T) {
	_, help, _ := commandLine("run", "--help")
	_, flags, found := strings.Cut(help, "\nFlags:\n")
	if !found {
		t.Fatalf("no flags in %q", help)
	}
	for line := range strings.SplitSeq(flags, "\n") {
		if len(line) > helpColumns {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	for _, option := range options() {
		if !strings.Contains(flags, " --"+option.name+" "+option.value+" ") {
			t.Errorf("--%s does not say that it takes %s", option.name, option.value)
		}
	}
}

func TestOptionsMarkdown(t *testing.T) {
	var text bytes.Buffer
	if err := writeOptionsMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, option := range options() {
		if option.help == "" || option.value == "" || !strings.Contains(text.String(), "| `"+option.name+"` | "+option.value+" | `VGPUD_") {
			t.Errorf("the documentation lacks %s", option.name)
		}
	}
}
