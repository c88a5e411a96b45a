// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tables of libvgpu/test/testdata, by which the shim's parsers and those of the agent are held to the same rules.

package amount

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// forEachRow calls check with each row of a table: a quoted text, a tab, and what is to become of it. The table has at
// least so many rows.
func forEachRow(t *testing.T, name string, least int, check func(input, want string)) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "libvgpu", "test", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		quoted, want, found := strings.Cut(line, "\t")
		input, err := strconv.Unquote(quoted)
		if !found || err != nil {
			t.Fatalf("bad row %q", line)
		}
		rows++
		check(input, want)
	}
	if rows < least {
		t.Errorf("%s has only %d rows", name, rows)
	}
}
