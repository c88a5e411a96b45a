// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/internal/require"
)

// A mountinfo of a host whose pages lie on a tmpfs of their own, and on the root file system before that was so.
const ownMounts = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:5 / /proc rw - proc proc rw
40 22 0:41 / /run/vgpud/pages rw shared:9 - tmpfs tmpfs rw,size=65536k
`

// fakeProcess writes /proc/PID of a process with these mounts.
func fakeProcess(t *testing.T, root string, pid string, start int, mounts string) {
	t.Helper()
	directory := filepath.Join(root, "proc", pid)
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	stat := fmt.Sprintf("%s (a) b) S%s %d 0\n", pid, strings.Repeat(" 0", 18), start)
	for name, text := range map[string]string{"stat": stat, "mountinfo": mounts} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func pathOf(key string) string {
	if key == "older" {
		return "/var/lib/vgpud/pages/older"
	}
	return "/run/vgpud/pages/" + key
}

func TestKeys(t *testing.T) {
	line := func(device, root, point string) string {
		return "99 50 " + device + " " + root + " " + point + " ro,relatime - tmpfs tmpfs rw\n"
	}
	container := line("0:77", "/", "/") + line("0:41", "/k1/usage", "/vgpud/usage")
	tests := []struct {
		name, mounts string
		want         []string
	}{
		{"host", ownMounts, nil},
		{"container", container + line("0:41", "/k1/limits", "/vgpud/limits"), []string{"k1"}},
		{"two resources", container + line("0:41", "/k2/limits", "/b/limits") + line("0:41", "/k1/limits", "/a/limits"), []string{"k1", "k2"}},
		{"the same twice", container + strings.Repeat(line("0:41", "/k1/limits", "/x"), 2), []string{"k1"}},
		{"removed since", container + line("0:41", "/k1/limits//deleted", "/vgpud/limits"), []string{"k1"}},
		{"pages of a record with another directory", container + line("8:1", "/var/lib/vgpud/pages/older/limits", "/vgpud/limits"), []string{"older"}},
		{"pages of that directory where another is configured", container + line("8:1", "/var/lib/vgpud/pages/k1/limits", "/vgpud/limits"), nil},
		{"usage page only", container, nil},
		{"own file system with the same names", container + line("0:78", "/k1/limits", "/run/vgpud/pages/k1/limits"), nil},
		{"a directory deeper", container + line("0:41", "/x/k1/limits", "/vgpud/limits"), nil},
		{"mount point named like a mount", container + line("0:78", "/x", `/a\0400:41\040/k1/limits`), nil},
		{"odd names", container + line("0:41", `/k\0401/limits`, "/a") + line("0:41", "/../limits", "/b") + line("0:41", "//limits", "/c") +
			line("0:41", "/"+strings.Repeat("k", 300)+"/limits", "/d"), nil},
		{"garbage", "\x00\n 0:41 /k1/limits\n99 0:41\n\n", nil},
		{"empty", "", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			fakeProcess(t, root, "self", 1, ownMounts)
			fakeProcess(t, root, "10", 5, test.mounts)
			keys, err := NewKeyring(root, pathOf).Keys([]int{10})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[int][]string{10: test.want}, keys); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A container cannot make the agent read without end, nor hide its own page behind mounts that it adds.
func TestKeysManyMounts(t *testing.T) {
	root := t.TempDir()
	fakeProcess(t, root, "self", 1, ownMounts)
	page := "60 50 0:41 /k1/limits /vgpud/limits ro - tmpfs tmpfs rw\n"
	more := strings.Repeat("61 50 0:41 /k1/limits /"+strings.Repeat("d/", 1000)+" ro - tmpfs tmpfs rw\n", 6000)
	fakeProcess(t, root, "10", 1, page+more)
	fakeProcess(t, root, "11", 1, page+strings.Repeat("x", 2*maxMountLine)+"\n"+page)
	keys, err := NewKeyring(root, pathOf).Keys([]int{10, 11})
	if diff := cmp.Diff(map[int][]string{10: {"k1"}, 11: {"k1"}}, keys); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

// Processes are looked at once, as long as they are the same; those that ended are remembered for a while.
func TestKeysAreRemembered(t *testing.T) {
	root := t.TempDir()
	fakeProcess(t, root, "self", 1, ownMounts)
	mounted := func(key string) string { return "60 50 0:41 /" + key + "/limits /v ro - tmpfs tmpfs rw\n" }
	fakeProcess(t, root, "10", 5, mounted("k1"))
	ring := NewKeyring(root, pathOf)
	check := func(what string, want map[int][]string) {
		t.Helper()
		keys, err := ring.Keys([]int{10, 11})
		if diff := cmp.Diff(want, keys); diff != "" || err != nil {
			t.Error(what, diff, err)
		}
	}
	check("first", map[int][]string{10: {"k1"}})
	fakeProcess(t, root, "10", 5, mounted("k2"))
	check("the same process", map[int][]string{10: {"k1"}})
	fakeProcess(t, root, "10", 6, mounted("k2"))
	check("the pid used again", map[int][]string{10: {"k2"}})
	if err := os.RemoveAll(filepath.Join(root, "proc/10")); err != nil {
		t.Fatal(err)
	}
	check("ended", map[int][]string{10: {"k2"}})
	for range remembered + 1 {
		if _, err := ring.Keys(nil); err != nil {
			t.Fatal(err)
		}
	}
	check("ended long ago", map[int][]string{})
	if len(ring.known) != 0 {
		t.Errorf("%d processes are kept", len(ring.known))
	}
	fakeProcess(t, root, "11", 7, mounted("k1"))
	if err := os.Remove(filepath.Join(root, "proc/11/mountinfo")); err != nil {
		t.Fatal(err)
	}
	check("ends while it is looked at", map[int][]string{})
	fakeProcess(t, root, "12", 7, "")
	if err := os.Remove(filepath.Join(root, "proc/self/mountinfo")); err != nil {
		t.Fatal(err)
	}
	if _, err := ring.Keys([]int{12}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without own mounts: %v", err)
	}
}

// The same with the kernel's own words: a program that has a page mounted as containers have.
func TestKeysOfAMountNamespace(t *testing.T) {
	require.Root(t)
	require.Tool(t, "unshare")
	pages := filepath.Join(t.TempDir(), "the pages")
	page := filepath.Join(pages, "k1", "limits")
	if err := os.MkdirAll(filepath.Dir(page), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "limits")
	if err := os.WriteFile(target, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	command := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount --bind "$1" "$2" && echo ready && exec sleep 60`, "sh", page, target)
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
	})
	ready := make([]byte, 6)
	_, err = stdout.Read(ready)
	require.Need(t, "mountns", err == nil && string(ready) == "ready\n", "cannot mount in a namespace")
	ring := NewKeyring("/", func(key string) string { return filepath.Join(pages, key) })
	keys, err := ring.Keys([]int{command.Process.Pid, os.Getpid(), 1 << 30})
	want := map[int][]string{command.Process.Pid: {"k1"}, os.Getpid(): nil}
	if diff := cmp.Diff(want, keys); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add(ownMounts + `60 50 0:41 /k1/limits /a\040b ro - tmpfs tmpfs rw`)
	f.Add("1 2 0:41 \\4/\\777\\04 /k1/limits")
	f.Fuzz(func(t *testing.T, text string) {
		root := t.TempDir()
		fakeProcess(t, root, "self", 1, ownMounts)
		fakeProcess(t, root, "10", 1, text)
		keys, err := NewKeyring(root, pathOf).Keys([]int{10})
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys[10] {
			if !strings.Contains(text, "/"+key+"/limits") {
				t.Errorf("key %q made up from %q", key, text)
			}
		}
	})
}

// A process that is asked for again costs a part of one system call; one that has ended is as it was.
func TestKeyringKeepsLifelines(t *testing.T) {
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = child.Process.Kill(), child.Wait() })
	keyring := NewKeyring("/", func(key string) string { return "/nowhere/" + key })
	pids := []int{os.Getpid(), child.Process.Pid}
	ask := func() map[int][]string {
		keys, err := keyring.Keys(pids)
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	for range 3 {
		if keys := ask(); len(keys) != 2 {
			t.Fatalf("%v", keys)
		}
	}
	if len(keyring.table.lines) != 2 {
		t.Errorf("%d lifelines of two processes", len(keyring.table.lines))
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	for range 2 {
		if keys := ask(); len(keys) != 2 || len(keyring.table.lines) != 1 {
			t.Errorf("one has ended: %v, %d lifelines", keys, len(keyring.table.lines))
		}
	}
	keyring.Close()
	if len(keyring.table.lines) != 0 {
		t.Error("a lifeline is left")
	}
}
