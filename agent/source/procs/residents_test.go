// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/require"
)

const (
	idA   = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	idB   = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	podA  = "11111111-2222-3333-4444-555555555555"
	keyA  = "0123456789abcdef"
	inner = "/opt/vgpud"
)

func TestParseContainer(t *testing.T) {
	for name, c := range map[string]struct{ text, path, id, pod string }{
		"systemd":          {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod11111111_2222_3333_4444_555555555555.slice/cri-containerd-" + idA + ".scope\n", "*", idA, podA},
		"cgroupfs":         {"3:memory:/kubepods/besteffort/pod" + podA + "/" + idA + "\n", "*", idA, podA},
		"nested":           {"3:memory:/kubepods/pod" + podA + "/" + idA + "/own/pod22222222-2222-3333-4444-555555555555/" + idB + "\n", "/kubepods/pod" + podA + "/" + idA, idA, podA},
		"containerd":       {"1:cpu:/\n0::/system.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice:cri-containerd:" + idA + "\n", "*", idA, podA},
		"cri-o":            {"0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/crio-" + idA + ".scope\n", "*", idA, podA},
		"watcher of cri-o": {"0::/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice/crio-conmon-" + idA + ".scope\n", "", "", ""},
		"docker":           {"0::/system.slice/docker-" + idA + ".scope\n", "*", idA, ""},
		"host":             {"0::/system.slice/ssh.service\n", "", "", ""},
		"pod alone":        {"0::/kubepods/pod" + podA + "\n", "", "", ""},
		"short":            {"0::/kubepods/pod" + podA + "/abc\n", "", "", ""},
		"garbage":          {"::::\n\n:\x00:" + idA, "", "", ""},
	} {
		got := parseContainer(c.text)
		want := c.path
		if want == "*" {
			want = c.text[strings.LastIndex(c.text, ":/")+1 : len(c.text)-1]
		}
		if path, _ := containerIn(c.text); got.ID != c.id || got.PodUID != c.pod || path != want {
			t.Errorf("%s: %s %+v, want %s %s %s", name, path, got, want, c.id, c.pod)
		}
	}
}

// box is a container as far as this package can tell: a process in control groups and a mount namespace of its own.
type box struct {
	pid   int
	input *os.File
	out   *bufio.Reader
}

// hierarchies are those of control groups that a test can make groups in.
func hierarchies(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	return []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/freezer"}
}

// startBox runs a shell in a container of pod podA, after the script has made its mounts. Commands are sent to it by do.
func startBox(t *testing.T, id, script string) *box {
	t.Helper()
	require.Root(t)
	var join strings.Builder
	for _, hierarchy := range hierarchies(t) {
		top := filepath.Join(hierarchy, fmt.Sprintf("vgpud-test-%d", os.Getpid()))
		group := filepath.Join(top, "pod"+podA, id)
		if err := os.MkdirAll(group, 0o755); err != nil {
			require.Need(t, "cgroup", false, err.Error())
		}
		t.Cleanup(func() {
			for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
				if _ = os.Remove(group); !exists(group) {
					break
				}
			}
			_ = os.Remove(filepath.Dir(group)) // unless there is another
			_ = os.Remove(top)
		})
		fmt.Fprintf(&join, "echo $$ >%s/cgroup.procs\n", group)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/bin/sh", "-ec", join.String()+"mount --make-rprivate /\n"+script+"\necho ready\nset +e\nwhile read -r line; do eval \"$line\"; echo done $?; done")
	command.Stdin, command.Stderr = read, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		require.Need(t, "mount", false, err.Error())
	}
	read.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
		write.Close()
	})
	b := &box{pid: command.Process.Pid, input: write, out: bufio.NewReader(output)}
	b.await(t, "ready")
	return b
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

func (b *box) await(t *testing.T, want string) {
	t.Helper()
	line, err := b.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("the container says %q, %v; want %q", line, err, want)
	}
}

// do runs a command in the container.
func (b *box) do(t *testing.T, command string) {
	t.Helper()
	if _, err := b.input.WriteString(command + "\n"); err != nil {
		t.Fatal(err)
	}
	b.await(t, "done 0")
}

// host is a node with one allocation's files.
type host struct {
	dir, pages, container string
	files                 []File
	now                   time.Duration
	residents             *Residents
}

func newHost(t *testing.T) *host {
	t.Helper()
	require.Root(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{dir: dir, pages: filepath.Join(dir, "pages"), container: filepath.Join(dir, "container"), now: time.Hour}
	inside := filepath.Join(h.container, "alloc")
	h.files = []File{
		{filepath.Join(h.container, "preload"), filepath.Join(dir, "lib", "preload")},
		{filepath.Join(h.container, "library.so"), filepath.Join(dir, "lib", "library.so")},
		{filepath.Join(inside, "limits"), filepath.Join(h.pages, keyA, "limits")},
		{filepath.Join(inside, "usage"), filepath.Join(h.pages, keyA, "usage")},
	}
	for _, file := range h.files {
		for _, path := range []string{file.HostPath, file.ContainerPath} {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	h.residents = NewResidents("/", func(key string) string { return filepath.Join(h.pages, key) }, func(key string) []File {
		if key == keyA {
			return h.files
		}
		return nil
	}, func() time.Duration { return h.now })
	return h
}

// mounts is the script of what a runtime mounts.
func (h *host) mounts() string {
	var script strings.Builder
	for _, file := range h.files {
		fmt.Fprintf(&script, "mount --bind %s %s\n", file.HostPath, file.ContainerPath)
	}
	return script.String()
}

// find looks once, some seconds later, and returns one process.
func (h *host) find(t *testing.T, pid int, named ...int) (source.Residence, bool) {
	t.Helper()
	h.now += filesEvery
	all, err := h.residents.Residents(t.Context(), named)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(all, func(r source.Residence) bool { return r.PID == pid })
	if at < 0 {
		return source.Residence{}, false
	}
	return all[at], true
}

func (h *host) mustFind(t *testing.T, pid int, named ...int) source.Residence {
	t.Helper()
	found, is := h.find(t, pid, named...)
	if !is {
		t.Fatalf("process %d is not among the residents", pid)
	}
	return found
}

func TestResidentsOfAContainer(t *testing.T) {
	h := newHost(t)
	b := startBox(t, idA, h.mounts())
	other := startBox(t, idB, "")
	found := h.mustFind(t, b.pid)
	if !slices.Equal(found.Keys, []string{keyA}) || found.Container.ID != idA || found.Container.PodUID != podA || found.Replaced != nil ||
		found.Devices || found.Container.CgroupID == 0 || found.ID.PID != b.pid || found.ID.StartTime != found.StartTime || found.OtherTime ||
		found.Command != "/bin/sh" {
		t.Errorf("%+v", found)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", b.pid))
	if err != nil {
		t.Fatal(err)
	}
	path, _ := containerIn(string(text))
	var stat unix.Stat_t
	if err := unix.Stat(filepath.Join(hierarchies(t)[0], path), &stat); err != nil || stat.Ino != found.Container.CgroupID {
		t.Errorf("inode %d of %s, %v, want %d", stat.Ino, path, err, found.Container.CgroupID)
	}
	// A container without an allocation, and the host's own processes, are told of when they are named.
	for _, pid := range []int{other.pid, os.Getpid()} {
		if _, is := h.find(t, pid); is {
			t.Errorf("process %d is told of", pid)
		}
		if found := h.mustFind(t, pid, pid); found.Keys != nil || found.Replaced != nil {
			t.Errorf("%+v", found)
		}
	}
	if found := h.mustFind(t, other.pid, other.pid, 1<<22); found.Container.ID != idB {
		t.Errorf("%+v", found)
	}
}

func TestReplacedFiles(t *testing.T) {
	for name, c := range map[string]struct {
		command string // with CONTAINER and HOST for the directories
		want    string // end of the path that is reported; "": nothing is
		reason  string
	}{
		"nothing":            {"true", "", ""},
		"file over preload":  {"echo >/tmp/.vgpud-fake; mount --bind /tmp/.vgpud-fake CONTAINER/preload; rm -f /tmp/.vgpud-fake", "/preload", "another file"},
		"directory over all": {"mount -t tmpfs none CONTAINER/alloc", "/alloc/limits", "no file"},
		"device over limits": {"mount --bind /dev/null CONTAINER/alloc/limits", "/alloc/limits", "another file"},
		"own library":        {"cp HOST/lib/library.so CONTAINER/copy.so; mount --bind CONTAINER/copy.so CONTAINER/library.so", "/library.so", "another file"},
		"one over the other": {"mount --bind HOST/pages/" + keyA + "/usage CONTAINER/alloc/limits", "/alloc/limits", "/usage"},
		"taken away":         {"umount CONTAINER/preload", "/preload", "another file"},
		"moved away":         {"mount --bind CONTAINER CONTAINER; mv CONTAINER/alloc CONTAINER/else; mkdir CONTAINER/alloc; echo >CONTAINER/alloc/limits; mkdir CONTAINER/alloc/usage", "/alloc/limits", ""},
		"link":               {"mkdir CONTAINER/x; mount --bind CONTAINER/x CONTAINER/alloc; ln -s /etc/passwd CONTAINER/alloc/limits; echo >CONTAINER/alloc/usage", "/alloc/limits", "another file"},
		"endless link":       {"mkdir CONTAINER/y; mount --bind CONTAINER/y CONTAINER/alloc; ln -s limits CONTAINER/alloc/limits", "/alloc/limits", "no file"},
		"same file again":    {"mount --bind HOST/lib/preload CONTAINER/preload", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			b := startBox(t, idA, h.mounts())
			if found := h.mustFind(t, b.pid); found.Replaced != nil {
				t.Fatalf("%+v", found.Replaced)
			}
			b.do(t, strings.NewReplacer("CONTAINER", h.container, "HOST", h.dir).Replace(c.command))
			found := h.mustFind(t, b.pid)
			at := slices.IndexFunc(found.Replaced, func(r source.Replaced) bool {
				return strings.HasSuffix(r.Path, c.want) && strings.Contains(r.Reason, c.reason)
			})
			if (c.want != "") != (at >= 0) || c.want == "" && found.Replaced != nil || !slices.Equal(found.Keys, []string{keyA}) {
				t.Errorf("%+v, keys %v", found.Replaced, found.Keys)
			}
			t.Logf("%+v", found.Replaced)
		})
	}
}

// What the agent itself does to its files beside a running container is no fault of that.
func TestFilesThatTheAgentMadeAnewAreNotReplaced(t *testing.T) {
	h := newHost(t)
	b := startBox(t, idA, h.mounts())
	page := filepath.Join(h.pages, keyA)
	for _, step := range []func() error{
		func() error { return os.Remove(filepath.Join(page, "usage")) },
		func() error { return os.WriteFile(filepath.Join(page, "usage"), nil, 0o644) },
		func() error { return os.RemoveAll(page) },
		func() error { return os.RemoveAll(filepath.Join(h.dir, "lib")) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if found := h.mustFind(t, b.pid); found.Replaced != nil || !slices.Equal(found.Keys, []string{keyA}) {
			t.Errorf("%+v, keys %v", found.Replaced, found.Keys)
		}
	}
}

// Sandboxes and roots of their own within a container matter where a GPU is used in them.
func TestViewsWithinAContainer(t *testing.T) {
	h := newHost(t)
	b := startBox(t, idA, h.mounts())
	b.do(t, "unshare -m sh -c 'mount --bind /dev/null "+h.container+"/preload; exec sleep 1000' & echo $! >"+h.dir+"/sandbox")
	b.do(t, "mkdir -p "+h.dir+"/empty/bin; cp /bin/busybox "+h.dir+"/empty/bin/ 2>/dev/null || true")
	text, err := os.ReadFile(filepath.Join(h.dir, "sandbox"))
	if err != nil {
		t.Fatal(err)
	}
	var sandbox int
	if _, err := fmt.Sscan(string(text), &sandbox); err != nil {
		t.Fatal(err)
	}
	var found source.Residence
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if found = h.mustFind(t, sandbox, sandbox); found.Replaced != nil {
			break
		}
	}
	if len(found.Replaced) != 1 {
		t.Errorf("%+v", found)
	}
	if found := h.mustFind(t, sandbox); found.Replaced != nil {
		t.Errorf("nobody uses a GPU there: %+v", found)
	}
	if found := h.mustFind(t, b.pid); found.Replaced != nil {
		t.Errorf("the container itself: %+v", found)
	}
}

func TestDeviceNodesAreFound(t *testing.T) {
	h := newHost(t)
	node := filepath.Join(h.dir, "innocent")
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		require.Need(t, "mknod", false, err.Error())
	}
	b := startBox(t, idA, h.mounts()+"mount -t tmpfs none /dev && mknod /dev/null c 1 3 && mknod /dev/nvidia7 c 1 3 && mknod /dev/nvidiactl c 1 3\n")
	if found := h.mustFind(t, b.pid); found.Devices {
		t.Errorf("%+v", found)
	}
	b.do(t, "exec 7</dev/nvidiactl")
	if found := h.mustFind(t, b.pid); found.Devices {
		t.Errorf("the control node alone: %+v", found)
	}
	b.do(t, "exec 8</dev/nvidia7")
	if found := h.mustFind(t, b.pid); !found.Devices || found.Library {
		t.Errorf("%+v", found)
	}
	b.do(t, "exec 8<&-")
	if found := h.mustFind(t, b.pid); found.Devices {
		t.Errorf("closed: %+v", found)
	}
	for path, want := range map[string]bool{"/dev/nvidia0": true, "/dev/nvidia12": true, "/dev/nvidia-uvm": true, "/dev/nvidiactl": false,
		"/dev/nvidia-modeset": false, "/dev/nvidia-uvm-tools": false, "/dev/nvidia": false, "/tmp/dev/nvidia0": false} {
		if isGPUNode(path) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
}

// TestResidentsForget: a process that has ended, and one that has its pid now.
func TestResidentsForget(t *testing.T) {
	h := newHost(t)
	b := startBox(t, idA, h.mounts())
	other := startBox(t, idB, "") // and there is whatever else runs on the machine
	h.mustFind(t, b.pid)
	remembered := func(space spaceID) bool { return h.residents.spaces[space] != nil }
	own, others := h.residents.known[b.pid].space, h.residents.known[other.pid].space
	if !remembered(own) || !remembered(others) {
		t.Errorf("remembered while they live: %t, %t", remembered(own), remembered(others))
	}
	h.residents.known[b.pid].start++ // as if another had it before
	if _, is := h.find(t, b.pid); is {
		t.Error("taken for the one before")
	}
	h.mustFind(t, b.pid)
	b.do(t, "true")
	if err := syscall.Kill(b.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, is := h.find(t, b.pid); !is {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a process that has ended is told of")
		}
	}
	h.find(t, b.pid) // in which it is no longer anybody's
	if remembered(own) || !remembered(others) {
		t.Errorf("remembered after its end: %t, and the other's: %t", remembered(own), remembered(others))
	}
}

func TestPodNames(t *testing.T) {
	dir := t.TempDir()
	names := podNames{directory: dir}
	if namespace, pod := names.of(podA, 0); namespace != "" || pod != "" {
		t.Error(namespace, pod)
	}
	for _, name := range []string{"default_my-pod_" + podA, "odd", "a_b_c_d"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if namespace, _ := names.of(podA, time.Second); namespace != "" {
		t.Error("read again at once")
	}
	if namespace, pod := names.of(podA, relistPods); namespace != "default" || pod != "my-pod" {
		t.Error(namespace, pod)
	}
}

func BenchmarkResidents(b *testing.B) {
	residents := NewResidents("/", func(key string) string { return "/nowhere/" + key }, func(string) []File { return nil },
		func() time.Duration { return time.Duration(time.Now().UnixNano()) })
	for b.Loop() {
		if _, err := residents.Residents(b.Context(), nil); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParseContainer(f *testing.F) {
	f.Add("0::/kubepods/pod" + podA + "/" + idA)
	f.Fuzz(func(t *testing.T, text string) {
		if path, id := containerIn(text); id != "" && (len(id) != 64 || !strings.HasSuffix(strings.TrimSuffix(path, ".scope"), id)) {
			t.Errorf("%s in %s", id, path)
		}
	})
}
