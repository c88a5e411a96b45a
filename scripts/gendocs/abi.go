// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// docs/abi.md: offsets and sizes as the C compiler lays them out (from DWARF), comments from the header.

package main

import (
	"debug/dwarf"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const abiHeader = "libvgpu/include/vgpu_abi.h"

// writeABI compiles the header with debug information and prints one table per struct.
func writeABI(root string, w io.Writer) error {
	header, err := os.ReadFile(filepath.Join(root, abiHeader))
	if err != nil {
		return fmt.Errorf("read header: %w", err)
	}
	data, err := compileDebugInfo(filepath.Join(root, abiHeader))
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "# The two pages\n\n%s\n\n", generatedNote(abiHeader))
	fmt.Fprintf(w, "All integers are little endian. Offsets and sizes are in bytes, as the compiler lays them out.\n")
	doc := parseHeader(string(header))
	r := data.Reader()
	for {
		entry, err := r.Next()
		if err != nil {
			return fmt.Errorf("read debug information: %w", err)
		}
		if entry == nil {
			return nil
		}
		switch entry.Tag {
		case dwarf.TagStructType:
			err = writeStruct(w, data, entry, doc)
		case dwarf.TagEnumerationType:
			err = writeEnum(w, data, entry, doc)
		}
		if err != nil {
			return err
		}
	}
}

// compileDebugInfo compiles a file that uses every struct of the header, so that the compiler describes each.
func compileDebugInfo(header string) (data *dwarf.Data, err error) {
	dir, err := os.MkdirTemp("", "vgpud-abi-")
	if err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	abs, err := filepath.Abs(header)
	if err != nil {
		return nil, fmt.Errorf("find header: %w", err)
	}
	source := fmt.Sprintf("#include %q\n", abs) +
		"enum vgpu_kind kind; struct vgpu_limits_page limits; struct vgpu_usage_page usage; struct vgpu_usage_device device;\n" +
		"struct vgpu_usage_slot slot; struct vgpu_usage_slot_device slot_device; struct vgpu_usage_traffic traffic;\n" +
		"int maximum(void) { return VGPU_MAX_DEVICES; }\n"
	cFile, object := filepath.Join(dir, "abi.c"), filepath.Join(dir, "abi.o")
	if err := os.WriteFile(cFile, []byte(source), 0o600); err != nil {
		return nil, fmt.Errorf("write source: %w", err)
	}
	if out, err := exec.Command("cc", "-g", "-c", "-fno-eliminate-unused-debug-types", "-o", object, cFile).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile header: %w\n%s", err, out)
	}
	f, err := elf.Open(object)
	if err != nil {
		return nil, fmt.Errorf("open object: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data, err = f.DWARF()
	if err != nil {
		return nil, fmt.Errorf("read debug information: %w", err)
	}
	return data, nil
}

func writeStruct(w io.Writer, data *dwarf.Data, entry *dwarf.Entry, doc headerDoc) error {
	t, err := data.Type(entry.Offset)
	if err != nil {
		return fmt.Errorf("read type: %w", err)
	}
	s, ok := t.(*dwarf.StructType)
	if !ok || !strings.HasPrefix(s.StructName, "vgpu_") {
		return nil
	}
	fmt.Fprintf(w, "\n## struct %s\n\n%s\n\n", s.StructName, doc.above[s.StructName])
	fmt.Fprintf(w, "%d bytes.\n\n| offset | size | type | field | |\n|---:|---:|---|---|---|\n", s.ByteSize)
	for _, f := range s.Field {
		fmt.Fprintf(w, "| %d | %d | `%s` | `%s` | %s |\n",
			f.ByteOffset, f.Type.Size(), f.Type, f.Name, doc.beside[s.StructName+"."+f.Name])
	}
	return nil
}

func writeEnum(w io.Writer, data *dwarf.Data, entry *dwarf.Entry, doc headerDoc) error {
	t, err := data.Type(entry.Offset)
	if err != nil {
		return fmt.Errorf("read type: %w", err)
	}
	e, ok := t.(*dwarf.EnumType)
	if !ok || len(e.Val) == 0 || !strings.HasPrefix(e.Val[0].Name, "VGPU_") {
		return nil
	}
	title, above := "Constants", ""
	if e.EnumName != "" {
		title, above = "enum "+e.EnumName, doc.above[e.EnumName]+"\n\n"
	}
	fmt.Fprintf(w, "\n## %s\n\n%s| name | value | |\n|---|---:|---|\n", title, above)
	for _, v := range e.Val {
		fmt.Fprintf(w, "| `%s` | %d | %s |\n", v.Name, v.Val, doc.beside[e.EnumName+"."+v.Name])
	}
	return nil
}

// headerDoc is the text of the header: comments above a struct or enum by its name, comments beside a
// member by "name.member" (".member" for constants without an enum's name).
type headerDoc struct{ above, beside map[string]string }

var (
	openLine   = regexp.MustCompile(`^(?:struct|enum)\s*(\w*) \{$`)
	memberLine = regexp.MustCompile(`^\s+(?:u?int\d+_t |struct \w+ )?(\w+)(?:\[\w+\])?(?: = \w+)?[;,]?\s*(?:/\*(.*))?$`)
)

func parseHeader(text string) headerDoc {
	doc := headerDoc{above: map[string]string{}, beside: map[string]string{}}
	var comment []string // lines of the block comment above
	var owner, member string
	inBody, open := false, false // open: inside a comment that began on an earlier line
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		m := openLine.FindStringSubmatch(line)
		switch {
		case m != nil:
			owner, inBody = m[1], true
			doc.above[owner] = strings.Join(comment, " ")
		case strings.HasPrefix(line, "}"):
			inBody, comment = false, nil
		case open:
			words := cleanComment(line)
			if inBody {
				doc.beside[owner+"."+member] += " " + words
			} else {
				comment = append(comment, words)
			}
			open = !strings.Contains(line, "*/")
		case !inBody && strings.HasPrefix(line, "/*"):
			comment = []string{cleanComment(line)}
			open = !strings.Contains(line, "*/")
		case inBody:
			if f := memberLine.FindStringSubmatch(line); f != nil {
				member = f[1]
				doc.beside[owner+"."+member] = cleanComment(f[2])
				open = f[2] != "" && !strings.Contains(f[2], "*/")
			}
		case line == "":
			comment = nil
		}
	}
	return doc
}

func cleanComment(s string) string {
	s = strings.TrimSpace(s)
	s = strings.TrimPrefix(s, "/*")
	s = strings.TrimSuffix(s, "*/")
	s = strings.TrimPrefix(strings.TrimSpace(s), "* ")
	return strings.ReplaceAll(strings.TrimSpace(s), "|", `\|`)
}
