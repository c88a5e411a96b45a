// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Files that are whole by their headers and cost much to look at.

package bpf

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"
)

// countingReader counts reads: each is a system call of the agent's.
type countingReader struct {
	io.ReaderAt
	reads int
}

func (c *countingReader) ReadAt(p []byte, off int64) (int, error) {
	c.reads++
	return c.ReaderAt.ReadAt(p, off)
}

// longChains is a library with one hash bucket in which no name is found, in so many steps.
func longChains(gnu bool, length int) []byte {
	const dynamic, table, names, symbols, size = 0x1000, 0x2000, 0x80000, 0x90000, 0x100000
	raw, le := make([]byte, size), binary.LittleEndian
	copy(raw, "\x7fELF\x02\x01\x01")
	le.PutUint16(raw[16:], typeDynamic)
	for number, name := range machines {
		if name == runtime.GOARCH {
			le.PutUint16(raw[18:], number)
		}
	}
	le.PutUint64(raw[32:], headerSize)
	le.PutUint16(raw[54:], segmentSize)
	le.PutUint16(raw[56:], 2)
	load, dyn := raw[headerSize:], raw[headerSize+segmentSize:]
	le.PutUint32(load, programLoad)
	le.PutUint32(load[4:], 5)
	le.PutUint64(load[32:], size)
	le.PutUint32(dyn, programDynamic)
	le.PutUint64(dyn[8:], dynamic)
	le.PutUint64(dyn[32:], 0x100)
	hashTag := uint64(4)
	if gnu {
		hashTag = 0x6ffffef5
	}
	for i, entry := range [][2]uint64{{hashTag, table}, {5, names}, {6, symbols}, {10, 1000}} {
		le.PutUint64(raw[dynamic+16*i:], entry[0])
		le.PutUint64(raw[dynamic+16*i+8:], entry[1])
	}
	head := raw[table:]
	if !gnu {
		le.PutUint32(head, 1)
		le.PutUint32(head[4:], uint32(length))
		le.PutUint32(head[8:], 1)
		for i := 1; i < length; i++ {
			le.PutUint32(head[12+4*i:], uint32(i%(length-1)+1)) // in a circle
		}
		return raw
	}
	for i, word := range []uint32{1, 1, 1, 0, ^uint32(0), ^uint32(0), 1} { // the filter lets every name in
		le.PutUint32(head[4*i:], word)
	}
	for i := range length { // never the last of the chain
		le.PutUint32(head[28+4*i:], 2)
	}
	return raw
}

// However a container builds its hash table, looking at the file costs about as much as one of the driver's own.
func TestLongChainsCostLittle(t *testing.T) {
	for name, gnu := range map[string]bool{"system": false, "gnu": true} {
		t.Run(name, func(t *testing.T) {
			file := &countingReader{ReaderAt: bytes.NewReader(longChains(gnu, 5000))}
			im, err := openImage(file)
			if err != nil {
				t.Fatal(err)
			}
			if !isDriver(im, "/x/libcuda.so.1") {
				t.Fatal("it is not taken for a driver's: nothing is tried")
			}
			if _, err := place(im); err == nil {
				t.Error("functions are found in it")
			}
			if most := 4 * maxSteps; file.reads > most {
				t.Errorf("%d reads of the file, want %d at most", file.reads, most)
			}
			if file.reads < maxSteps {
				t.Errorf("%d reads: the chains are not followed, so that this shows nothing", file.reads)
			}
		})
	}
}
