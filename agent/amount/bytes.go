// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package amount reads amounts of memory as people of this field write them, and shares of a GPU's time. libvgpu reads
// CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_SM_LIMIT by the same rules; both are held to libvgpu/test/testdata.
package amount

import (
	"fmt"
	"math/big"
	"strings"
)

// BytesExamples is what error messages quote.
const BytesExamples = "e.g. 4Gi, 512Mi, 1.5G (1024-based) or bytes"

// BytesRule is the sentence that --help and the documentation quote.
const BytesRule = "a decimal number with an optional fraction of at most six digits and a suffix of " +
	"k, K, Ki, KiB, KB, m, M, Mi, MiB, MB, g, G, Gi, GiB, GB, t, T, Ti, TiB, TB (all powers of 1024; " +
	"m is MiB by custom of this field), or a whole number of bytes"

// maxFractionDigits keeps the shim's arithmetic, which is the same, within 128 bits.
const maxFractionDigits = 6

// ParseBytes returns the bytes that text names. Blanks at both ends are allowed; set is false for an empty
// or blank text. Everything that is not exactly an amount (hexadecimal, sign, percent, unknown suffix, blank
// inside, a fraction of bytes, more than 2^64-1) is an error. A fraction is rounded down to whole bytes.
func ParseBytes(text string) (bytes uint64, set bool, err error) {
	trimmed := strings.Trim(text, " \t\n\v\f\r")
	if trimmed == "" {
		return 0, false, nil
	}
	whole, rest := CutDigits(trimmed)
	fraction := ""
	hasFraction := false
	if after, found := strings.CutPrefix(rest, "."); found && whole != "" {
		hasFraction = true
		fraction, rest = CutDigits(after)
	}
	shift, known := unitShift(rest)
	switch {
	case whole == "" || (hasFraction && fraction == ""):
		return 0, false, fmt.Errorf("%q is not an amount of memory: want %s", text, BytesExamples)
	case !known:
		return 0, false, fmt.Errorf("%q has the unknown suffix %q: want %s", text, rest, BytesExamples)
	case hasFraction && shift == 0:
		return 0, false, fmt.Errorf("%q is a fraction of bytes: want %s", text, BytesExamples)
	case len(fraction) > maxFractionDigits:
		return 0, false, fmt.Errorf("%q has a fraction of more than %d digits", text, maxFractionDigits)
	case len(whole) > 64:
		return 0, false, fmt.Errorf("%q has too many digits", text)
	}
	value, _ := new(big.Int).SetString(whole+fraction, 10)
	value.Lsh(value, shift)
	value.Quo(value, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(len(fraction))), nil))
	if !value.IsUint64() {
		return 0, false, fmt.Errorf("%q does not fit into 64 bits", text)
	}
	return value.Uint64(), true, nil
}

// CutDigits splits text after its leading decimal digits.
func CutDigits(text string) (digits, rest string) {
	end := 0
	for end < len(text) && text[end] >= '0' && text[end] <= '9' {
		end++
	}
	return text[:end], text[end:]
}

// unitShift returns the power of two that a suffix stands for.
func unitShift(suffix string) (shift uint, known bool) {
	switch suffix {
	case "":
		return 0, true
	case "k", "K", "Ki", "KiB", "KB":
		return 10, true
	case "m", "M", "Mi", "MiB", "MB":
		return 20, true
	case "g", "G", "Gi", "GiB", "GB":
		return 30, true
	case "t", "T", "Ti", "TiB", "TB":
		return 40, true
	}
	return 0, false
}

// FormatBytes writes a number of bytes the way messages to people show it: with the largest binary unit
// that divides it, and in bytes otherwise.
func FormatBytes(bytes uint64) string {
	for _, unit := range []struct {
		suffix string
		shift  uint
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if bytes != 0 && bytes%(1<<unit.shift) == 0 {
			return fmt.Sprintf("%d %s", bytes>>unit.shift, unit.suffix)
		}
	}
	return fmt.Sprintf("%d B", bytes)
}
