// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
	"github.com/vgpud/vgpud/internal/require"
)

const (
	uid  = "8dbc7c6e-6a3c-4c5f-9a53-1b7a4f1f0a11"
	uid2 = "0f7a1d2e-0000-4c5f-9a53-1b7a4f1f0a22"
)

var (
	id         = strings.Repeat("0a1b2c3d", 8)
	underscore = strings.ReplaceAll(uid, "-", "_")
)

func TestParseCgroup(t *testing.T) {
	for _, test := range []struct {
		name, text, want string
	}{
		{"v2 systemd containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscore +
			".slice/cri-containerd-" + id + ".scope\n", uid},
		{"v2 systemd guaranteed", "0::/kubepods.slice/kubepods-pod" + underscore + ".slice/crio-" + id + ".scope\n", uid},
		{"v2 cgroupfs", "0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", uid},
		{"v2 below the container", "0::/kubepods/pod" + uid + "/" + id + "/init.scope\n", uid},
		{"v2 in a nested kubelet", "0::/docker/" + strings.Repeat("f", 64) + "/kubelet/kubepods/pod" + uid + "/" + id + "\n", uid},
		{"v1 hybrid", "12:memory:/kubepods/burstable/pod" + uid + "/" + id + "\n1:name=systemd:/kubepods/burstable/pod" +
			uid + "/" + id + "\n0::/system.slice/containerd.service\n", uid},
		{"v1 only systemd line has it", "9:cpu,cpuacct:/\n1:name=systemd:/kubepods/pod" + uid + "/" + id + "\n", uid},
		{"one component", "0::/system.slice/kubepods-burstable-pod" + underscore + ".slice:cri-containerd:" + id + "\n", uid},
		{"pause or pod level", "0::/kubepods/pod" + uid + "\n", uid},
		{"static pod", "0::/kubepods/pod" + strings.Repeat("ab", 16) + "/" + id + "\n", strings.Repeat("ab", 16)},
		{"container's own group cannot pose as another pod", "0::/kubepods/pod" + uid + "/" + id + "/pod" + uid2 + "/" +
			strings.Repeat("e", 64) + "\n", uid},
		{"plain container", "0::/system.slice/docker-" + id + ".scope\n", ""},
		{"host", "0::/user.slice/user-1000.slice/session-1.scope\n", ""},
		{"podman is no pod", "0::/machine.slice/libpod-" + id + ".scope\n", ""},
		{"garbage", "\x00\xff:::::\n\n0::\n:\n", ""},
		{"empty", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := parseCgroup(test.text); got != test.want {
				t.Errorf("pod %q, want %q", got, test.want)
			}
		})
	}
}

func TestTable(t *testing.T) {
	root := t.TempDir()
	for pid, text := range map[string]string{
		"10": "0::/kubepods/pod" + uid + "/" + id + "\n", "11": "0::/kubepods/pod" + uid + "/" + id + "\n",
		"12": "0::/kubepods/pod" + uid2 + "/" + id + "\n", "1": "0::/init.scope\n", "self": "0::/kubepods/pod" + uid + "\n",
	} {
		directory := filepath.Join(root, "proc", pid)
		if err := os.MkdirAll(directory, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(directory, "cgroup"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// A process that ended between the listing and the look.
	if err := os.Mkdir(filepath.Join(root, "proc", "13"), 0o755); err != nil {
		t.Fatal(err)
	}
	table := New(root)
	pods, err := table.Pods()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{uid: 2, uid2: 1}, pods); diff != "" {
		t.Error(diff)
	}
	if _, err := table.podOf(13); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a process that is gone: %v", err)
	}
	if _, err := New(filepath.Join(root, "absent")).Pods(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process table: %v", err)
	}
}

func TestLiveTable(t *testing.T) {
	if _, err := New("/").Pods(); err != nil {
		t.Error(err)
	}
	if _, err := New("/").podOf(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := New("/").podOf(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %s: %v", strconv.Itoa(1<<30), err)
	}
}

// self is how a process names itself on a usage page.
func self(t *testing.T, table *Table, pid int) source.ProcessID {
	t.Helper()
	id, err := table.identify(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestGone(t *testing.T) {
	table := New("/")
	child := exec.Command("sleep", "60")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = child.Process.Kill() })
	own, other := self(t, table, os.Getpid()), self(t, table, child.Process.Pid)
	reused := other
	reused.StartTime++
	silent := source.ProcessID{PID: 1 << 21}
	foreign := source.ProcessID{PIDNamespace: 1, PID: 5, StartTime: 5}
	ids := []source.ProcessID{own, other, reused, silent, foreign}
	// Whether a process of a namespace that was never seen is gone depends on whether one sees everything.
	want := map[source.ProcessID]bool{own: false, other: false, reused: true, foreign: table.seesEverything()}
	for range 2 { // the second time from memory
		gone, err := table.Gone(ids)
		if diff := cmp.Diff(want, gone); diff != "" || err != nil {
			t.Error(diff, err)
		}
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	want[other] = true
	for deadline := time.Now().Add(5 * time.Second); ; {
		gone, err := table.Gone(ids) // also while it is a zombie that nobody has waited for
		if err != nil {
			t.Fatal(err)
		}
		if gone[other] {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a killed process is not gone")
		}
	}
	_ = child.Wait()
	if gone, err := table.Gone(ids); !gone[other] || gone[own] || err != nil {
		t.Errorf("%v %v", gone, err)
	}
}

// A process that was seen and ended is gone even where not every process of the machine can be seen.
func TestGoneInsideANamespace(t *testing.T) {
	root := t.TempDir()
	writeProcess := func(pid, inner int, start uint64) {
		directory := filepath.Join(root, "proc", strconv.Itoa(pid))
		if err := os.MkdirAll(filepath.Join(directory, "ns"), 0o755); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(directory, "ns", "pid")
		_ = os.Remove(link)
		if err := os.Symlink("pid:[77]", link); err != nil {
			t.Fatal(err)
		}
		stat := strconv.Itoa(pid) + " (a) b (c)) S" + strings.Repeat(" 0", 18) + " " + strconv.FormatUint(start, 10) + " 0\n"
		for name, text := range map[string]string{"stat": stat, "status": "Name:\ta\nNSpid:\t" + strconv.Itoa(pid) + "\t" + strconv.Itoa(inner) + "\n"} {
			if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	writeProcess(100, 1, 5000)
	writeProcess(101, 2, 6000)
	table := New(root)
	first, second := source.ProcessID{PIDNamespace: 77, PID: 1, StartTime: 5000}, source.ProcessID{PIDNamespace: 77, PID: 2, StartTime: 6000}
	short := source.ProcessID{PIDNamespace: 77, PID: 3, StartTime: 6500} // ended before it was ever looked for
	hidden := source.ProcessID{PIDNamespace: 88, PID: 1, StartTime: 1}
	ids := []source.ProcessID{first, second, short, hidden}
	gone, err := table.Gone(ids)
	want := map[source.ProcessID]bool{first: false, second: false, short: true, hidden: false}
	if diff := cmp.Diff(want, gone); diff != "" || err != nil {
		t.Error(diff, err)
	}
	writeProcess(101, 9, 7000) // the pid was used again
	want[second] = true
	gone, err = table.Gone(ids)
	if diff := cmp.Diff(want, gone); diff != "" || err != nil {
		t.Error(diff, err)
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add("0::/kubepods/pod" + uid + "/" + id + "\n")
	f.Add("1:name=systemd:/a\n0::/kubepods.slice/pod" + underscore + ".slice:cri-containerd:" + id)
	f.Fuzz(func(t *testing.T, text string) {
		if found := parseCgroup(text); !strings.Contains(strings.ReplaceAll(text, "_", "-"), found) {
			t.Errorf("pod %q made up from %q", found, text)
		}
	})
}

// A process of another time namespace reads another start time of itself than we do, and is not taken for dead.
func TestGoneInATimeNamespace(t *testing.T) {
	require.Root(t)
	require.Tool(t, "unshare")
	command := exec.Command("unshare", "--time", "--boottime", "10000", "--fork", "sh", "-c", "cat /proc/$$/stat; echo; exec sleep 60")
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	command.Stderr = &stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
		_ = command.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.Need(t, "timens", err == nil, "cannot make a time namespace: "+stderr.String())
	fields := strings.Fields(line)
	pid, pidErr := strconv.Atoi(fields[0])
	start, startErr := strconv.ParseUint(fields[21], 10, 64)
	if err := errors.Join(pidErr, startErr); err != nil {
		t.Fatal(err)
	}
	table := New("/")
	id := self(t, table, pid)
	if id.StartTime == start {
		t.Fatal("the start times do not differ: this test shows nothing")
	}
	id.StartTime = start // as the process itself knows it
	for range 2 {        // the second time from memory
		if gone, err := table.Gone([]source.ProcessID{id}); gone[id] || err != nil {
			t.Errorf("gone: %v, %v", gone, err)
		}
	}
	if err := syscall.Kill(-command.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		gone, err := table.Gone([]source.ProcessID{id})
		if err != nil {
			t.Fatal(err)
		}
		if gone[id] {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a killed process is not gone")
		}
	}
}
