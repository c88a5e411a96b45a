// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command vgpud turns each NVIDIA GPU of a Kubernetes node into slices that are enforced. main.go parses the command
// line and maps errors to exit codes; config.go reads the configuration, app.go composes the daemon, and each
// subcommand has a file of its own.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(execute(newRootCommand(), os.Args[1:]))
}

// exitError carries the exit code of an error; other errors exit with 1.
type exitError struct {
	code int
	err  error // nil: there is nothing to say
}

// Error implements error.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap gives errors.Is what is inside.
func (e *exitError) Unwrap() error { return e.err }

// execute runs a command line and returns the exit code. Faults are one line each on stderr.
func execute(root *cobra.Command, arguments []string) int {
	root.SetArgs(arguments)
	err := root.Execute()
	if err == nil {
		return 0
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		printError(root.ErrOrStderr(), err)
		return 1
	}
	if exit.err != nil {
		printError(root.ErrOrStderr(), exit.err)
	}
	return exit.code
}

// printError writes each fault on a line of its own.
func printError(out io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(out, "vgpud: %s\n", line)
	}
}

// helpColumns is how wide the help of flags is.
const helpColumns = 120

// newRootCommand holds all subcommands. It reads nothing.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "vgpud",
		Short:         "Enforced slices of NVIDIA GPUs",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versionText(),
		Args: func(command *cobra.Command, arguments []string) error {
			if len(arguments) == 0 {
				return nil
			}
			near := command.SuggestionsFor(arguments[0])
			return seeHelp(command, fmt.Errorf("unknown command %q%s", arguments[0], didYouMean(near)))
		},
		RunE:                  func(command *cobra.Command, _ []string) error { return command.Help() },
		DisableFlagsInUseLine: true,

		SuggestionsMinimumDistance: 2,
		// Completion scripts are of no use to a node agent.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", fmt.Sprintf(".FlagUsagesWrapped %d ", helpColumns)))
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(seeHelp)
	root.AddCommand(newRunCommand(), newExecCommand(), newDemoCommand(), newTopCommand(), newThawCommand(),
		newVersionCommand(), newDocsCommand())
	return root
}

// seeHelp tells where to read more after an error of usage.
func seeHelp(command *cobra.Command, err error) error {
	return fmt.Errorf("%w; see %s --help", err, command.CommandPath())
}

// noArguments refuses arguments that are no flags.
func noArguments(command *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	return seeHelp(command, fmt.Errorf("unexpected argument %q", arguments[0]))
}

// didYouMean is the end of a message about an unknown name; empty when no known one is near.
func didYouMean(near []string) string {
	if len(near) == 0 {
		return ""
	}
	return ": did you mean " + strings.Join(near, " or ") + "?"
}
