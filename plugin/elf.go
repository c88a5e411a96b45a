// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What a libvgpu.so says of itself: architecture and build ID, read from its ELF headers and notes.

package plugin

import (
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime"
)

// Limits of a build ID in bytes: it becomes the name of a directory. Linkers write 8, 16 or 20.
const (
	minBuildIDBytes = 4
	maxBuildIDBytes = 64
)

// noteBuildID is NT_GNU_BUILD_ID of binutils' include/elf/common.h.
const noteBuildID = 3

// machines names the ELF machine of the architectures that we build for.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// readBuildID checks that r is a 64-bit shared library for this machine and returns its build ID in hexadecimal.
func readBuildID(r io.ReaderAt) (string, error) {
	file, err := elf.NewFile(r)
	if err != nil {
		return "", fmt.Errorf("not an ELF file: %w", err)
	}
	if want := machines[runtime.GOARCH]; file.Class != elf.ELFCLASS64 || file.Machine != want {
		return "", fmt.Errorf("wrong architecture: %s %s, this machine needs %s %s", file.Class, file.Machine, elf.ELFCLASS64, want)
	}
	if file.Type != elf.ET_DYN {
		return "", fmt.Errorf("not a shared library: ELF type %s", file.Type)
	}
	section := file.Section(".note.gnu.build-id")
	if section == nil {
		return "", errors.New("no build ID (section .note.gnu.build-id)")
	}
	data, err := section.Data()
	if err != nil {
		return "", fmt.Errorf("read build ID: %w", err)
	}
	id, err := parseBuildIDNote(data, file)
	if err != nil {
		return "", err
	}
	return hex.EncodeToString(id), nil
}

// parseBuildIDNote takes the note apart: name size, descriptor size, type, "GNU\0", descriptor.
func parseBuildIDNote(data []byte, file *elf.File) ([]byte, error) {
	const header, name = 12, "GNU\x00"
	if len(data) < header+len(name) {
		return nil, errors.New("build ID note is too short")
	}
	nameBytes := file.ByteOrder.Uint32(data)
	descBytes := file.ByteOrder.Uint32(data[4:])
	kind := file.ByteOrder.Uint32(data[8:])
	desc := data[header+len(name):]
	if nameBytes != uint32(len(name)) || kind != noteBuildID || string(data[header:header+len(name)]) != name {
		return nil, errors.New("build ID note is of another kind")
	}
	if descBytes < minBuildIDBytes || descBytes > maxBuildIDBytes || int(descBytes) > len(desc) {
		return nil, fmt.Errorf("build ID of %d bytes", descBytes)
	}
	return desc[:descBytes], nil
}

// validBuildID reports whether id is what readBuildID may return: it is a path component.
func validBuildID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && hex.EncodeToString(raw) == id && len(raw) >= minBuildIDBytes && len(raw) <= maxBuildIDBytes
}
