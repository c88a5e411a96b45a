// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// config_names.go is about names that are nearly those of options: keys of the file and variables of the environment.

package main

import (
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/vgpud/vgpud/plugin"
)

// serviceVariable is what Kubernetes puts into the environment of every pod for a Service named vgpud or vgpud-something.
var serviceVariable = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_[A-Z]+)?)?)$`)

// nearOptions returns the options whose names are near to one that is unknown; often one, often none.
func nearOptions(name string) []string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	if slices.Contains(optionNames(), name) {
		return []string{name}
	}
	// The measure is the one of misspelt subcommands.
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	for _, option := range optionNames() {
		names.AddCommand(&cobra.Command{Use: option, Run: func(*cobra.Command, []string) {}})
	}
	return names.SuggestionsFor(name)
}

// unknownVariables lists the variables that begin as those of options do and are none.
func unknownVariables(environment map[string]string) []string {
	known := map[string]bool{environmentPrefix + "CONFIG": true, plugin.AllocationVariable: true, plugin.ComputeVariable: true}
	for _, option := range options() {
		known[option.environmentName()] = true
	}
	var unknown []string
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		if strings.HasPrefix(name, environmentPrefix) && !known[name] && !serviceVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	return unknown
}

// warn says what of the environment was ignored, with the names that may have been meant.
func (c Config) warn(log *slog.Logger) {
	for _, name := range c.ignored {
		attributes := []any{"variable", name}
		for _, near := range nearOptions(strings.TrimPrefix(name, environmentPrefix)) {
			attributes = append(attributes, "did_you_mean", option{name: near}.environmentName())
		}
		log.Warn("variable of the environment is no option; ignored", attributes...)
	}
}
