// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Socket names: fresh ones for us, and the leftovers of predecessors that died.

package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Parts of a socket name, vgpud-<resource>-<nonce>.sock, and the longest path that a socket address holds
// (sun_path of unix(7), less its NUL).
const (
	endpointPrefix = "vgpud-"
	endpointSuffix = ".sock"
	nonceDigits    = 12
	maxSocketPath  = 107
	shortHash      = 8 // bytes of hash that stand for a resource name that is too long
)

// endpointStem is the part of a name that all sockets of a resource share. Where the resource's name would make
// the path too long, a hash stands for it.
func endpointStem(dir, resource string) (string, error) {
	stem := endpointPrefix + strings.ReplaceAll(resource, "/", "-") + "-"
	rest := len(dir) + 1 + nonceDigits + len(endpointSuffix)
	if rest+len(stem) > maxSocketPath {
		sum := sha256.Sum256([]byte(resource))
		stem = endpointPrefix + hex.EncodeToString(sum[:shortHash]) + "-"
	}
	if rest+len(stem) > maxSocketPath {
		return "", fmt.Errorf("directory %s is too long for a socket: at most %d characters in all", dir, maxSocketPath)
	}
	return stem, nil
}

// freshEndpoint returns a base name that was never used before.
func freshEndpoint(dir, resource string) (string, error) {
	stem, err := endpointStem(dir, resource)
	if err != nil {
		return "", err
	}
	nonce, err := newNonce()
	if err != nil {
		return "", fmt.Errorf("mint socket name: %w", err)
	}
	return stem + nonce + endpointSuffix, nil
}

// removeLeftovers removes the socket files of this resource that nobody listens on, if they are older than age:
// a younger one may belong to a process between bind and listen. It returns the names removed.
func removeLeftovers(dir, resource string, age time.Duration, now time.Time) ([]string, error) {
	stem, err := endpointStem(dir, resource)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var removed []string
	var errs []error
	for _, entry := range entries {
		if !isEndpoint(entry.Name(), stem) || entry.Type() != os.ModeSocket {
			continue
		}
		info, err := entry.Info()
		if err != nil || now.Sub(info.ModTime()) < age {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		id, err := identify(path)
		if err != nil || listens(path) {
			continue
		}
		if err := removeSocket(path, id); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, entry.Name())
	}
	return removed, errors.Join(errs...)
}

// isEndpoint reports whether name is stem, a nonce and the suffix, and nothing else.
func isEndpoint(name, stem string) bool {
	nonce, ok := strings.CutPrefix(name, stem)
	if !ok {
		return false
	}
	nonce, ok = strings.CutSuffix(nonce, endpointSuffix)
	if !ok || len(nonce) != nonceDigits {
		return false
	}
	_, err := hex.DecodeString(nonce)
	return err == nil
}

// listens reports whether somebody accepts connections on a socket. Only a refusal or a missing file is a no: when
// in doubt the socket is in use.
func listens(path string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).Dial("unix", path)
	if err == nil {
		conn.Close()
		return true
	}
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}
