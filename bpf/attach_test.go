// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// closer is something to be closed of which a test knows when.
type closer func() error

func (c closer) Close() error { return c() }

// TestClosedAtTheSameTime: each of the kernel's waits for grace periods begins before any of them has ended.
func TestClosedAtTheSameTime(t *testing.T) {
	const some = 50
	var begun sync.WaitGroup
	begun.Add(some)
	all := make([]closer, some)
	for i := range all {
		all[i] = func() error {
			begun.Done()
			begun.Wait() // for all others
			if i%20 == 0 {
				return errors.New("no. " + strconv.Itoa(i))
			}
			return nil
		}
	}
	err := closeAll(all)
	if want := "no. 0\nno. 20\nno. 40"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	for _, few := range [][]closer{nil, {func() error { return nil }}} {
		if err := closeAll(few); err != nil {
			t.Errorf("%d: %v", len(few), err)
		}
	}
	many, closed := make([]closer, 1000), make(chan int, 1000)
	for i := range many {
		many[i] = func() error { closed <- i; return nil }
	}
	if err := closeAll(many); err != nil || len(closed) != len(many) {
		t.Errorf("%d of %d closed, %v", len(closed), len(many), err)
	}
}

// TestReturnsAreDetachedLast: a call that is entered and whose return is not seen would leave its note behind.
func TestReturnsAreDetachedLast(t *testing.T) {
	for _, pairs := range []int{1, 2, 22} {
		var mutex sync.Mutex
		var closed []string
		link := func(name string) io.Closer {
			return closer(func() error {
				mutex.Lock()
				defer mutex.Unlock()
				closed = append(closed, name)
				return nil
			})
		}
		var entries, returns attachment
		for i := range pairs {
			entries = append(entries, link("entry "+strconv.Itoa(i)))
			returns = append(returns, link("return "+strconv.Itoa(i)))
		}
		if err := append(entries, returns...).Close(); err != nil || len(closed) != 2*pairs {
			t.Fatalf("%v, closed %v", err, closed)
		}
		isReturn := func(name string) bool { return strings.HasPrefix(name, "return") }
		if first := slices.IndexFunc(closed, isReturn); first != pairs {
			t.Errorf("closed in the order %v", closed)
		}
	}
	if err := (attachment)(nil).Close(); err != nil {
		t.Errorf("nothing: %v", err)
	}
}
