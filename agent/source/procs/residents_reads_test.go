// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/require"
)

// A container that is being set up has our files below the root that it is to move into: it is not accused of anything then,
// and is looked at as any other once they are in their places.
func TestContainerThatIsNotInItsRootYet(t *testing.T) {
	for name, first := range map[string]int{"all are mounted": 0, "the pages alone are": 2} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			b := startBox(t, idA, h.mountsBelow(h.dir+"/rootfs", first))
			if found := h.mustFind(t, b.pid); found.Replaced != nil || len(found.Keys) != 1 {
				t.Errorf("%+v, keys %v", found.Replaced, found.Keys)
			}
			b.do(t, strings.ReplaceAll(h.mounts(), "\n", ";")+"true")
			if found := h.mustFind(t, b.pid); found.Replaced != nil {
				t.Errorf("moved in: %+v", found.Replaced)
			}
			b.do(t, "mount --bind /dev/null "+h.files[0].ContainerPath)
			if found := h.mustFind(t, b.pid); len(found.Replaced) != 1 {
				t.Errorf("replaced after that: %+v", found.Replaced)
			}
		})
	}
	h := newHost(t)
	b := startBox(t, idA, h.mountsBelow(h.dir+"/rootfs", 0))
	h.mustFind(t, b.pid)
	h.now += movesInBy
	if found := h.mustFind(t, b.pid); len(found.Replaced) != len(h.files) {
		t.Errorf("one that never moves in: %+v", found.Replaced)
	}
}

// mountsBelow is the script of what a runtime mounts below a root, from the file of that number on.
func (h *host) mountsBelow(root string, first int) string {
	var script strings.Builder
	for _, file := range h.files[first:] {
		fmt.Fprintf(&script, "mkdir -p $(dirname %[1]s%[2]s); echo >%[1]s%[2]s; mount --bind %[3]s %[1]s%[2]s\n", root, file.ContainerPath, file.HostPath)
	}
	return script.String()
}

// What was seen once is looked at again with the next look, and not told from memory.
func TestReplacedFilesAreLookedAtAgain(t *testing.T) {
	h := newHost(t)
	b := startBox(t, idA, h.mounts())
	h.mustFind(t, b.pid)
	preload := h.files[0].ContainerPath
	b.do(t, "mount --bind /dev/null "+preload)
	if found := h.mustFind(t, b.pid); len(found.Replaced) != 1 {
		t.Fatalf("%+v", found.Replaced)
	}
	b.do(t, "umount "+preload)
	h.now -= filesEvery - time.Second
	if found := h.mustFind(t, b.pid); found.Replaced != nil {
		t.Errorf("a second later: %+v", found.Replaced)
	}
}

// However many mount namespaces a container has, one look reads few of them, and all are read in the end.
func TestManyNamespacesOfOneContainer(t *testing.T) {
	const many = 3 * mostNew
	h := newHost(t)
	b := startBox(t, idA, h.mounts())
	b.do(t, fmt.Sprintf("unshare -m sh -c 'for f in %s/*; do umount $f; done; umount %s/*; i=0; while [ $i -lt %d ]; do unshare -m sleep 1000 & i=$((i+1)); done; touch %s/up; sleep 1000' 2>/dev/null &",
		h.container, h.container+"/alloc", many, h.dir))
	for deadline := time.Now().Add(20 * time.Second); !exists(h.dir + "/up"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the namespaces are not made")
		}
	}
	time.Sleep(100 * time.Millisecond) // those started last
	other := startBox(t, idB, h.mounts())
	spaces := func() (read, all int) {
		for id, s := range h.residents.spaces {
			if id.container != idA {
				continue
			}
			all++
			if s.looked != 0 {
				read++
			}
		}
		return read, all
	}
	if found := h.mustFind(t, other.pid); len(found.Keys) != 1 {
		t.Errorf("the other container: %+v", found)
	}
	if read, all := spaces(); read > mostNew || all < many {
		t.Errorf("%d of %d namespaces are read at once, want %d at most of %d", read, all, mostNew, many)
	}
	for range 5 {
		h.mustFind(t, b.pid)
	}
	if read, all := spaces(); read != all {
		t.Errorf("%d of %d are read in the end", read, all)
	}
}

// Nobody hides a node behind thousands of other descriptors.
func TestDeviceNodeBehindManyDescriptors(t *testing.T) {
	h := newHost(t)
	require.Tool(t, "perl")
	b := startBox(t, idA, h.mounts()+"mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/nvidia7 c 1 3\n")
	b.do(t, fmt.Sprintf(`ulimit -n 8192; perl -e 'for (1 .. %d) { open my $f, "<", "/dev/null" or die; push @f, $f }; open my $g, "<", "/dev/nvidia7" or die; open my $r, ">", "%s/up"; close $r; sleep 1000' &`, 3*maxDescriptors, h.dir))
	for deadline := time.Now().Add(10 * time.Second); !exists(h.dir + "/up"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the program has not opened its files")
		}
	}
	for range 5 {
		all, err := h.residents.Residents(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		h.now += filesEvery
		if slices.ContainsFunc(all, func(r source.Residence) bool { return r.Devices && !r.Library }) {
			return
		}
	}
	t.Error("it is not seen in five looks")
}
