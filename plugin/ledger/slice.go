// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Device IDs: the identity of a slice, "<GPU UUID>::<n>" (the form that dcgm-exporter knows as a replica).

package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// separator stands between the GPU's UUID and the slice's number.
const separator = "::"

// MaxIDBytes is the longest device ID that the device plugin API documents.
const MaxIDBytes = 63

// SliceID returns the device ID of slice n (from 0) of a GPU.
func SliceID(uuid string, n int) string {
	return uuid + separator + strconv.Itoa(n)
}

// ParseSliceID takes a device ID apart. Only the form that SliceID writes is accepted, so that one slice has one
// name: no sign, no leading zero, nothing after the number.
func ParseSliceID(id string) (uuid string, n int, err error) {
	i := strings.LastIndex(id, separator)
	if i < 1 {
		return "", 0, fmt.Errorf("device ID %q is not <GPU UUID>%s<n>", id, separator)
	}
	uuid = id[:i]
	n, err = strconv.Atoi(id[i+len(separator):])
	if err != nil || n < 0 || SliceID(uuid, n) != id {
		return "", 0, fmt.Errorf("device ID %q does not end in a slice number", id)
	}
	return uuid, n, nil
}

// CompareIDs orders device IDs by GPU and then by number, so that ::9 comes before ::10.
func CompareIDs(a, b string) int {
	uuidA, nA, errA := ParseSliceID(a)
	uuidB, nB, errB := ParseSliceID(b)
	if errA != nil || errB != nil {
		return cmp.Compare(a, b)
	}
	return cmp.Or(cmp.Compare(uuidA, uuidB), cmp.Compare(nA, nB))
}

// sortedIDs returns a sorted copy.
func sortedIDs(ids []string) []string {
	sorted := slices.Clone(ids)
	slices.SortFunc(sorted, CompareIDs)
	return sorted
}
