// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// options.go is the table of what can be configured. To add an option: a line here, a field in Config, a case in
// config_test.go, and `make docs` for docs/config.md.

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/plugin"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// option is one thing that can be configured: a flag, a key of the file and a variable of the environment.
type option struct {
	name        string
	value       string // what kind of thing it takes, as help and documentation call it
	defaultText string
	help        string
	set         func(config *Config, text string) error // validates; its error says the rule
}

// environmentName is the variable that sets the option.
func (o option) environmentName() string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(o.name, "-", "_"))
}

// What options take.
const (
	valueAmount   = "AMOUNT" // of memory
	valueBool     = "BOOL"
	valueCount    = "COUNT"
	valueDuration = "DURATION"
	valueName     = "NAME"
	valueNames    = "NAMES"
	valuePath     = "PATH"
	valuePercent  = "PERCENT"
	valueWord     = "WORD" // one of those that the help names
)

// Log formats.
const (
	formatText = "text"
	formatJSON = "json"
)

// wholeGPU is the ceiling that bounds nothing.
const wholeGPU = "100"

// maxSlicesPerGPU bounds what one card is cut into; the plugin checks the whole list against the kubelet's limit.
const maxSlicesPerGPU = 1000

// options is the table, in the order of the documentation.
func options() []option {
	return slices.Concat(baseOptions(), watchOptions(), logOptions())
}

func baseOptions() []option {
	return []option{
		{"resource-name", valueName, "nvidia.com/gpu", "extended resource under which slices are offered", func(c *Config, text string) error {
			c.ResourceName = text
			return plugin.ValidateResourceName(text)
		}},
		{"slices-per-gpu", valueCount, "10", "equal slices that each GPU is cut into, 1 to 1000", func(c *Config, text string) (err error) {
			c.SlicesPerGPU, err = parseCount(text)
			return err
		}},
		{"memory-margin", valueAmount, "0", "memory of each GPU that is never granted, beyond what the driver reserves, e.g. 256Mi", func(c *Config, text string) (err error) {
			c.MemoryMarginBytes, _, err = amount.ParseBytes(text)
			return err
		}},
		{"compute-mode", valueWord, ledger.ComputeElastic, "how new allocations share a GPU's time: elastic (each is promised its slices' part, and lent what the others leave), hard (its part is a cap) or none (not limited)", setComputeMode},
		{"compute-ceiling", valuePercent, wholeGPU, "most of a GPU's time that an elastic allocation may use, in percent, loans included; never less than its own part", setComputeCeiling},
		{"device-list-strategy", valueWord, plugin.StrategyEnvvar, "how a container is given its GPU: envvar (NVIDIA_VISIBLE_DEVICES) or cdi-cri (CDI device names)", func(c *Config, text string) error {
			c.DeviceListStrategy = text
			return oneOf(text, plugin.StrategyEnvvar, plugin.StrategyCDI)
		}},
		{"cdi-kind", valueName, "nvidia.com/gpu", "vendor and class of the CDI devices, for cdi-cri", func(c *Config, text string) error {
			c.CDIKind = text
			return plugin.ValidateCDIKind(text)
		}},
		{"kubelet-dir", valuePath, "/var/lib/kubelet", "the kubelet's root directory", pathOption(func(c *Config) *string { return &c.KubeletDir })},
		{"state-dir", valuePath, "/var/lib/vgpud", "records of what is granted, and installed libraries", pathOption(func(c *Config) *string { return &c.StateDir })},
		{"pages-dir", valuePath, "/run/vgpud/pages", "limits and usage pages of the allocations; a tmpfs of bounded size is mounted there where the agent may", pathOption(func(c *Config) *string { return &c.PagesDir })},
		{"library", valuePath, "", "libvgpu.so to hand out; default: beside this program, or in ../lib/vgpud", func(c *Config, text string) error {
			if text == "" {
				return nil
			}
			return pathOption(func(c *Config) *string { return &c.Library })(c, text)
		}},
		{"container-dir", valuePath, "/usr/local/vgpud", "where the library and the pages are in a container", pathOption(func(c *Config) *string { return &c.ContainerDir })},
		{"nvml-library", valuePath, "", "NVML library to load; default: libnvidia-ml.so.1 as the loader finds it", func(c *Config, text string) error {
			c.NVMLLibrary = text
			return nil
		}},
		{"textfile-dir", valuePath, "", "node-exporter's textfile directory, for vgpud.prom; empty: no metrics file", func(c *Config, text string) error {
			if text == "" {
				return nil
			}
			return pathOption(func(c *Config) *string { return &c.TextfileDir })(c, text)
		}},
		{"tick-interval", valueDuration, "1s", "how often everything is looked at, 100ms to 1m", func(c *Config, text string) (err error) {
			c.TickInterval, err = parseInterval(text)
			return err
		}},
	}
}

func logOptions() []option {
	return []option{
		{"log-level", valueWord, "info", "debug, info, warn or error", func(c *Config, text string) error {
			if err := oneOf(text, "debug", "info", "warn", "error"); err != nil {
				return err
			}
			return c.LogLevel.UnmarshalText([]byte(text))
		}},
		{"log-format", valueWord, formatText, "text or json", func(c *Config, text string) error {
			c.LogFormat = text
			return oneOf(text, formatText, formatJSON)
		}},
	}
}

func optionNames() []string {
	var names []string
	for _, option := range options() {
		names = append(names, option.name)
	}
	return names
}

// oneOf is the rule of options that choose among words.
func oneOf(text string, allowed ...string) error {
	if slices.Contains(allowed, text) {
		return nil
	}
	return fmt.Errorf("want one of %s", strings.Join(allowed, ", "))
}

// pathOption is the rule of options that name an absolute path.
func pathOption(field func(*Config) *string) func(*Config, string) error {
	return func(config *Config, text string) error {
		*field(config) = text
		return plugin.ValidatePath(text)
	}
}

func parseCount(text string) (int, error) {
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 || count > maxSlicesPerGPU {
		return 0, fmt.Errorf("want a whole number from 1 to %d", maxSlicesPerGPU)
	}
	return count, nil
}

func setComputeMode(config *Config, text string) error {
	config.ComputeMode = text
	return oneOf(text, ledger.ComputeElastic, ledger.ComputeHard, ledger.ComputeNone)
}

func setComputeCeiling(config *Config, text string) error {
	percent, set, err := amount.ParsePercent(text)
	if err == nil && !set {
		err = errors.New("want " + amount.PercentRule)
	}
	config.ComputeCeilingPercent = percent
	return err
}

func parseInterval(text string) (time.Duration, error) {
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return 0, errors.New("a unit is missing, e.g. 5s; want a duration from 100ms to 1m")
	}
	interval, err := time.ParseDuration(text)
	if err != nil || interval < 100*time.Millisecond || interval > time.Minute {
		return 0, errors.New("want a duration from 100ms to 1m")
	}
	return interval, nil
}

// newLogger makes the one logger, from which every part gets its own with component= set.
func (c Config) newLogger(out io.Writer) *slog.Logger {
	handlerOptions := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == formatJSON {
		return slog.New(slog.NewJSONHandler(out, handlerOptions))
	}
	return slog.New(slog.NewTextHandler(out, handlerOptions))
}

// computeRule is what the documentation says of shares; one paragraph.
const computeRule = "Shares of GPU time: an allocation's part of a GPU is the slices that it holds there divided by `slices-per-gpu`, and at " +
	"least 1 percent. Mode, part and ceiling are decided when it is granted and stay for its life; another mode is for new " +
	"allocations. A container sees them in `VGPUD_COMPUTE`, such as `elastic share=30 ceiling=100` (percent). In the container " +
	"`CUDA_DEVICE_SM_LIMIT` and `CUDA_DEVICE_SM_LIMIT_<i>`, " + amount.PercentRule + ", can lower the part and never raise it: empty counts " +
	"as not set, 100 lowers nothing, and what is not such a number counts as 1."

// writeOptionsMarkdown renders docs/config.md.
func writeOptionsMarkdown(out io.Writer) error {
	var text strings.Builder
	text.WriteString("# Configuration of `vgpud run`\n\n" +
		"Generated by `vgpud docs config`; the table is `agent/options.go` and `agent/options_watch.go`.\n\n" +
		"Each option is a flag, a variable of the environment and a key of the YAML file that `--config` (or " +
		"`VGPUD_CONFIG`) names. A flag wins over the environment, the environment over the file, the file over the " +
		"default. Unknown and duplicate keys are errors; an empty variable counts as not set. `vgpud run " +
		"--print-config` prints the merged and validated result and exits. The file is read once: a change while " +
		"the agent runs is reported and ignored until the next start.\n\n" +
		"| flag and key | takes | environment | default | meaning |\n|---|---|---|---|---|\n")
	for _, option := range options() {
		fallback := "–"
		if option.defaultText != "" {
			fallback = "`" + option.defaultText + "`"
		}
		fmt.Fprintf(&text, "| `%s` | %s | `%s` | %s | %s |\n", option.name, option.value, option.environmentName(), fallback, option.help)
	}
	text.WriteString("\nAmounts of memory: " + amount.BytesRule + ".\n\n" + computeRule + "\n")
	_, err := io.WriteString(out, text.String())
	return err
}
