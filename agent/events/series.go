// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// series.go keeps what was told of late. A thing that comes again within seriesSpan of its first event is not told anew: the
// event there is counts it, and the API server hears of the count at most once in seriesEvery.

package events

import (
	"time"
)

const (
	seriesSpan  = 10 * time.Minute // from the first one; then it is told anew, with the figures of then
	seriesEvery = time.Minute
	mostSeries  = 512
)

// seriesKey is what repetitions have in common.
type seriesKey struct {
	reason, action string
	regarding      Object
	subject        string
}

func (e Event) key() seriesKey { return seriesKey{e.Reason, e.Action, e.Regarding, e.Subject} }

// series is one event of the API server, and how often it happened.
type series struct {
	namespace, name string
	first, last     time.Time
	count           int
	told            int       // the count that the API server knows; 0: it does not know the event
	toldAt          time.Time // when it heard
}

// seriesBook has the series of late.
type seriesBook map[seriesKey]*series

// note counts an event in, and returns its series, new or not.
func (b seriesBook) note(e Event, namespace, name string, now time.Time) (s *series, isNew bool) {
	b.forget(now)
	s = b[e.key()]
	if s != nil && now.Sub(s.first) < seriesSpan {
		s.last = now
		s.count++
		return s, false
	}
	s = &series{namespace: namespace, name: name, first: now, last: now, count: 1}
	b[e.key()] = s
	return s, true
}

// forget lets series go that are over and told, and the oldest ones where there are too many.
func (b seriesBook) forget(now time.Time) {
	var oldest seriesKey
	for key, s := range b {
		if now.Sub(s.first) >= seriesSpan && s.told == s.count {
			delete(b, key)
		} else if now.Sub(s.first) >= 2*seriesSpan {
			delete(b, key) // the API server does not want to know
		}
	}
	for len(b) >= mostSeries {
		first := true
		for key, s := range b {
			if first || s.first.Before(b[oldest].first) {
				oldest, first = key, false
			}
		}
		delete(b, oldest)
	}
}

// due are the series of which the API server does not know the newest count though it may hear of it, and when the next
// one will be; 0: none.
func (b seriesBook) due(now time.Time) (list []*series, next time.Duration) {
	for _, s := range b {
		if s.told == 0 || s.told == s.count {
			continue
		}
		wait := s.toldAt.Add(seriesEvery).Sub(now)
		if wait <= 0 {
			list = append(list, s)
		} else if next == 0 || wait < next {
			next = wait
		}
	}
	return list, next
}
