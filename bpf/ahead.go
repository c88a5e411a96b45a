// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Files that we are told of by name: drivers that are probed before anybody maps them, so that first calls count, and
// libraries that are never to be.

package bpf

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ahead is a driver that we were told of.
type ahead struct {
	id    fileID
	stamp stamp
}

// stamp tells a file that was written anew in its place.
type stamp struct {
	inode uint64
	size  int64
	at    time.Time
}

func stampOf(info fs.FileInfo) (made stamp) {
	made = stamp{size: info.Size(), at: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		made.inode = stat.Ino
	}
	return made
}

// lookAhead probes drivers that we were told of, and finds out which files are never to be probed: a library that stands
// between program and driver has the driver's names, a container can call it one, and then calls would count twice in all
// containers.
func (w *watcher) lookAhead() {
	w.never = map[fileID]bool{}
	for name := range matching(w.options.Never) {
		if id, err := w.identifyAt(name); err == nil {
			w.never[id] = true
		}
	}
	w.ahead = map[string]ahead{}
	named := map[fileID]bool{}
	for name := range matching(w.options.Libraries) {
		if found, ok := w.lookAheadAt(name); ok {
			w.ahead[name], named[found.id] = found, true
		}
	}
	for id, l := range w.libraries {
		l.ahead = named[id]
	}
}

// matching are the names that patterns stand for.
func matching(patterns []string) map[string]bool {
	names := map[string]bool{}
	for _, pattern := range patterns {
		paths, _ := filepath.Glob(pattern)
		for _, name := range paths {
			names[name] = true
		}
	}
	return names
}

func (w *watcher) lookAheadAt(name string) (found ahead, ok bool) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return ahead{}, false
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return ahead{}, false
	}
	found.stamp = stampOf(info) // before it is read
	im, err := openImage(file)
	if err != nil || !isDriver(im, name) {
		return ahead{}, false
	}
	if found.id, err = w.identify.identify(file); err != nil {
		return ahead{}, false
	}
	if w.libraries[found.id] == nil {
		w.probe(0, name, found.id, file, im)
	}
	return found, true
}

// identifyAt tells which file a name of the host's stands for.
func (w *watcher) identifyAt(name string) (fileID, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fileID{}, err
	}
	defer file.Close()
	return w.identify.identify(file)
}

// dropRewritten takes the probes off drivers that were written anew in their place, as copying over a file does. The kernel
// would go on putting breakpoints where functions were, and execute there what stood there: programs would break. They are
// probed again with the next look ahead, when they are whole.
func (w *watcher) dropRewritten() {
	for name, was := range w.ahead {
		info, err := os.Stat(name)
		if err != nil || stampOf(info) == was.stamp || stampOf(info).inode != was.stamp.inode {
			continue // another file has that name now: nothing was written to this one
		}
		delete(w.ahead, name)
		w.nextPaths = time.Time{}
		l := w.libraries[was.id]
		if l == nil {
			continue
		}
		delete(w.libraries, was.id)
		if err := l.Close(); err != nil {
			w.options.Log.Warn("detaching failed", "error", err)
		}
		w.options.Log.Warn("library was written anew in its place: its probes are taken off, and put on again in some seconds", "path", name)
	}
}
