// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A shared library as the dynamic loader sees it: by its program headers and hash table alone, without section headers,
// which a file need not have. Files come from containers: every number is checked, every read is a bounded pread of a
// regular file (a mapping could fault when the container truncates it).

package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
)

// symbol is a function that a library exports.
type symbol struct {
	offset uint64 // in the file
	code   []byte // its first bytes
}

// image is an opened library.
type image struct {
	file                      io.ReaderAt
	machine                   string
	segments                  []segment
	strings, stringsSize      uint64 // offset in the file
	symbols, gnuHash, sysHash uint64 // offsets in the file; 0: there is none
	soname                    string
	gnu                       gnuTable
	steps                     int // taken in hash chains so far
}

type segment struct {
	address, offset, size uint64
	executable            bool
}

// gnuTable is the head of a hash table of GNU's form.
type gnuTable struct {
	buckets, first, words, shift uint32
}

var errNotLibrary = errors.New("not a shared library of this machine")

const (
	maxSegments    = 128
	maxDynamic     = 1 << 16 // bytes
	maxName        = 128     // bytes
	maxSteps       = 8192    // symbols that are looked at in hash chains, for all names together; a driver needs some hundred
	headerSize     = 64
	segmentSize    = 56
	symbolSize     = 24
	typeDynamic    = 3
	programLoad    = 1
	programDynamic = 2
)

var machines = map[uint16]string{62: "amd64", 183: "arm64"}

// openImage reads a library's headers; errNotLibrary if it is none that programs of this machine can load.
func openImage(file io.ReaderAt) (*image, error) {
	head := make([]byte, headerSize)
	if _, err := file.ReadAt(head, 0); err != nil {
		return nil, errNotLibrary
	}
	le := binary.LittleEndian
	machine := machines[le.Uint16(head[18:])]
	if string(head[:4]) != "\x7fELF" || head[4] != 2 || head[5] != 1 || machine != runtime.GOARCH || le.Uint16(head[16:]) != typeDynamic {
		return nil, errNotLibrary
	}
	offset, size, count := le.Uint64(head[32:]), le.Uint16(head[54:]), le.Uint16(head[56:])
	if size != segmentSize || count == 0 || count > maxSegments || offset > math.MaxInt64 {
		return nil, errNotLibrary
	}
	headers := make([]byte, int(count)*segmentSize)
	if _, err := file.ReadAt(headers, int64(offset)); err != nil {
		return nil, errNotLibrary
	}
	im := &image{file: file, machine: machine}
	var dynamicOffset, dynamicSize uint64
	for ; len(headers) > 0; headers = headers[segmentSize:] {
		switch le.Uint32(headers) {
		case programLoad:
			im.segments = append(im.segments, segment{
				address: le.Uint64(headers[16:]), offset: le.Uint64(headers[8:]), size: le.Uint64(headers[32:]),
				executable: headers[4]&1 != 0,
			})
		case programDynamic:
			dynamicOffset, dynamicSize = le.Uint64(headers[8:]), le.Uint64(headers[32:])
		}
	}
	return im, im.readDynamic(dynamicOffset, dynamicSize)
}

// readDynamic finds the tables.
func (im *image) readDynamic(offset, size uint64) error {
	if size == 0 || size > maxDynamic || offset > math.MaxInt64 {
		return errNotLibrary
	}
	table := make([]byte, size)
	if n, _ := im.file.ReadAt(table, int64(offset)); n < len(table) {
		return errNotLibrary
	}
	const (
		tagHash, tagStrings, tagSymbols, tagStringsSize, tagSoname, tagGNUHash = 4, 5, 6, 10, 14, 0x6ffffef5
	)
	tags := map[uint64]uint64{}
	for ; len(table) >= 16; table = table[16:] {
		tag := binary.LittleEndian.Uint64(table)
		if tag == 0 {
			break
		}
		tags[tag] = binary.LittleEndian.Uint64(table[8:])
	}
	ok := true
	place := func(tag uint64, needed bool) uint64 {
		address, has := tags[tag]
		at, inside := im.fileOffset(address, false)
		if !has || !inside {
			ok = ok && !needed
			return 0
		}
		return at
	}
	im.strings, im.stringsSize = place(tagStrings, true), tags[tagStringsSize]
	im.symbols = place(tagSymbols, true)
	im.gnuHash, im.sysHash = place(tagGNUHash, false), place(tagHash, false)
	if !ok || im.gnuHash == 0 && im.sysHash == 0 {
		return errNotLibrary
	}
	if soname, has := tags[tagSoname]; has {
		im.soname = im.text(soname)
	}
	if im.gnuHash != 0 {
		words, err := im.words(im.gnuHash, 4)
		if err != nil || words[0] == 0 || words[2] == 0 || words[2]&(words[2]-1) != 0 {
			return errNotLibrary
		}
		im.gnu = gnuTable{buckets: words[0], first: words[1], words: words[2], shift: words[3] & 31}
	}
	return nil
}

// fileOffset translates an address of the loaded library.
func (im *image) fileOffset(address uint64, code bool) (uint64, bool) {
	for _, s := range im.segments {
		if address >= s.address && address-s.address < s.size && (!code || s.executable) {
			at := address - s.address + s.offset
			return at, at >= s.offset && at < math.MaxInt64
		}
	}
	return 0, false
}

// words reads n 32-bit words.
func (im *image) words(offset uint64, n int) ([]uint32, error) {
	raw := make([]byte, 4*n)
	if offset > math.MaxInt64 {
		return nil, errNotLibrary
	}
	if _, err := im.file.ReadAt(raw, int64(offset)); err != nil {
		return nil, fmt.Errorf("read library: %w", err)
	}
	out := make([]uint32, n)
	for i := range out {
		out[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return out, nil
}

// text reads a string of the string table; "" if it is none.
func (im *image) text(index uint64) string {
	if index >= im.stringsSize || im.strings+index > math.MaxInt64 {
		return ""
	}
	raw := make([]byte, min(maxName, im.stringsSize-index))
	n, _ := im.file.ReadAt(raw, int64(im.strings+index))
	for i, b := range raw[:n] {
		if b == 0 {
			return string(raw[:i])
		}
	}
	return ""
}

// exported looks a function up; false if the library does not export it, as code of its own.
func (im *image) exported(name string) (symbol, bool) {
	index, ok := im.lookGNU(name)
	if im.gnuHash == 0 {
		index, ok = im.lookSys(name)
	}
	if !ok {
		return symbol{}, false
	}
	raw := make([]byte, symbolSize)
	if _, err := im.file.ReadAt(raw, int64(im.symbols+uint64(index)*symbolSize)); err != nil {
		return symbol{}, false
	}
	const function = 2
	if raw[4]&0xf != function || binary.LittleEndian.Uint16(raw[6:]) == 0 {
		return symbol{}, false
	}
	offset, ok := im.fileOffset(binary.LittleEndian.Uint64(raw[8:]), true)
	if !ok {
		return symbol{}, false
	}
	code := make([]byte, prologueBytes)
	n, _ := im.file.ReadAt(code, int64(offset))
	if size := binary.LittleEndian.Uint64(raw[16:]); size > 0 && size < uint64(n) {
		n = int(size)
	}
	return symbol{offset: offset, code: code[:n]}, n > 0
}

// named says whether the symbol with that number has that name.
func (im *image) named(index uint32, name string) bool {
	words, err := im.words(im.symbols+uint64(index)*symbolSize, 1)
	return err == nil && im.text(uint64(words[0])) == name
}

// step says whether one more symbol may be looked at: chains can be as long, and as often gone through, as a file likes.
func (im *image) step() bool {
	im.steps++
	return im.steps <= maxSteps
}

func (im *image) lookGNU(name string) (uint32, bool) {
	if im.gnuHash == 0 {
		return 0, false
	}
	hash := uint32(5381)
	for _, c := range []byte(name) {
		hash = hash*33 + uint32(c)
	}
	t := im.gnu
	bloom, err := im.words(im.gnuHash+16+8*uint64(hash/64&(t.words-1)), 2)
	if err != nil {
		return 0, false
	}
	word := uint64(bloom[1])<<32 | uint64(bloom[0])
	if word>>(hash%64)&1 == 0 || word>>((hash>>t.shift)%64)&1 == 0 {
		return 0, false
	}
	buckets := im.gnuHash + 16 + 8*uint64(t.words)
	start, err := im.words(buckets+4*uint64(hash%t.buckets), 1)
	if err != nil || start[0] < t.first {
		return 0, false
	}
	chains := buckets + 4*uint64(t.buckets)
	for index := start[0]; im.step(); index++ {
		link, err := im.words(chains+4*uint64(index-t.first), 1)
		if err != nil {
			return 0, false
		}
		if link[0]|1 == hash|1 && im.named(index, name) {
			return index, true
		}
		if link[0]&1 != 0 {
			return 0, false
		}
	}
	return 0, false
}

func (im *image) lookSys(name string) (uint32, bool) {
	hash := uint32(0)
	for _, c := range []byte(name) {
		hash = hash<<4 + uint32(c)
		hash = (hash ^ hash>>24&0xf0) & 0x0fffffff
	}
	head, err := im.words(im.sysHash, 2)
	if err != nil || head[0] == 0 {
		return 0, false
	}
	next := im.sysHash + 8 + 4*uint64(hash%head[0])
	for im.step() {
		index, err := im.words(next, 1)
		if err != nil || index[0] == 0 || index[0] >= head[1] {
			return 0, false
		}
		if im.named(index[0], name) {
			return index[0], true
		}
		next = im.sysHash + 8 + 4*uint64(head[0]) + 4*uint64(index[0])
	}
	return 0, false
}
