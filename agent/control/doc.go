// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package control is how the agent is asked, on its own node and by root alone: HTTP over a unix socket. view.go has what it
// tells, server.go the agent's side, listen.go the socket, client.go the side of `vgpud top` and `vgpud thaw`.
//
//	GET  /v1/view         View as JSON
//	POST /v1/thaw         ThawRequest as JSON; ThawReply
//	GET  /debug/pprof/…   net/http/pprof of the agent
//
// Whoever can connect is trusted: the socket is root's, mode 0600, in a directory that nobody else can write. What clients
// do, or leave undone, holds up nothing in the agent: each request has a goroutine, a bound on its time, and a view that was
// made once for all of them.
package control
