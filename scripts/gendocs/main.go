// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Command gendocs writes the generated pages of docs/ from their sources. `make docs` runs it; `make check`
// runs it into a temporary folder and compares.
//
//	gendocs DIRECTORY    (from the top of the tree)
package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// pages names every generated page and who writes it. To add one: a line here and a function.
var pages = []struct {
	file  string
	write func(root string, w io.Writer) error
}{
	{"abi.md", writeABI},
	{"hooks.md", writeHooks},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendocs DIRECTORY")
		os.Exit(2)
	}
	for _, p := range pages {
		var text bytes.Buffer
		err := p.write(".", &text)
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[1], p.file), text.Bytes(), 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "gendocs: %s: %v\n", p.file, err)
			os.Exit(1)
		}
	}
}

// generatedNote is the line under the title of each page.
func generatedNote(source string) string {
	return fmt.Sprintf("*Generated from `%s` by `make docs`; `make check` compares.*", source)
}
