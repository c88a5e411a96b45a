// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Watching the kubelet's plugin directory: file events for speed, a poll for everything that events miss (a
// directory that was replaced, a lost event, a node without inotify instances to spare).

package plugin

import (
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// fileID tells one file from another that later has its name. The time of birth is there because inode numbers
// are used again at once by some file systems; it is zero where the file system keeps none.
type fileID struct {
	device, inode uint64
	birth         int64 // ns
}

// identify looks at path itself, not at what a link there points to. Errors are *fs.PathError.
func identify(path string) (fileID, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return fileID{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	id := fileID{device: unix.Mkdev(st.Dev_major, st.Dev_minor), inode: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.birth = st.Btime.Sec*int64(time.Second) + int64(st.Btime.Nsec)
	}
	return id, nil
}

// watcher says "look again" on its channel: after any event in the directory, and on every poll. Several reasons
// may arrive as one.
type watcher struct {
	look chan struct{}

	dir    string
	events *fsnotify.Watcher // nil: poll only
	dirID  fileID            // the directory that is being watched; zero: none
	log    *slog.Logger
	stop   chan struct{}
	done   sync.WaitGroup
}

func newWatcher(dir string, poll time.Duration, log *slog.Logger) *watcher {
	w := &watcher{look: make(chan struct{}, 1), dir: dir, log: log, stop: make(chan struct{})}
	events, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("no file events: sockets are looked at by polling only", "error", err)
	} else {
		w.events = events
	}
	w.follow() // before the first look, so that nothing falls between
	w.done.Go(func() { w.run(poll) })
	return w
}

// close ends the watcher and waits for it.
func (w *watcher) close() {
	close(w.stop)
	w.done.Wait()
	if w.events != nil {
		if err := w.events.Close(); err != nil {
			w.log.Warn("close file events", "error", err)
		}
	}
}

func (w *watcher) run(poll time.Duration) {
	var events chan fsnotify.Event
	var failures chan error
	if w.events != nil {
		events, failures = w.events.Events, w.events.Errors
	}
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-events:
		case err := <-failures:
			w.log.Warn("file events were lost", "error", err)
			w.dirID = fileID{} // add the watch again
		case <-ticker.C:
		}
		w.follow()
		select {
		case w.look <- struct{}{}:
		default: // a look is already due
		}
	}
}

// follow makes sure that the directory which has the name now is the one that is watched.
func (w *watcher) follow() {
	if w.events == nil {
		return
	}
	id, err := identify(w.dir)
	if err != nil {
		w.dirID = fileID{} // not there: the poll sees it come
		return
	}
	if id == w.dirID {
		return
	}
	if w.dirID != (fileID{}) {
		_ = w.events.Remove(w.dir) // fails when the kernel has already dropped it with the directory
	}
	if err := w.events.Add(w.dir); err != nil {
		w.log.Warn("directory cannot be watched: looking by polling only", "dir", w.dir, "error", err)
		w.dirID = fileID{}
		return
	}
	w.dirID = id
}
