// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// config.go is the only Go file that reads flags, the environment and configuration files. Everything else is
// handed values. Precedence: flag, then VGPUD_<FLAG> in the environment, then the file, then the default. Each
// error names the key, where its value came from, the value and the rule it breaks.

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v2"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// Config is the validated configuration of `vgpud run`. It does not change while the agent runs.
type Config struct {
	ResourceName          string
	SlicesPerGPU          int
	MemoryMarginBytes     uint64
	ComputeMode           string // ledger.ComputeElastic, ComputeHard or ComputeNone
	ComputeCeilingPercent int    // percent; of ComputeElastic
	DeviceListStrategy    string
	CDIKind               string
	KubeletDir            string
	StateDir              string
	PagesDir              string
	Library               string // never empty after loading
	ContainerDir          string
	NVMLLibrary           string // empty: the loader's choice
	TextfileDir           string // empty: no metrics file
	TickInterval          time.Duration

	Contention              string            // contentionOff, contentionReport or contentionHealth
	ContentionPreset        string            // presetDefault, presetFast or presetCustom
	ContentionNumbers       ContentionNumbers // of presetCustom
	ContentionMarkAllocated bool
	ContentionLeverPercent  int // what the antagonist is left with of its GPU time; 0: no lever
	ContentionLeverFor      time.Duration
	Probes                  string   // wordAuto, full, sampled or wordOff
	Witness                 string   // wordOff, wordReport, freeze or kill
	WitnessOverheadBytes    uint64   // per process
	WitnessTrusted          []string // namespaces
	Events                  string   // wordAuto or wordOff
	NodeName                string   // empty: the host's name
	Kubeconfig              string   // empty: the pod's own access
	ControlSocket           string   // empty: none
	LogLevel                slog.Level
	LogFormat               string

	file     string    // the file it was read from; empty: none
	fileTime time.Time // of its last change
	values   map[string]string
	ignored  []string // variables of the environment that look like options and are none
}

// ContentionNumbers are thresholds of one's own. Parts are of the time, 0 to 1.
type ContentionNumbers struct {
	Above, Below          float64
	BadFor, GoodFor, Hold time.Duration
}

// environmentPrefix comes before the name of an option, upper case and with underscores.
const environmentPrefix = "VGPUD_"

// valueFrom is one text and where it came from, for messages.
type valueFrom struct {
	text   string
	source string
}

// addConfigFlags declares one flag per option, plus --config.
func addConfigFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.String("config", "", "`FILE` in YAML with any of the options below as keys; flags and environment win over it")
	for _, option := range options() {
		flags.Var(&flagText{option.defaultText, option.value}, option.name, option.help)
	}
}

// flagText is the flag of an option: any text, as loadConfig validates it. It implements pflag.Value.
type flagText struct{ text, kind string }

func (f *flagText) String() string        { return f.text }
func (f *flagText) Set(text string) error { f.text = text; return nil }
func (f *flagText) Type() string          { return f.kind }

// loadConfig merges flags, environment, file and defaults, and validates every value. All faults are
// reported, not only the first.
func loadConfig(command *cobra.Command, environ []string) (Config, error) {
	flags := command.Flags()
	config := Config{values: map[string]string{}}
	config.file, _ = flags.GetString("config")
	environment := environmentMap(environ)
	if config.file == "" {
		config.file = environment[environmentPrefix+"CONFIG"]
	}
	fileValues, faults := readConfigFile(&config)
	for _, option := range options() {
		value := valueFrom{option.defaultText, "default"}
		if text, set := fileValues[option.name]; set {
			value = valueFrom{text, "file " + config.file}
		}
		if text := environment[option.environmentName()]; text != "" {
			value = valueFrom{text, "environment " + option.environmentName()}
		}
		if flag := flags.Lookup(option.name); flag != nil && flag.Changed {
			value = valueFrom{flag.Value.String(), "flag --" + option.name}
		}
		if err := option.set(&config, value.text); err != nil {
			faults = append(faults, fmt.Errorf("%s: value %q from %s: %w", option.name, value.text, value.source, err))
		}
		config.values[option.name] = value.text
	}
	if config.values["library"] == "" {
		var err error
		if config.Library, err = findLibrary(); err != nil {
			faults = append(faults, fmt.Errorf("library: %w", err))
		}
		config.values["library"] = config.Library
	}
	if len(faults) > 0 {
		return Config{}, fmt.Errorf("read configuration: %w", errors.Join(faults...))
	}
	config.ignored = unknownVariables(environment)
	if err := errors.Join(checkCompute(config), checkContention(config), config.places().CheckOverlap(filepath.Clean)); err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return config, nil
}

// checkCompute refuses a ceiling that would bound nothing.
func checkCompute(config Config) error {
	if config.ComputeMode == ledger.ComputeElastic || config.ComputeCeilingPercent == amount.WholePercent {
		return nil
	}
	return fmt.Errorf("compute-ceiling: value %q: compute-mode is %s, which lends nothing: leave it out", config.values["compute-ceiling"], config.ComputeMode)
}

// compute is how new allocations share GPU time.
func (c Config) compute() ledger.ComputePolicy {
	return ledger.ComputePolicy{Mode: c.ComputeMode, CeilingPPM: uint32(c.ComputeCeilingPercent) * ledger.WholePPM / amount.WholePercent}
}

// places are the directories and files that have to be apart.
func (c Config) places() store.Places {
	return store.Places{PagesDir: c.PagesDir, StateDir: c.StateDir, KubeletDir: c.KubeletDir, TextfileDir: c.TextfileDir,
		Library: c.Library, ControlSocket: c.ControlSocket}
}

// readConfigFile returns the options that the file sets, as text, and what is wrong with the rest. Unknown and
// duplicate keys, and values that are not plain, are errors. An empty file sets nothing.
func readConfigFile(config *Config) (map[string]string, []error) {
	if config.file == "" {
		return nil, nil
	}
	text, err := readRegularFile(config)
	if err != nil {
		return nil, []error{fmt.Errorf("file %s: %w", config.file, err)}
	}
	values, faults := parseConfigText(text)
	for i, fault := range faults {
		faults[i] = fmt.Errorf("file %s: %w", config.file, fault)
	}
	return values, faults
}

// readRegularFile reads the configuration file and notes its time.
func readRegularFile(config *Config) ([]byte, error) {
	file, err := os.Open(config.file)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	config.fileTime = info.ModTime()
	return io.ReadAll(io.LimitReader(file, 1<<20))
}

// plainValue is a value of the file as it is written there: `off` is a word of options here, and no YAML truth value.
type plainValue struct {
	text  string
	given bool // false: null, or no value at all
	plain bool // false: a list or a mapping
}

// UnmarshalYAML keeps the text of a scalar; what is none is told by parseConfigText, by its key.
func (v *plainValue) UnmarshalYAML(unmarshal func(any) error) error {
	v.given, v.plain = true, unmarshal(&v.text) == nil
	return nil
}

// parseConfigText reads YAML of plain values.
func parseConfigText(text []byte) (map[string]string, []error) {
	var raw map[string]plainValue
	if err := yaml.UnmarshalStrict(text, &raw); err != nil {
		if strings.Contains(err.Error(), "cannot unmarshal") {
			return nil, []error{errors.New("want a YAML mapping of option names to values")}
		}
		return nil, []error{fmt.Errorf("parse YAML: %s", strings.ReplaceAll(err.Error(), "\n", ";"))}
	}
	values := map[string]string{}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		value := raw[key]
		switch {
		case !slices.Contains(optionNames(), key):
			hint := didYouMean(nearOptions(key))
			if hint == "" {
				hint = "; known are " + strings.Join(optionNames(), ", ")
			}
			faults = append(faults, fmt.Errorf("%s: unknown key%s", key, hint))
		case !value.given:
			faults = append(faults, fmt.Errorf("%s: no value; leave the key out to keep the default", key))
		case !value.plain:
			faults = append(faults, fmt.Errorf("%s: want one plain text or number", key))
		default:
			values[key] = value.text
		}
	}
	return values, faults
}

// Changed says whether the configuration file is no longer the one that was read. The agent does not apply a
// change while it runs; it says so.
func (c Config) Changed() bool {
	if c.file == "" {
		return false
	}
	info, err := os.Stat(c.file)
	return err == nil && !info.ModTime().Equal(c.fileTime)
}

// Print writes the merged configuration as YAML that --config accepts.
func (c Config) Print(out io.Writer) error {
	values := map[string]any{}
	for name, text := range c.values {
		values[name] = text
	}
	values["slices-per-gpu"], values["compute-ceiling"] = c.SlicesPerGPU, c.ComputeCeilingPercent
	text, err := yaml.Marshal(values)
	if err != nil {
		return fmt.Errorf("print configuration: %w", err)
	}
	_, err = out.Write(text)
	return err
}

// environment returns the process's environment; the only call of its kind.
func environment() []string { return os.Environ() }

// environmentMap indexes NAME=value lines; the last of equal names wins.
func environmentMap(environ []string) map[string]string {
	values := make(map[string]string, len(environ))
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		values[name] = value
	}
	return values
}

// findLibrary returns the libvgpu.so that belongs to this program: beside it, or in ../lib/vgpud.
func findLibrary() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find own executable: %w", err)
	}
	directory := filepath.Dir(program)
	candidates := []string{
		filepath.Join(directory, "libvgpu.so"),
		filepath.Join(filepath.Dir(directory), "lib", "vgpud", "libvgpu.so"),
	}
	for _, candidate := range candidates {
		if info, err := os.Stat(candidate); err == nil && info.Mode().IsRegular() {
			return candidate, nil
		}
	}
	return "", fmt.Errorf("libvgpu.so is at none of %s: name it with --library", strings.Join(candidates, ", "))
}
