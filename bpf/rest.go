// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Rests. The cap bounds what is counted, but a call over it pays for the trap. So where copies and waits in a file stay over
// the cap their probes are taken out for a while, and put in again to see: from full, that file goes down to sampled. Rare
// calls stay probed whatever they cost: else whoever makes enough of them would not be seen at all.

package bpf

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	restEvery = time.Second // looks at who is over the cap
	restAfter = 5           // looks in a row at which a file is
	restFirst = time.Minute // the first rest; each that follows on another is twice as long
	restMost  = time.Hour
)

// often is the part of a library's probes that can rest.
type often struct {
	number uint8    // of the library in the kernel's map
	file   *os.File // it, to attach again; nil: there is no such part
	stamp  stamp    // of the file when it was probed
	places []placed
	probes attachment // nil: at rest
	rest   rest
}

// rest is what is known of a file's load. Its zero value is that of one that was just probed.
type rest struct {
	over  uint64        // calls over the cap at the last look
	looks int           // in a row at which there were more of them
	last  time.Duration // of the last rest; 0: there was none
	until time.Time     // of the present rest; zero: there is none
	since time.Time     // the end of the last rest
}

// look takes the number of calls over the cap, ever. It answers whether the probes are to be in, from now on.
func (r *rest) look(over uint64, now time.Time, first time.Duration) (probed bool) {
	more := over != r.over
	r.over = over
	switch {
	case !r.until.IsZero():
		if now.Before(r.until) {
			return false
		}
		r.until, r.since, r.looks = time.Time{}, now, 0
		return true
	case !more:
		r.looks = 0
		return true
	}
	if r.looks++; r.looks < restAfter {
		return true
	}
	if r.last == 0 || now.Sub(r.since) > 2*r.last {
		r.last = first
	} else {
		r.last = min(2*r.last, max(restMost, first))
	}
	r.until = now.Add(r.last)
	return false
}

// attach puts a library's probes in, in two parts: those that can rest apart.
func (w *watcher) attach(l *library, file *os.File, places []placed) error {
	l.often.number = w.freeNumber()
	for i := range places {
		places[i].file = l.often.number
	}
	l.probes = attachment{}
	rare := slices.DeleteFunc(slices.Clone(places), func(p placed) bool { return !p.rare() })
	l.often.places = slices.DeleteFunc(places, placed.rare)
	var err error
	if len(rare) > 0 {
		if l.probes, err = w.loaded.attach(file, rare); err != nil {
			return err
		}
	}
	if len(l.often.places) == 0 {
		return nil
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("keep library: %w", err), l.Close())
	}
	l.often.file = os.NewFile(uintptr(fd), file.Name())
	if info, err := file.Stat(); err == nil {
		l.often.stamp = stampOf(info)
	}
	if l.often.probes, err = w.loaded.attach(l.often.file, l.often.places); err != nil {
		return errors.Join(err, l.Close())
	}
	l.often.rest.over = w.overrun(l.often.number)
	return nil
}

// Close takes all probes out.
func (l *library) Close() error {
	err := closeAll([]attachment{l.often.probes, l.probes})
	if l.often.file != nil {
		err = errors.Join(err, l.often.file.Close())
	}
	return err
}

// changed says whether the file was written anew in its place meanwhile, so that its functions may be elsewhere.
func (o *often) changed() bool {
	info, err := o.file.Stat()
	return err != nil || stampOf(info) != o.stamp
}

// freeNumber is one that no probed library has. There are as many as may be probed.
func (w *watcher) freeNumber() uint8 {
	var taken [maxLibraries]bool
	for _, l := range w.libraries {
		taken[l.often.number] = taken[l.often.number] || l.probes != nil
	}
	return uint8(max(0, slices.Index(taken[:], false)))
}

// overrun is how many copies and waits in a file were over the cap.
func (w *watcher) overrun(number uint8) (calls uint64) {
	_ = w.loaded.collection.Maps[probesMapOverrun].Lookup(uint32(number), &calls)
	return calls
}

// restBusy looks at the load of each library, and lets probes rest or puts them in again. Where an operator has asked for
// a mode it stays.
func (w *watcher) restBusy(now time.Time) {
	first := w.options.restFor
	if first == 0 && w.options.Mode == ModeAuto {
		first = restFirst
	}
	if first == 0 || now.Before(w.nextRest) {
		return
	}
	w.nextRest = now.Add(restEvery)
	for id, l := range w.libraries {
		if l.often.file == nil {
			continue
		}
		var err error
		switch probed := l.often.rest.look(w.overrun(l.often.number), now, first); {
		case !probed && l.often.probes != nil:
			w.options.Log.Warn("copies and waits are not counted for a while: there are too many", "path", l.often.file.Name(), "for", l.often.rest.last)
			err = l.often.probes.Close()
			l.often.probes = nil
		case probed && l.often.probes == nil && l.often.changed():
			delete(w.libraries, id) // what is in it now is looked at like any other file
			err = l.Close()
		case probed && l.often.probes == nil:
			l.often.probes, err = w.loaded.attach(l.often.file, l.often.places)
		}
		if err != nil {
			w.options.Log.Warn("probes did not change", "path", l.often.file.Name(), "error", err)
		}
	}
}

// resting lists the libraries of which only rare calls are probed for now.
func (w *watcher) resting() (ids []fileID) {
	for id, l := range w.libraries {
		if l.often.file != nil && l.often.probes == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
