// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"
)

// ErrNoReader is the end of a demo whose output nobody reads any more, as with `| head`. It was tidied up after.
var ErrNoReader = errors.New("nobody reads the output any more")

// textWidth is the width that prose is wrapped at, in columns.
const textWidth = 96

// Step is one thing that was shown. As JSON it is one line; the data's form depends on the name only.
type Step struct {
	Name    string  `json:"step"`
	Seconds float64 `json:"seconds"` // since the demo began
	Data    any     `json:"data"`

	Title string   `json:"-"`
	Prose string   `json:"-"` // what to see in it, one paragraph
	Lines []string `json:"-"` // the thing itself, printed as it is
}

// narrator prints steps: for people, or one JSON object per line.
type narrator struct {
	out    io.Writer
	asJSON bool
	colour bool
	began  time.Time
	count  int
}

// show prints one step. The error is the writer's.
func (n *narrator) show(s Step) error {
	s.Seconds = float64(time.Since(n.began).Milliseconds()) / 1000
	if n.asJSON {
		line, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode step %s: %w", s.Name, err)
		}
		return n.write(string(line) + "\n")
	}
	n.count++
	var text strings.Builder
	fmt.Fprintf(&text, "%s\n", n.paint(bold, fmt.Sprintf("%d. %s", n.count, s.Title)))
	for _, line := range wrap(s.Prose, textWidth-3) {
		fmt.Fprintf(&text, "   %s\n", line)
	}
	for _, line := range s.Lines {
		fmt.Fprintf(&text, "   %s %s\n", n.paint(faint, "│"), n.paintLine(line))
	}
	fmt.Fprintln(&text)
	return n.write(text.String())
}

func (n *narrator) write(text string) error {
	_, err := io.WriteString(n.out, text)
	if errors.Is(err, syscall.EPIPE) {
		return ErrNoReader
	}
	return err
}

// say prints a line for people only.
func (n *narrator) say(format string, args ...any) {
	if !n.asJSON {
		fmt.Fprintf(n.out, format+"\n", args...)
	}
}

// Select Graphic Rendition codes.
const (
	bold   = "1"
	faint  = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (n *narrator) paint(code, text string) string {
	if !n.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// paintLine colours the words that carry the news.
func (n *narrator) paintLine(line string) string {
	for word, code := range map[string]string{"Unhealthy": red, "Healthy": green, "refused": yellow} {
		if strings.Contains(line, word) {
			// "Unhealthy" contains "healthy", not "Healthy": no word is painted twice.
			line = strings.ReplaceAll(line, word, n.paint(code, word))
		}
	}
	return line
}

// wrap breaks one paragraph into lines of at most width columns, where its words allow.
func wrap(paragraph string, width int) []string {
	var lines []string
	var line string
	for word := range strings.FieldsSeq(paragraph) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
