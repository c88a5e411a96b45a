// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// clean.go makes text of containers, drivers and the cluster harmless: pods' and processes' names can hold sequences that
// move a terminal's cursor, set its title or answer for the keyboard, and characters that turn the line around.

package top

import (
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/vgpud/vgpud/agent/control"
)

// Bounds on one text.
const (
	longestText = 512 // characters
	mostMarks   = 2   // combining marks in a row; more of them climb over other lines
)

// cleanText replaces each character that is not shown as itself: control characters of both sets, marks of direction,
// joiners, line separators and what is no text at all.
func cleanText(text string) string {
	if isPlain(text) {
		return text
	}
	var out strings.Builder
	marks, length := 0, 0
	for _, char := range text {
		if length++; length > longestText {
			out.WriteRune('…')
			break
		}
		if unicode.In(char, unicode.Mn, unicode.Me) {
			if marks++; marks > mostMarks {
				continue
			}
		} else {
			marks = 0
		}
		if !unicode.IsPrint(char) {
			char = unicode.ReplacementChar
		}
		out.WriteRune(char)
	}
	return out.String()
}

// isPlain says whether the text is short and of printable ASCII alone, as nearly all is.
func isPlain(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
	}
	return len(text) <= longestText
}

// cleanView cleans every text of a view that nobody else has.
func cleanView(view *control.View) {
	cleanValue(reflect.ValueOf(view).Elem())
}

func cleanValue(value reflect.Value) {
	switch value.Kind() {
	case reflect.String:
		value.SetString(cleanText(value.String()))
	case reflect.Struct:
		if value.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for _, field := range value.Fields() {
			cleanValue(field)
		}
	case reflect.Slice:
		for i := range value.Len() {
			cleanValue(value.Index(i))
		}
	case reflect.Pointer:
		if !value.IsNil() {
			cleanValue(value.Elem())
		}
	default: // numbers and the like
	}
}

// cleanJSON escapes what a terminal would not show as itself. The value of the JSON stays the same.
func cleanJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for len(text) > 0 {
		char, size := utf8.DecodeRune(text)
		switch {
		case char == '\n', char >= ' ' && char <= '~', char > '~' && unicode.IsPrint(char):
			out = append(out, text[:size]...)
		case char > 0xffff:
			high, low := utf16.EncodeRune(char)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, char)
		}
		text = text[size:]
	}
	return out
}
