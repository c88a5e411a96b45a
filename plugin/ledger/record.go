// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The record of one allocation, its validation, and its file.

package ledger

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// RecordVersion is the version this package writes. It also reads memoryOnlyVersion, whose grants say nothing of GPU time:
// the libraries that they name do not limit it.
const (
	RecordVersion     = 2
	memoryOnlyVersion = 1
)

// Sizes and names of records on disk: <key>.json, at most maxRecordBytes long; what cannot be read is renamed to
// <key>.json.bad.
const (
	recordSuffix   = ".json"
	badSuffix      = ".bad"
	recordMode     = 0o600
	maxRecordBytes = 1 << 20
)

// KeyBytes is the length of an allocation key as text.
const KeyBytes = 32

// Grant is what an allocation holds of one GPU.
type Grant struct {
	// UUID of the GPU.
	UUID string `json:"uuid"`
	// SliceIDs are the device IDs held, sorted by number.
	SliceIDs []string `json:"sliceIDs"`
	// MemoryLimitBytes is the device memory that the container may use on this GPU: the sum over its slices.
	MemoryLimitBytes uint64 `json:"memoryLimitBytes"`
	// Compute is what the container may use of this GPU's time. Zero in a record of memoryOnlyVersion.
	Compute Compute `json:"compute,omitzero"`
}

// Identity says which container an allocation belongs to. It is learnt after the grant, from the kubelet.
type Identity struct {
	PodUID    string `json:"podUID"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	// Seen: the pod has had a directory at the kubelet, so that its absence means that the pod is gone.
	Seen bool `json:"seen"`
}

// Library names the files of libvgpu that an allocation's response named. They stay the allocation's own for its life,
// whatever the agent is told later.
type Library struct {
	BuildID      string `json:"buildID"`
	ContainerDir string `json:"containerDir"` // where the library and the pages appear in the container
}

// Record is one allocation: the slices that one container holds. Grants are sorted by UUID. Records that the
// ledger hands out are copies.
type Record struct {
	Version   int       `json:"version"`
	Key       string    `json:"key"`
	Resource  string    `json:"resource"`
	Library   Library   `json:"library"`
	PagesDir  string    `json:"pagesDir"` // the pages are in <PagesDir>/<Key>, for the allocation's life
	CreatedAt time.Time `json:"createdAt"`
	Grants    []Grant   `json:"grants"`
	Pod       *Identity `json:"pod,omitempty"` // nil until identified
}

// SliceIDs returns every device ID of the record, sorted.
func (r Record) SliceIDs() []string {
	var ids []string
	for _, g := range r.Grants {
		ids = append(ids, g.SliceIDs...)
	}
	return sortedIDs(ids)
}

// clone copies the record deeply.
func (r Record) clone() Record {
	r.Grants = slices.Clone(r.Grants)
	for i := range r.Grants {
		r.Grants[i].SliceIDs = slices.Clone(r.Grants[i].SliceIDs)
	}
	if r.Pod != nil {
		pod := *r.Pod
		r.Pod = &pod
	}
	return r
}

func knownVersion(version int) bool { return version == RecordVersion || version == memoryOnlyVersion }

// validate checks what a reader of a record relies on.
func (r Record) validate() error {
	if !knownVersion(r.Version) {
		return fmt.Errorf("version %d is not known (this build knows up to %d)", r.Version, RecordVersion)
	}
	if !validKey(r.Key) {
		return fmt.Errorf("key %q is not %d hexadecimal digits", r.Key, KeyBytes)
	}
	if r.Resource == "" || len(r.Grants) == 0 {
		return errors.New("no resource or no grants")
	}
	if r.Library.BuildID == "" || r.Library.ContainerDir == "" {
		return errors.New("no build ID or no container directory")
	}
	if !filepath.IsAbs(r.PagesDir) {
		return fmt.Errorf("pages directory %q is not an absolute path", r.PagesDir)
	}
	seen := map[string]bool{}
	for _, g := range r.Grants {
		if len(g.SliceIDs) == 0 {
			return fmt.Errorf("grant of GPU %q has no slices", g.UUID)
		}
		if err := r.validateCompute(g); err != nil {
			return fmt.Errorf("grant of GPU %q: %w", g.UUID, err)
		}
		for _, id := range g.SliceIDs {
			uuid, _, err := ParseSliceID(id)
			if err != nil {
				return err
			}
			if uuid != g.UUID || seen[id] {
				return fmt.Errorf("device ID %q is twice or under the wrong GPU", id)
			}
			seen[id] = true
		}
	}
	return nil
}

// validateCompute checks a grant's part in GPU time: there in every version but the one that has none.
func (r Record) validateCompute(g Grant) error {
	if r.Version != memoryOnlyVersion {
		return g.Compute.validate()
	}
	if g.Compute != (Compute{}) {
		return fmt.Errorf("compute in a record of version %d", r.Version)
	}
	return nil
}

// validKey reports whether key has the form that Hold mints: it becomes a path component.
func validKey(key string) bool {
	if len(key) != KeyBytes {
		return false
	}
	raw, err := hex.DecodeString(key)
	return err == nil && hex.EncodeToString(raw) == key
}

func (r Record) encode() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// readRecord reads and checks one record file. A symbolic link, a directory or anything else than a regular file
// is refused.
func readRecord(path string) (Record, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Record{}, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecordBytes {
		return Record{}, fmt.Errorf("not a regular file of at most %d bytes", maxRecordBytes)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecordBytes))
	if err != nil {
		return Record{}, err
	}
	return decodeRecord(data)
}

// decodeRecord takes exactly one JSON object and nothing after it.
func decodeRecord(data []byte) (Record, error) {
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return Record{}, fmt.Errorf("decode: %w", err)
	}
	if !knownVersion(head.Version) {
		return Record{}, Record{Version: head.Version}.validate()
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	var r Record
	if err := decoder.Decode(&r); err != nil {
		return Record{}, fmt.Errorf("decode: %w", err)
	}
	if err := r.validate(); err != nil {
		return Record{}, err
	}
	if r.Version == memoryOnlyVersion {
		for i := range r.Grants {
			r.Grants[i].Compute = Compute{Mode: ComputeNone}
		}
		r.Version = RecordVersion
	}
	return r, nil
}
