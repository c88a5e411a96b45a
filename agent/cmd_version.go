// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_version.go prints what runs, and the hidden subcommand `docs` prints the generated pages of docs/.

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/vgpud/vgpud/agent/metrics"
)

// revision is the commit that the agent was built from; the Makefile sets it at the link, since a build that asked
// version control itself would not run in a tree without it.
var revision = "unknown"

// buildInfo says which version of the agent this is: "devel" unless it was built as a module of a released version.
func buildInfo() metrics.Build {
	build := metrics.Build{Version: "devel", Revision: revision, GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build
	}
	if version := info.Main.Version; version != "" && version != "(devel)" {
		build.Version = version
	}
	return build
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(command.OutOrStdout(), versionText())
			return err
		},
	}
}

// versionText is what `vgpud version` and --version print.
func versionText() string {
	build := buildInfo()
	return fmt.Sprintf("vgpud %s, revision %s, %s %s/%s", build.Version, build.Revision, build.GoVersion, runtime.GOOS, runtime.GOARCH)
}

func newDocsCommand() *cobra.Command {
	docs := &cobra.Command{Use: "docs", Short: "Print generated documentation", Hidden: true,
		Args: noArguments, RunE: func(command *cobra.Command, _ []string) error { return command.Help() }}
	docs.AddCommand(
		&cobra.Command{Use: "config", Short: "Print docs/config.md", Args: noArguments,
			RunE: func(command *cobra.Command, _ []string) error { return writeOptionsMarkdown(command.OutOrStdout()) }},
		&cobra.Command{Use: "metrics", Short: "Print docs/metrics.md", Args: noArguments,
			RunE: func(command *cobra.Command, _ []string) error { return metrics.WriteMarkdown(command.OutOrStdout()) }},
	)
	return docs
}
