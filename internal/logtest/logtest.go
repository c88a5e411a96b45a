// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package logtest keeps what is logged in tests, to be read while it is written.
package logtest

import (
	"io"
	"log/slog"
	"strings"
	"sync"
)

// Buffer keeps what is written to it. The zero value is ready; it is safe for concurrent use.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (b *Buffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(text)
}

// String is all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Timeless writes lines that can be compared: without their time.
func Timeless(out io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, attr slog.Attr) slog.Attr {
		if attr.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return attr
	}}))
}
