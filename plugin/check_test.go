// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Whatever is wrong with the files that a container is to get, nothing starts and one line says why; and how the
// library comes to its place and stays there.

package plugin

import (
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/internal/require"
	"github.com/vgpud/vgpud/plugin/ledger"
)

// spoilers are the ways in which the installed files go wrong, and what the message has to say.
var spoilers = []struct {
	name  string
	says  string
	spoil func(t *testing.T, lib, preload string)
}{
	{"missing", "libvgpu.so is missing", func(t *testing.T, lib, _ string) { must(t, os.Remove(lib)) }},
	{"empty", "libvgpu.so is empty", func(t *testing.T, lib, _ string) { must(t, os.Truncate(lib, 0)) }},
	{"a directory", "libvgpu.so is a directory", func(t *testing.T, lib, _ string) {
		must(t, os.Remove(lib))
		must(t, os.Mkdir(lib, 0o755))
	}},
	{"a link", "is a symbolic link", func(t *testing.T, lib, _ string) {
		must(t, os.Rename(lib, lib+".real"))
		must(t, os.Symlink(lib+".real", lib))
	}},
	{"a pipe", "is not a regular file", func(t *testing.T, lib, _ string) {
		must(t, os.Remove(lib))
		must(t, unix.Mkfifo(lib, 0o755))
	}},
	{"unreadable", "has mode 0750", func(t *testing.T, lib, _ string) { must(t, os.Chmod(lib, 0o750)) }},
	{"not executable", "has mode 0744", func(t *testing.T, lib, _ string) { must(t, os.Chmod(lib, 0o744)) }},
	{"text", "not an ELF file", func(t *testing.T, lib, _ string) { overwrite(t, lib, []byte("#!/bin/sh\n")) }},
	{"another machine", "wrong architecture: ELFCLASS64 EM_S390", func(t *testing.T, lib, _ string) {
		overwrite(t, lib, testELF(t, elf.EM_S390, []byte{1, 2, 3, 4}))
	}},
	{"32 bits", "wrong architecture: ELFCLASS32", func(t *testing.T, lib, _ string) { overwrite(t, lib, elf32()) }},
	{"another build", "has build ID 09080706, expected 01020304", func(t *testing.T, lib, _ string) {
		overwrite(t, lib, testELF(t, elf.EM_X86_64, []byte{9, 8, 7, 6}))
	}},
	{"cut short", "libvgpu.so", func(t *testing.T, lib, _ string) { must(t, os.Truncate(lib, 80)) }},
	{"preload missing", "ld.so.preload is missing", func(t *testing.T, _, preload string) { must(t, os.Remove(preload)) }},
	{"preload unreadable", "ld.so.preload has mode 0600", func(t *testing.T, _, preload string) { must(t, os.Chmod(preload, 0o600)) }},
	{"preload names another path", `holds "/tmp/x.so\n"`, func(t *testing.T, _, preload string) { overwrite(t, preload, []byte("/tmp/x.so\n")) }},
	{"preload is a directory", "ld.so.preload is a directory", func(t *testing.T, _, preload string) {
		must(t, os.Remove(preload))
		must(t, os.Mkdir(preload, 0o755))
	}},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, data []byte) {
	t.Helper()
	must(t, os.WriteFile(path, data, 0o755))
}

// elf32 is a complete 32-bit ELF header of an i386 library without sections.
func elf32() []byte {
	header := make([]byte, 52)
	copy(header, "\x7fELF\x01\x01\x01")
	header[16], header[18], header[20], header[40] = byte(elf.ET_DYN), byte(elf.EM_386), 1, 52
	return header
}

// TestUnusableLibrary runs every spoiler against the three moments of the check.
func TestUnusableLibrary(t *testing.T) {
	for _, s := range spoilers {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			lib := libraryPath(n.cfg.LibraryDir, n.cfg.library())
			preload := preloadPath(n.cfg.LibraryDir, n.cfg.library())
			request := &v1beta1.AllocateRequest{ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{uuidA + "::0"}}}}
			_, err := n.srv.Allocate(t.Context(), request)
			must(t, err)
			start := &v1beta1.PreStartContainerRequest{DevicesIds: []string{uuidA + "::0"}}
			_, err = n.srv.PreStartContainer(t.Context(), start)
			must(t, err)

			s.spoil(t, lib, preload)
			_, startErr := n.srv.PreStartContainer(t.Context(), start)
			_, allocateErr := n.srv.Allocate(t.Context(), &v1beta1.AllocateRequest{
				ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{uuidA + "::1"}}}})
			runErr := runBriefly(t, n)
			for moment, err := range map[string]error{
				"agent start": runErr, "Allocate": allocateErr, "PreStartContainer": startErr,
			} {
				if err == nil || !strings.Contains(err.Error(), s.says) {
					t.Errorf("%s: error %v, want it to say %q", moment, err, s.says)
				} else if strings.Contains(err.Error(), "\n") {
					t.Errorf("%s: more than one line: %q", moment, err)
				}
			}
			if status.Code(startErr) != codes.FailedPrecondition {
				t.Errorf("PreStartContainer: code %v", status.Code(startErr))
			}
			if len(n.books.Snapshot()) != 1 || len(n.books.Held()) != 1 {
				t.Error("the refused allocation left something in the books")
			}
			for _, slice := range n.srv.Slices() {
				if held := slice.ID == uuidA+"::0"; slice.Healthy() != held {
					t.Errorf("slice %s is offered: %v", slice.ID, slice.Healthy())
				}
			}
			// Installed again, everything works and is offered again.
			n.install([]byte{1, 2, 3, 4})
			_, err = n.srv.PreStartContainer(t.Context(), start)
			must(t, err)
			must(t, n.srv.checkNode())
			if countHealthy(n.srv.Slices()) != 20 {
				t.Error("slices did not come back")
			}
		})
	}
}

func TestLibraryOnNoexecMount(t *testing.T) {
	require.Root(t)
	n := newNode(t)
	err := unix.Mount("tmpfs", n.cfg.LibraryDir, "tmpfs", unix.MS_NOEXEC, "size=1m")
	require.Need(t, "mount", err == nil, "cannot mount a tmpfs")
	t.Cleanup(func() { must(t, unix.Unmount(n.cfg.LibraryDir, unix.MNT_DETACH)) })
	n.install([]byte{1, 2, 3, 4})
	if err := runBriefly(t, n); err == nil || !strings.Contains(err.Error(), "mounted noexec") {
		t.Errorf("agent start: %v", err)
	}
}

// TestPagesAreCheckedAndRestored covers the pages' side of a start.
func TestPagesAreCheckedAndRestored(t *testing.T) {
	for _, c := range []struct {
		name  string
		says  string // empty: the start works, the pages are back
		spoil func(t *testing.T, dir string)
	}{
		{"all gone, as after a reboot", "", func(t *testing.T, dir string) { must(t, os.RemoveAll(dir)) }},
		{"one gone", "", func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, usageName))) }},
		{"empty", "limits is empty", func(t *testing.T, dir string) { must(t, os.Truncate(filepath.Join(dir, limitsName), 0)) }},
		{"not writable", "has mode 0644", func(t *testing.T, dir string) { must(t, os.Chmod(filepath.Join(dir, usageName), 0o644)) }},
		{"a link", "symbolic link", func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, limitsName)))
			must(t, os.Symlink("/etc/passwd", filepath.Join(dir, limitsName)))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			_, err := n.srv.Allocate(t.Context(), &v1beta1.AllocateRequest{
				ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: []string{uuidA + "::0"}}}})
			must(t, err)
			rec := n.books.Snapshot()[0]
			c.spoil(t, pagesPath(rec))
			_, err = n.srv.PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{DevicesIds: []string{uuidA + "::0"}})
			if c.says == "" {
				must(t, err)
				must(t, checkPages(rec))
				if n.pages.epoch(rec.Key) != 1 {
					t.Error("the epoch was not raised")
				}
			} else if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
		})
	}
}

func TestInstallRefusesBadSources(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"empty":       {nil, "is empty"},
		"text":        {[]byte("hello, this is no library at all"), "not an ELF file"},
		"machine":     {testELF(t, elf.EM_S390, []byte{1, 2, 3, 4}), "wrong architecture"},
		"32 bits":     {elf32(), "wrong architecture"},
		"short build": {testELF(t, elf.EM_X86_64, []byte{1}), "build ID of 1 bytes"},
	} {
		source := filepath.Join(dir, "source")
		overwrite(t, source, c.data)
		if _, err := InstallLibrary(source, filepath.Join(dir, "lib"), "/usr/local/vgpud"); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if _, err := InstallLibrary(filepath.Join(dir, "absent"), dir, "/usr/local/vgpud"); err == nil {
		t.Error("an absent source was installed")
	}
	if _, err := os.Stat(filepath.Join(dir, "lib")); err == nil {
		t.Error("a refused source left something in the library directory")
	}
}

func nobody(string) bool { return false }

// TestLibraryIsNeverRewritten: same version untouched, other version beside it, damage repaired by rename.
func TestLibraryIsNeverRewritten(t *testing.T) {
	n := newNode(t)
	first := filepath.Join(n.cfg.LibraryDir, "01020304", libraryName)
	before := statOf(t, first)
	mapped, err := os.Open(first)
	must(t, err)
	defer mapped.Close()

	n.install([]byte{1, 2, 3, 4}) // (a) agent restart, same version
	if after := statOf(t, first); after.Ino != before.Ino || after.Ctim != before.Ctim || after.Mtim != before.Mtim {
		t.Error("installing the same build touched the file")
	}
	n.install([]byte{5, 6, 7, 8}) // (b) upgrade
	if after := statOf(t, first); after.Ino != before.Ino || after.Ctim != before.Ctim {
		t.Error("installing another build touched the first one's file")
	}
	// (c) a kill in the middle of copying leaves a temporary file under another name; (d) the next start is whole.
	overwrite(t, filepath.Join(n.cfg.LibraryDir, "01020304", ".libvgpu.so.0123456789ab.tmp"), []byte("half"))
	overwrite(t, filepath.Join(n.cfg.LibraryDir, "05060708", libraryName), []byte("damaged"))
	n.install([]byte{5, 6, 7, 8})
	n.cfg.BuildID = "05060708"
	must(t, CheckLibrary(n.cfg.LibraryDir, n.cfg.library()))
	must(t, CheckLibrary(n.cfg.LibraryDir, ledger.Library{BuildID: "01020304", ContainerDir: n.cfg.ContainerDir}))

	removed, err := SweepLibraries(n.cfg.LibraryDir, func(id string) bool { return id == "05060708" })
	must(t, err)
	if len(removed) != 1 || removed[0] != "01020304" {
		t.Errorf("swept %v", removed)
	}
	if _, err := os.Stat(filepath.Dir(first)); err == nil {
		t.Error("the swept build is still there")
	}
	if _, err := readBuildID(mapped); err != nil {
		t.Errorf("a process that had the old file open: %v", err)
	}
}

func TestSweepLeavesWhatIsNotOurs(t *testing.T) {
	n := newNode(t)
	must(t, os.Mkdir(filepath.Join(n.cfg.LibraryDir, "notes"), 0o755))
	overwrite(t, filepath.Join(n.cfg.LibraryDir, "01020304", "README"), []byte("x"))
	removed, err := SweepLibraries(n.cfg.LibraryDir, nobody)
	if len(removed) != 0 || err == nil {
		t.Errorf("removed %v, error %v", removed, err)
	}
	must(t, CheckLibrary(n.cfg.LibraryDir, ledger.Library{BuildID: "01020304", ContainerDir: n.cfg.ContainerDir}))
}

// TestEveryContainerDirHasItsPreloadFile: another container directory touches no file of the first.
func TestEveryContainerDirHasItsPreloadFile(t *testing.T) {
	n := newNode(t)
	first := n.cfg.library()
	before := statOf(t, preloadPath(n.cfg.LibraryDir, first))
	n.cfg.ContainerDir = "/opt/vgpud"
	n.install([]byte{1, 2, 3, 4})
	must(t, CheckLibrary(n.cfg.LibraryDir, first))
	must(t, CheckLibrary(n.cfg.LibraryDir, n.cfg.library()))
	if after := statOf(t, preloadPath(n.cfg.LibraryDir, first)); after.Ino != before.Ino || after.Ctim != before.Ctim {
		t.Error("the first container directory's preload file was touched")
	}
	removed, err := SweepLibraries(n.cfg.LibraryDir, nobody)
	must(t, err)
	if left, err := os.ReadDir(n.cfg.LibraryDir); err != nil || len(left) != 0 || len(removed) != 1 {
		t.Errorf("removed %v, left %v, %v", removed, left, err)
	}
}

// TestRealLinkerBuildID reads what the machine's own linker writes.
func TestRealLinkerBuildID(t *testing.T) {
	gcc := require.Tool(t, "gcc")
	dir := t.TempDir()
	path := filepath.Join(dir, "libx.so")
	overwrite(t, filepath.Join(dir, "x.c"), []byte("int vgpu_x;\n"))
	out, err := exec.Command(gcc, "-shared", "-fPIC", "-Wl,--build-id=0x00112233445566778899aabbccddeeff00112233", "-o", path, filepath.Join(dir, "x.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	if id, err := readBuildID(f); err != nil || id != "00112233445566778899aabbccddeeff00112233" {
		t.Errorf("%q %v", id, err)
	}
}

// runBriefly runs the server where it is expected to refuse at once.
func runBriefly(t *testing.T, n *node) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	return n.srv.Run(ctx)
}

func statOf(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st
}
