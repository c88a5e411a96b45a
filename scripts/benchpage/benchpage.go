// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package benchpage is what benchmarks leave behind: records as JSON, a page from a template, and plots over time.
package benchpage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

// Read reads the records of an earlier run. A file that is not there has none.
func Read[T any](path string) (records []T, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	if err := json.Unmarshal(data, &records); err != nil {
		return nil, fmt.Errorf("read records in %s: %w", path, err)
	}
	return records, nil
}

// Write writes records; the directory is made.
func Write[T any](path string, records []T) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make directory of results: %w", err)
	}
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(records); err != nil {
		return fmt.Errorf("encode records: %w", err)
	}
	if err := os.WriteFile(path, data.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	return nil
}

// Page writes a page from a template and what it is filled with.
func Page(path, text string, data any) error {
	page, err := template.New(filepath.Base(path)).Parse(text)
	if err != nil {
		return fmt.Errorf("read template of the page: %w", err)
	}
	var out bytes.Buffer
	if err := page.Execute(&out, data); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// Number shows a figure, or nothing where there is none; a negative one never came.
func Number(value *float64, format string) string {
	switch {
	case value == nil:
		return ""
	case *value < 0:
		return "never"
	}
	return fmt.Sprintf(format, *value)
}

// FileName is a name that is safe in file systems and links.
func FileName(name string) string {
	return strings.NewReplacer("/", "-", "µ", "u", ".", "_", " ", "-").Replace(name)
}
