// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command vgpud turns each NVIDIA GPU of a Kubernetes node into slices that are enforced. main.go parses the command
// line and maps errors to exit codes; config.go reads the configuration, app.go composes the daemon, and each
// subcommand has a file of its own.
package main

import (
	"errors"
	"fmt"
	"os"

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

// execute runs a command line and returns the exit code. Errors are one line each on stderr.
func execute(root *cobra.Command, arguments []string) int {
	root.SetArgs(arguments)
	err := root.Execute()
	if err == nil {
		return 0
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		fmt.Fprintf(root.ErrOrStderr(), "vgpud: %v\n", err)
		return 1
	}
	if exit.err != nil {
		fmt.Fprintf(root.ErrOrStderr(), "vgpud: %v\n", exit.err)
	}
	return exit.code
}

// newRootCommand holds all subcommands. It reads nothing.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "vgpud",
		Short:         "Enforced slices of NVIDIA GPUs",
		SilenceUsage:  true,
		SilenceErrors: true,
		// Completion scripts are of no use to a node agent.
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.AddCommand(newRunCommand(), newExecCommand(), newDemoCommand(), newVersionCommand(), newDocsCommand())
	return root
}
