// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Amounts of memory, from the table that the shim's parser is held to as well.

package amount

import (
	"strconv"
	"strings"
	"testing"
)

func TestQuantityTable(t *testing.T) {
	forEachRow(t, "limits.txt", 60, func(input, want string) {
		got := "error"
		bytes, set, err := ParseBytes(input)
		switch {
		case err == nil && set:
			got = strconv.FormatUint(bytes, 10)
		case err == nil:
			got = "unset"
		}
		if got != want {
			t.Errorf("%q: got %s, want %s (%v)", input, got, want, err)
		}
		if err != nil && (bytes != 0 || set) {
			t.Errorf("%q: an error comes with the value %d", input, bytes)
		}
	})
}

func TestQuantityErrorsNameTheText(t *testing.T) {
	for _, text := range []string{"4Gx", "-1", "50%", "0x100M", "99999999999G", "1.5", "G", "1.1234567K"} {
		if _, _, err := ParseBytes(text); err == nil || !strings.Contains(err.Error(), strconv.Quote(text)) {
			t.Errorf("%q: error %v does not name the text", text, err)
		}
	}
}

func TestFormatBytes(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 3 << 29: "1536 MiB", 1 << 42: "4 TiB"} {
		if got := FormatBytes(bytes); got != want {
			t.Errorf("%d: got %q, want %q", bytes, got, want)
		}
	}
}

func FuzzQuantity(f *testing.F) {
	for _, text := range []string{"4G", "1.5Gi", " 08M\n", "18446744073709551615", "0.000001M"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		bytes, set, err := ParseBytes(text)
		if (err != nil || !set) && bytes != 0 {
			t.Errorf("%q: %d without a value", text, bytes)
		}
		if err == nil && set && strings.ContainsAny(text, "-+%xX") {
			t.Errorf("%q was read as %d", text, bytes)
		}
	})
}
