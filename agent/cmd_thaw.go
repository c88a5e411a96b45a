// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// cmd_thaw.go is the subcommand that lets containers go on which the agent has frozen (--witness=freeze).

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/vgpud/vgpud/agent/control"
)

// thawPatience bounds how long the agent may take over thawing.
const thawPatience = 8 * time.Second

func newThawCommand() *cobra.Command {
	var socket string
	var request control.ThawRequest
	command := &cobra.Command{
		Use:   "thaw [container-id]",
		Short: "Let a container go on that the agent has frozen",
		Long: `Ask the agent to thaw containers that it has frozen (--witness=freeze). vgpud top lists them, with why. A container is
named by its id, or by as much of its beginning as no other frozen one has; --allocation names it by an allocation that it
holds. What it was frozen for is no cause to freeze it again, as long as it goes on as it is. Needs root.

Exit codes: 0 thawed; 5 no such container is frozen; 3 no agent answers; 4 not allowed to ask it; 1 another fault.`,
		Example: `  vgpud thaw 3f2a9c
  vgpud thaw --all`,
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) > 1 {
				return seeHelp(command, errors.New("name one container, or --all"))
			}
			if len(arguments) == 1 {
				request.Container = arguments[0]
			}
			if err := request.Validate(); err != nil {
				return seeHelp(command, err)
			}
			client := control.NewClient(socketPath(socket))
			defer client.Close()
			ctx, cancel := context.WithTimeout(command.Context(), thawPatience)
			defer cancel()
			reply, err := client.Thaw(ctx, request)
			if err != nil {
				return asked(err)
			}
			for _, container := range reply.Containers {
				if _, err := fmt.Fprintf(command.OutOrStdout(), "thawed %q\n", container); err != nil {
					return err
				}
			}
			return nil
		},
	}
	addSocketFlag(command, &socket)
	command.Flags().StringVar(&request.Allocation, "allocation", "", "thaw the containers that hold this allocation")
	command.Flags().BoolVar(&request.All, "all", false, "thaw all")
	return command
}
