// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package top shows what the agent says of its node: live on a terminal (Live), or once as a table or as JSON (Once). It
// gets views of package control from whoever it is handed, and keeps nothing but the last one.
//
// clean.go makes foreign text harmless, before anything else sees it. rows.go has the rows and their order, columns.go one
// line per column, table.go fits columns to a width, detail.go is the text about one row; model.go reacts to keys and to
// views, screen.go lays them out. To add a column: a line in columns.go and `go test ./agent/top -update`.
package top
