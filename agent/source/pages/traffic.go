// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package pages

import (
	"errors"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/limiter"
)

// TrafficReader reads the traffic books of allocations. It keeps what it has opened, as long as it is asked for it. Not for
// use from several goroutines at once.
type TrafficReader struct {
	path func(key string) string
	open map[string]*openTraffic
}

type openTraffic struct {
	reader *limiter.TrafficReader // nil: these pages have no traffic books
	uuids  []string
	asked  bool
}

var _ source.Traffics = (*TrafficReader)(nil)

// NewTraffic returns a reader; path tells in which directory the pages of an allocation are. The caller closes it.
func NewTraffic(path func(key string) string) *TrafficReader {
	return &TrafficReader{path: path, open: map[string]*openTraffic{}}
}

// Traffic implements source.Traffics: a row for each GPU of each allocation whose limits page can be read, in the order of
// keys. It never fails as a whole: what cannot be read is not Known.
func (r *TrafficReader) Traffic(keys []string) ([]source.Traffic, error) {
	rows := make([]source.Traffic, 0, len(keys))
	for _, key := range keys {
		rows = append(rows, r.read(key)...)
	}
	for key, kept := range r.open {
		if !kept.asked {
			_ = kept.close() // it was only read
			delete(r.open, key)
		}
		kept.asked = false
	}
	return rows, nil
}

func (r *TrafficReader) read(key string) []source.Traffic {
	kept := r.open[key]
	if kept == nil {
		if kept = r.openBooks(key); kept == nil {
			return nil
		}
		r.open[key] = kept
	}
	kept.asked = true
	rows := make([]source.Traffic, len(kept.uuids))
	for i, uuid := range kept.uuids {
		rows[i] = source.Traffic{Key: key, GPUUUID: uuid}
	}
	if kept.reader == nil {
		return rows
	}
	books, err := kept.reader.Read()
	if err != nil { // the page is gone, or not what it was: opened anew at the next look
		_ = kept.close()
		delete(r.open, key)
		return rows
	}
	for i := range books {
		fill(&rows[i], &books[i])
	}
	return rows
}

// openBooks is nil when the limits page cannot be read.
func (r *TrafficReader) openBooks(key string) *openTraffic {
	limits, err := limiter.ReadLimits(r.path(key))
	if err != nil {
		return nil
	}
	kept := &openTraffic{}
	for _, device := range limits.Devices {
		kept.uuids = append(kept.uuids, device.UUID)
	}
	reader, err := limiter.OpenTraffic(r.path(key))
	if errors.Is(err, limiter.ErrVersion) {
		return kept
	}
	if err != nil {
		return nil
	}
	kept.reader = reader
	return kept
}

func (o *openTraffic) close() error {
	if o.reader == nil {
		return nil
	}
	return o.reader.Close()
}

// fill copies one book; directions and kinds have the same numbers in both packages.
func fill(row *source.Traffic, book *limiter.Traffic) {
	row.Known = true
	for i, count := range book.Copies {
		row.Copies[i] = source.Count{Calls: count.Calls, Bytes: count.Bytes}
	}
	row.Stalls = source.Count{Calls: book.Stalls, Time: book.Stalled}
	row.Classes = make([]source.Class, len(book.Classes))
	for i, class := range book.Classes {
		row.Classes[i] = source.Class{ID: class.ID, Kind: source.OperationKind(class.Kind), Samples: class.Samples,
			Operations: class.Operations, Bytes: class.Bytes, Time: class.Time, Recent: class.Recent}
	}
}

// Close gives back what is open.
func (r *TrafficReader) Close() error {
	var errs []error
	for _, kept := range r.open {
		errs = append(errs, kept.close())
	}
	r.open = map[string]*openTraffic{}
	return errors.Join(errs...)
}
