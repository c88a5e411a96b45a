// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// options_watch.go is the part of the table of options that is about watching: contention, probes, the witness, and who is
// told.

package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/control"
)

// What may be done about contention.
const (
	contentionOff    = "off"
	contentionReport = "report"
	contentionHealth = "health"
)

// Sets of thresholds.
const (
	presetDefault = "default"
	presetFast    = "fast"
	presetCustom  = "custom"
)

// Words of several options.
const (
	wordOff    = "off"
	wordAuto   = "auto"
	wordReport = "report"
)

// customAlone ends the help of the options that belong to presetCustom.
const customAlone = "; with contention-preset custom alone"

// watchOptions are in the order of the documentation.
func watchOptions() []option {
	return slices.Concat(contentionOptions(), witnessOptions(), tellOptions())
}

func contentionOptions() []option {
	number := func(name, value, fallback, help string, set func(c *Config, text string) error) option {
		return option{name, value, fallback, help + customAlone, set}
	}
	return []option{
		{"contention", valueWord, contentionHealth, "what is done about slices that slow each other on memory or PCIe bandwidth: off, report (metrics and log), or health (a contended GPU's free slices are not offered either)", func(c *Config, text string) error {
			c.Contention = text
			return oneOf(text, contentionOff, contentionReport, contentionHealth)
		}},
		{"contention-preset", valueWord, presetDefault, "when a GPU counts as contended: default (25 percent of the time lost, for 60s), fast (for 30s), or custom (the numbers below)", func(c *Config, text string) error {
			c.ContentionPreset = text
			return oneOf(text, presetDefault, presetFast, presetCustom)
		}},
		number("contention-above", valuePercent, "25", "percent of the time that a slice must lose to others, over 10 and 60 seconds", percentOption(func(c *Config, part float64) { c.ContentionNumbers.Above = part })),
		number("contention-below", valuePercent, "12", "percent below which a contended GPU begins to recover; less than contention-above", percentOption(func(c *Config, part float64) { c.ContentionNumbers.Below = part })),
		number("contention-bad-for", valueDuration, "60s", "how long it must last, 10s to 1h", durationOption(10*time.Second, time.Hour, func(c *Config, d time.Duration) { c.ContentionNumbers.BadFor = d })),
		number("contention-good-for", valueDuration, "120s", "how long it must be over, 10s to 1h", durationOption(10*time.Second, time.Hour, func(c *Config, d time.Duration) { c.ContentionNumbers.GoodFor = d })),
		number("contention-hold", valueDuration, "300s", "how long a verdict stands at least, 10s to 30m; doubled up to 30m when it comes again within an hour", durationOption(10*time.Second, 30*time.Minute, func(c *Config, d time.Duration) { c.ContentionNumbers.Hold = d })),
		{"contention-mark-allocated", valueBool, "false", "true: also the allocated slices of a contended GPU are Unhealthy; running pods are not moved by that, and may not start again after a restart of the kubelet", func(c *Config, text string) (err error) {
			c.ContentionMarkAllocated, err = parseTruth(text)
			return err
		}},
		{"contention-lever", valuePercent, "0", "percent of its GPU time that the antagonist is left with, for a while, before health is touched; 0: health at once", func(c *Config, text string) error {
			if strings.Trim(text, " \t") == "0" {
				c.ContentionLeverPercent = 0
				return nil
			}
			percent, set, err := amount.ParsePercent(text)
			if err != nil || !set || percent == amount.WholePercent {
				return errors.New("want 0 (no lever) or a whole number from 1 to 99 without a percent sign")
			}
			c.ContentionLeverPercent = percent
			return nil
		}},
		{"contention-lever-for", valueDuration, "2m0s", "how long the antagonist is held down, 30s to 30m", durationOption(30*time.Second, 30*time.Minute, func(c *Config, d time.Duration) { c.ContentionLeverFor = d })},
	}
}

func witnessOptions() []option {
	return []option{
		{"probes", valueWord, wordAuto, "eBPF probes on the driver's library, which count calls from outside: auto (as much as kernel and capabilities allow and is cheap), full, sampled or off", func(c *Config, text string) error {
			c.Probes = text
			return oneOf(text, wordAuto, "full", "sampled", wordOff)
		}},
		{"witness", valueWord, wordReport, "what is done about containers that use a GPU beside the library: off, report, freeze (their control group, until the pod ends) or kill", func(c *Config, text string) error {
			c.Witness = text
			return oneOf(text, wordOff, wordReport, "freeze", "kill")
		}},
		{"witness-overhead", valueAmount, "1Gi", "memory per process that the driver may count beyond the container's book: its context, code and libraries", func(c *Config, text string) error {
			bytes, set, err := amount.ParseBytes(text)
			if err == nil && !set {
				err = errors.New("want " + amount.BytesExamples)
			}
			c.WitnessOverheadBytes = bytes
			return err
		}},
		{"witness-trusted-namespaces", valueNames, "kube-system,gpu-operator", "namespaces whose pods may use GPUs without slices, such as those of monitoring; separated by commas", func(c *Config, text string) error {
			c.WitnessTrusted = nil
			for name := range strings.SplitSeq(text, ",") {
				if name = strings.Trim(name, " \t"); name == "" {
					continue
				}
				if !isNamespace(name) {
					return fmt.Errorf("%q is no name of a namespace: want letters a-z, digits and dashes, at most 63", name)
				}
				c.WitnessTrusted = append(c.WitnessTrusted, name)
			}
			return nil
		}},
	}
}

// tellOptions are about who is told.
func tellOptions() []option {
	return []option{
		{"events", valueWord, wordAuto, "Kubernetes Events about health, contention and findings: auto (where the API server can be reached) or off", func(c *Config, text string) error {
			c.Events = text
			return oneOf(text, wordAuto, wordOff)
		}},
		{"node-name", valueName, "", "the node's name in Kubernetes, for Events; default: the host's name", func(c *Config, text string) error {
			c.NodeName = text
			if text != "" && !isDNSName(text) {
				return errors.New("want the name of a node: lower case letters, digits, dashes and dots, at most 253")
			}
			return nil
		}},
		{"kubeconfig", valuePath, "", "file with the access to the API server, for Events; default: that of the pod", func(c *Config, text string) error {
			if text == "" {
				return nil
			}
			return pathOption(func(c *Config) *string { return &c.Kubeconfig })(c, text)
		}},
		{"control-socket", valuePath, control.DefaultPath, "socket on which root can watch (vgpud top) and thaw; empty: none", func(c *Config, text string) error {
			if text == "" {
				return nil
			}
			if len(text) > control.LongestPath {
				return fmt.Errorf("want at most %d bytes: the kernel's limit for sockets, less what is added while one is made", control.LongestPath)
			}
			return pathOption(func(c *Config) *string { return &c.ControlSocket })(c, text)
		}},
	}
}

// percentOption is the rule of options that are parts in whole percent.
func percentOption(set func(*Config, float64)) func(*Config, string) error {
	return func(config *Config, text string) error {
		percent, given, err := amount.ParsePercent(text)
		if err != nil || !given {
			return errors.New("want " + amount.PercentRule)
		}
		set(config, float64(percent)/amount.WholePercent)
		return nil
	}
}

// durationOption is the rule of options that are durations within bounds.
func durationOption(least, most time.Duration, set func(*Config, time.Duration)) func(*Config, string) error {
	return func(config *Config, text string) error {
		rule := fmt.Sprintf("want a duration from %s to %s", plainDuration(least), plainDuration(most))
		if _, err := strconv.ParseFloat(text, 64); err == nil {
			return errors.New("a unit is missing, e.g. 90s; " + rule)
		}
		duration, err := time.ParseDuration(text)
		if err != nil || duration < least || duration > most {
			return errors.New(rule)
		}
		set(config, duration)
		return nil
	}
}

// plainDuration is a duration without the parts that are zero.
func plainDuration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if trimmed, found := strings.CutSuffix(text, zero); found {
			text = trimmed + zero[:1]
		}
	}
	return text
}

func parseTruth(text string) (bool, error) {
	switch text {
	case "true":
		return true, nil
	case "false":
		return false, nil
	default:
		return false, oneOf(text, "true", "false")
	}
}

// isNamespace knows DNS labels.
func isNamespace(name string) bool {
	return len(name) <= 63 && !strings.Contains(name, ".") && isDNSName(name)
}

// isDNSName knows names of nodes.
func isDNSName(name string) bool {
	if name == "" || len(name) > 253 || strings.Trim(name, "-.") != name {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-.") == ""
}

// checkContention refuses numbers that nobody would use, and such as do not go together.
func checkContention(config Config) error {
	var faults []error
	fault := func(name, rule string, values ...any) {
		faults = append(faults, fmt.Errorf("%s: value %q: "+rule, append([]any{name, config.values[name]}, values...)...))
	}
	for _, option := range watchOptions() {
		if strings.HasSuffix(option.help, customAlone) && config.ContentionPreset != presetCustom && config.values[option.name] != option.defaultText {
			fault(option.name, "contention-preset is %s, which has its own numbers: leave it out, or choose %s", config.ContentionPreset, presetCustom)
		}
	}
	if numbers := config.ContentionNumbers; config.ContentionPreset == presetCustom && numbers.Below >= numbers.Above {
		fault("contention-below", "want less than contention-above, which is %q", config.values["contention-above"])
	}
	if err := healthPolicy(config).Validate(); err != nil && len(faults) == 0 { // the rules of decide, should they be stricter
		faults = append(faults, err)
	}
	if config.Contention != contentionHealth {
		const rule = "contention is %s, which withdraws nothing: leave it out, or choose %s"
		if config.ContentionMarkAllocated {
			fault("contention-mark-allocated", rule, config.Contention, contentionHealth)
		}
		if config.ContentionLeverPercent > 0 {
			fault("contention-lever", rule, config.Contention, contentionHealth)
		}
	}
	return errors.Join(faults...)
}
