// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The ledger itself: opening the records, hold → commit → release, and what readers may ask.

package ledger

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/internal/atomicfile"
)

// Errors that callers test.
var (
	// ErrUnknownDevice: a device ID names no slice that the books know.
	ErrUnknownDevice = errors.New("unknown device")
	// ErrNoMemory: the memory book of a GPU cannot serve the grant.
	ErrNoMemory = errors.New("memory committed")
	// ErrUnknownKey: no allocation has this key.
	ErrUnknownKey = errors.New("unknown allocation")
)

// SetAside is something in the ledger's directory that is no record that can be read. It is not in the books, and was
// renamed if it had the name of a record; the allocation it stood for, if it still runs, keeps its pages and so its
// limits.
type SetAside struct {
	Path   string // where it is now
	Reason string
}

// entry is a record and whether it is on disk.
type entry struct {
	record    Record
	committed bool
}

// Ledger is the one owner of the grants of this node. Its methods may be called from any goroutine.
type Ledger struct {
	dir string

	mu       sync.Mutex
	gpus     map[string]GPU
	compute  ComputePolicy
	entries  map[string]*entry // by key
	revision uint64            // raised whenever the committed allocations change
	setAside []SetAside
}

// Open reads the records in dir, which is made (0700) when absent. What is half written, of an unknown version, no
// regular file or no record at all is renamed to <name>.bad (or .bad.2 and so on, where that is taken) and listed by
// SetAside; temporary files of a killed predecessor are removed. Nothing that lies in dir makes it fail: only that dir
// cannot be read does.
func Open(dir string) (*Ledger, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make ledger directory: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read ledger directory: %w", err)
	}
	l := &Ledger{dir: dir, gpus: map[string]GPU{}, entries: map[string]*entry{}}
	for _, file := range files {
		l.load(file.Name())
	}
	return l, nil
}

// load takes one file of the directory into the books, sets it aside, or leaves it alone.
func (l *Ledger) load(name string) {
	path := filepath.Join(l.dir, name)
	if atomicfile.IsTemp(name) {
		if err := os.Remove(path); err != nil {
			l.setAside = append(l.setAside, SetAside{path, "a temporary file that stays: " + err.Error()})
		}
		return
	}
	key, ok := strings.CutSuffix(name, recordSuffix)
	if !ok {
		return
	}
	record, err := readRecord(path)
	if err == nil && record.Key != key {
		err = fmt.Errorf("holds the record of %s", record.Key)
	}
	if err == nil {
		l.entries[key] = &entry{record: record, committed: true}
		return
	}
	bad, renameErr := moveAside(path)
	l.setAside = append(l.setAside, SetAside{bad, errors.Join(err, renameErr).Error()})
}

// moveAside gives a file, or whatever it is, a name that no other has, and returns where it is then.
func moveAside(path string) (string, error) {
	const tries = 1000
	bad := path + badSuffix
	for n := 2; ; n++ {
		err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, bad, unix.RENAME_NOREPLACE)
		if err == nil {
			return bad, nil
		}
		if !errors.Is(err, fs.ErrExist) || n > tries {
			return path, fmt.Errorf("it stays where it is: %w", err)
		}
		bad = fmt.Sprintf("%s%s.%d", path, badSuffix, n)
	}
}

// SetAside lists the files that Open could not take into the books.
func (l *Ledger) SetAside() []SetAside {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.setAside)
}

// Hold grants the slices named by ids, in memory only, and mints the allocation's key. The books are held from
// here on; Commit puts the record on disk, Release takes the hold back. Fails with ErrUnknownDevice or
// ErrNoMemory (wrapped, naming the slice or the GPU and its bytes); then nothing is held.
func (l *Ledger) Hold(resource string, ids []string, library Library, pagesDir string, now time.Time) (Record, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	grants, err := l.grantsLocked(ids)
	if err != nil {
		return Record{}, err
	}
	if err := l.fitsLocked(grants); err != nil {
		return Record{}, err
	}
	key, err := newKey()
	if err != nil {
		return Record{}, fmt.Errorf("mint allocation key: %w", err)
	}
	record := Record{
		Version: RecordVersion, Key: key, Resource: resource, Library: library, PagesDir: pagesDir,
		CreatedAt: now.UTC().Round(0), Grants: grants,
	}
	if err := record.validate(); err != nil {
		return Record{}, err
	}
	l.entries[key] = &entry{record: record}
	return record.clone(), nil
}

// Commit writes the record of a hold to disk and syncs it. On an error (a full disk) the hold stands, not
// committed, and the caller releases it.
func (l *Ledger) Commit(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[key]
	if !ok {
		return fmt.Errorf("commit %q: %w", key, ErrUnknownKey)
	}
	if err := l.writeLocked(e.record); err != nil {
		return fmt.Errorf("commit %s: %w", key, err)
	}
	e.committed = true
	l.revision++
	return nil
}

// Release ends an allocation, or takes back a hold: its record leaves the disk first, then the books. On an
// error the allocation stays in the books.
func (l *Ledger) Release(key string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.entries[key]; !ok {
		return fmt.Errorf("release %q: %w", key, ErrUnknownKey)
	}
	// Also for a hold: a Commit that failed at the very end may have left the file.
	if err := os.Remove(l.path(key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release %s: %w", key, err)
	}
	delete(l.entries, key)
	l.revision++
	return nil
}

// Identify notes which container an allocation belongs to, on disk when the allocation is committed. Writing is
// left out when nothing changes.
func (l *Ledger) Identify(key string, id Identity) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[key]
	if !ok {
		return fmt.Errorf("identify %q: %w", key, ErrUnknownKey)
	}
	if e.record.Pod != nil && *e.record.Pod == id {
		return nil
	}
	changed := e.record.clone()
	changed.Pod = &id
	if e.committed {
		if err := l.writeLocked(changed); err != nil {
			return fmt.Errorf("identify %s: %w", key, err)
		}
	}
	e.record = changed
	l.revision++
	return nil
}

// Revision changes whenever Snapshot does, and costs much less.
func (l *Ledger) Revision() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revision
}

// Record returns one allocation, if it is committed.
func (l *Ledger) Record(key string) (Record, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.entries[key]
	if !ok || !e.committed {
		return Record{}, false
	}
	return e.record.clone(), true
}

// Snapshot returns the committed allocations, oldest first.
func (l *Ledger) Snapshot() []Record {
	return l.selectRecords(func(e *entry) bool { return e.committed })
}

// ByDeviceIDs returns the committed allocations that hold exactly these device IDs, oldest first: more than one
// when the kubelet handed an init container's slices on to the next container of the pod.
func (l *Ledger) ByDeviceIDs(ids []string) []Record {
	want := sortedIDs(ids)
	return l.selectRecords(func(e *entry) bool { return e.committed && slices.Equal(e.record.SliceIDs(), want) })
}

// Held returns the device IDs that any allocation holds, committed or not.
func (l *Ledger) Held() map[string]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := map[string]bool{}
	for _, e := range l.entries {
		for _, g := range e.record.Grants {
			for _, id := range g.SliceIDs {
				held[id] = true
			}
		}
	}
	return held
}

func (l *Ledger) selectRecords(keep func(*entry) bool) []Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	var records []Record
	for _, e := range l.entries {
		if keep(e) {
			records = append(records, e.record.clone())
		}
	}
	slices.SortFunc(records, func(a, b Record) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.Key, b.Key))
	})
	return records
}

func (l *Ledger) path(key string) string { return filepath.Join(l.dir, key+recordSuffix) }

func (l *Ledger) writeLocked(r Record) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	return atomicfile.WriteFile(l.path(r.Key), data, recordMode)
}

// newKey returns 128 random bits as text.
func newKey() (string, error) {
	raw := make([]byte, KeyBytes/2)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	return hex.EncodeToString(raw), nil
}
