// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// filter.go is the line in which the filter is typed. The text input of bubbles would start programs for the clipboard
// (xclip and the like), here as root; a filter needs no more than this.

package top

import (
	"strings"
	"unicode"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

const longestFilter = 120 // characters

// filter is what is typed so far.
type filter struct{ text string }

// press reacts to a key that is for the text.
func (f *filter) press(msg tea.KeyPressMsg) {
	switch msg.String() {
	case "backspace", "ctrl+h":
		_, size := utf8.DecodeLastRuneInString(f.text)
		f.text = f.text[:len(f.text)-size]
	case "ctrl+u":
		f.text = ""
	case "ctrl+w", "alt+backspace", "ctrl+backspace":
		f.text = f.text[:strings.LastIndexByte(strings.TrimRight(f.text, " "), ' ')+1]
	default:
		f.insert(msg.Text)
	}
}

// insert adds what can be shown of text, on one line.
func (f *filter) insert(text string) {
	for _, char := range text {
		if utf8.RuneCountInString(f.text) >= longestFilter {
			return
		}
		if unicode.IsPrint(char) && char != unicode.ReplacementChar {
			f.text += string(char)
		}
	}
}
