// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// listen.go puts the socket in place: never readable by others, not even for an instant, in place of one that a dead agent
// left, and never in place of one that is answered. A lock file beside it decides between two agents that start at once.

package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrInUse is wrapped by Listen when another agent has the socket.
var ErrInUse = errors.New("another agent has it")

const (
	lockSuffix = ".lock"
	newSuffix  = ".new"
	// LongestPath is what fits in an address with newSuffix.
	LongestPath = len(unix.RawSockaddrUnix{}.Path) - 1 - len(newSuffix)
	// answerPatience is how long a socket that is there already has to accept a connection.
	answerPatience = time.Second
)

// socket is a listening socket with its place in the file system.
type socket struct {
	net.Listener
	path string
	lock *os.File
}

// listen makes the socket at path, and the last folder of it where it lacks.
func listen(path string) (*socket, error) {
	if !filepath.IsAbs(path) || len(path) > LongestPath {
		return nil, fmt.Errorf("want an absolute path of at most %d bytes", LongestPath)
	}
	if err := prepareDirectory(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	listener, err := listenLocked(path, lock)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &socket{Listener: listener, path: path, lock: lock}, nil
}

// prepareDirectory makes the socket's directory, and refuses one in which others could replace the socket.
func prepareDirectory(directory string) error {
	if err := os.Mkdir(directory, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Stat(directory)
	if err != nil {
		return err
	}
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", directory)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s has mode %s: others could put another socket there; take their right to write from it", directory, info.Mode())
	}
	return nil
}

func listenLocked(path string, lock *os.File) (net.Listener, error) {
	err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := checkStale(path); err != nil {
		return nil, err
	}
	fresh := path + newSuffix
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false) // it knows the first name alone
	// Nobody knows the first name, so that the mode is right before anybody can connect.
	err = os.Chmod(fresh, 0o600)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		_ = os.Remove(fresh)
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// checkStale says whether what is at path may be replaced: nothing, or a socket on which nobody listens.
func checkStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("something else than a socket is there; it is not removed")
	}
	connection, err := net.DialTimeout("unix", path, answerPatience)
	if err == nil {
		_ = connection.Close()
		return ErrInUse
	}
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("a socket is there, and it cannot be told whether it is in use: %w", err)
}

// remove takes the socket away and gives up the lock. The lock's file stays: another agent may be waiting for it.
func (s *socket) remove() error {
	_ = s.Close() // a second time is no fault
	err := os.Remove(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, s.lock.Close())
}
