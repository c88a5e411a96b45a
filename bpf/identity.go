// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Which file a file is. Probes sit on the file below, where a file system is laid over another, and a hundred containers
// may each see that one file under a number of its own: probed for each of them, each call would count a hundred times.

package bpf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

// fileID is a file as the kernel itself tells it apart.
type fileID struct {
	device     uint32 // major << 20 | minor
	inode      uint64
	generation uint64
}

// identifier finds it for open files. It is used by one goroutine.
type identifier struct {
	program *ebpf.Program // nil: the kernel lacks what it needs (5.17, type information)
	result  *ebpf.Map
}

func newIdentifier(l *loaded) identifier {
	collection, err := l.open(l.collection, probesProgIdentify)
	if err != nil {
		return identifier{}
	}
	l.extra["identify"] = collection
	return identifier{program: collection.Programs[probesProgIdentify], result: l.collection.Maps[probesMapIdentified]}
}

// identify maps a page of the file and asks the kernel what is mapped there.
func (i identifier) identify(f *os.File) (fileID, error) {
	var ring *ring
	if i.program == nil {
		runtime.LockOSThread() // records of one thread
		defer runtime.UnlockOSThread()
		var err error
		if ring, err = openRing(0, -1, 1); err == nil {
			defer ring.close()
		}
	}
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)
	if err != nil {
		return fileID{}, fmt.Errorf("map file: %w", err)
	}
	defer func() { _ = unix.Munmap(page) }()
	if i.program != nil {
		return i.mapped(page)
	}
	return byNumbers(f, ring)
}

func (i identifier) mapped(page []byte) (fileID, error) {
	address := uint64(uintptr(unsafe.Pointer(&page[0])))
	if _, err := i.program.Run(&ebpf.RunOptions{Context: &address}); err != nil {
		return fileID{}, fmt.Errorf("ask which file is mapped: %w", err)
	}
	var told probesIdentity
	if err := i.result.Lookup(uint32(0), &told); err != nil {
		return fileID{}, fmt.Errorf("read which file is mapped: %w", err)
	}
	if told.Found == 0 {
		return fileID{}, errors.New("the kernel does not tell which file is mapped")
	}
	return fileID{device: told.Device, inode: told.Inode, generation: uint64(told.Generation)}, nil
}

const overlayMagic = 0x794c7630

// byNumbers is for kernels that cannot be asked. Records of mappings tell the file below up to kernel 6.7; later ones tell
// the overlay's own numbers. Then a file of an overlay is not probed, rather than counted more than once.
func byNumbers(f *os.File, ring *ring) (fileID, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return fileID{}, fmt.Errorf("look at file: %w", err)
	}
	id := fileID{device: unix.Major(stat.Dev)<<20 | unix.Minor(stat.Dev), inode: stat.Ino}
	recorded := false
	if ring != nil {
		ring.read(func(m mapped) { id, recorded = fileID{device: m.major<<20 | m.minor, inode: m.inode}, true })
	}
	version, err := features.LinuxVersionCode()
	if onOverlay(int(f.Fd())) && (!recorded || err != nil || version >= 6<<16|8<<8) {
		return fileID{}, errors.New("this kernel does not tell which file lies below an overlay; it needs " + typesFile)
	}
	return id, nil
}

func onOverlay(fd int) bool {
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && fs.Type == overlayMagic
}
