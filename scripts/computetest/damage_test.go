// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"bytes"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A program that overwrites the page which its processes share: again and again, with anything. It gets no more for it,
// and does not hang.
func TestDamagedUsagePageRaisesNoShare(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		fill func(page []byte)
	}{
		{"zeros", func(page []byte) { clear(page) }},
		{"ones", func(page []byte) { copy(page, bytes.Repeat([]byte{0xff}, len(page))) }},
		{"random", func(page []byte) {
			for i := range page {
				page[i] = byte(rand.Uint32())
			}
		}},
		{"behind the header", func(page []byte) { clear(page[64:]) }},
		{"ones behind the header", func(page []byte) { copy(page[64:], bytes.Repeat([]byte{0xff}, len(page))) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newCard(t)
			p := c.limited(30, program(t, "flood"), "kernel=busy_2ms", "log=1", "seconds=60")
			p.ready()
			time.Sleep(settle)
			path := findFile(t, filepath.Dir(c.dir), "usage")
			first := c.mark()
			for range 12 {
				page, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				test.fill(page)
				overwrite(t, path, page)
				before := len(p.all("launch"))
				time.Sleep(250 * time.Millisecond)
				p.await("launch", before+1, time.Second)
			}
			// Each time, what the program had saved up may be gone, and a debt may be there that it does not have, of a
			// second at most. That is to its own harm; more than the share it gets by a burst at most.
			mustBeWithin(t, "while the page is damaged", c.mark().since(first), 10, 33)
			// Once nobody damages it any more, the share is there again, after that debt.
			mustBeWithin(t, "after the damage", c.over(3*time.Second), 20, 33)
		})
	}
}

// findFile finds the one file of this name below a directory.
func findFile(t *testing.T, dir, name string) string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == name && entry.Type().IsRegular() {
			found = append(found, path)
		}
		return err
	})
	if err != nil || len(found) != 1 {
		t.Fatalf("files %s below %s: %v, %v", name, dir, found, err)
	}
	return found[0]
}

// overwrite changes the file's bytes in place.
func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
}
