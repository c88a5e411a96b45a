// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package procs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpud/vgpud/agent/source"
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
	both := source.Container{PodUID: uid, ContainerID: id}
	for _, test := range []struct {
		name, text string
		want       source.Container
	}{
		{"v2 systemd containerd", "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underscore +
			".slice/cri-containerd-" + id + ".scope\n", both},
		{"v2 systemd guaranteed", "0::/kubepods.slice/kubepods-pod" + underscore + ".slice/crio-" + id + ".scope\n", both},
		{"v2 cgroupfs", "0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", both},
		{"v2 below the container", "0::/kubepods/pod" + uid + "/" + id + "/init.scope\n", both},
		{"v2 in a nested kubelet", "0::/docker/" + strings.Repeat("f", 64) + "/kubelet/kubepods/pod" + uid + "/" + id + "\n", both},
		{"v1 hybrid", "12:memory:/kubepods/burstable/pod" + uid + "/" + id + "\n1:name=systemd:/kubepods/burstable/pod" +
			uid + "/" + id + "\n0::/system.slice/containerd.service\n", both},
		{"v1 only systemd line has it", "9:cpu,cpuacct:/\n1:name=systemd:/kubepods/pod" + uid + "/" + id + "\n", both},
		{"one component", "0::/system.slice/kubepods-burstable-pod" + underscore + ".slice:cri-containerd:" + id + "\n", both},
		{"pause or pod level", "0::/kubepods/pod" + uid + "\n", source.Container{PodUID: uid}},
		{"static pod", "0::/kubepods/pod" + strings.Repeat("ab", 16) + "/" + id + "\n",
			source.Container{PodUID: strings.Repeat("ab", 16), ContainerID: id}},
		{"container's own group cannot pose as another pod", "0::/kubepods/pod" + uid + "/" + id + "/pod" + uid2 + "/" +
			strings.Repeat("e", 64) + "\n", both},
		{"plain container", "0::/system.slice/docker-" + id + ".scope\n", source.Container{}},
		{"host", "0::/user.slice/user-1000.slice/session-1.scope\n", source.Container{}},
		{"podman is no pod", "0::/machine.slice/libpod-" + id + ".scope\n", source.Container{}},
		{"garbage", "\x00\xff:::::\n\n0::\n:\n", source.Container{}},
		{"empty", "", source.Container{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, parseCgroup(test.text)); diff != "" {
				t.Error(diff)
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
	if _, err := table.Container(13); !errors.Is(err, fs.ErrNotExist) {
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
	if _, err := New("/").Container(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := New("/").Container(1 << 30); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("process %s: %v", strconv.Itoa(1<<30), err)
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add("0::/kubepods/pod" + uid + "/" + id + "\n")
	f.Add("1:name=systemd:/a\n0::/kubepods.slice/x.slice:cri-containerd:" + id)
	f.Fuzz(func(t *testing.T, text string) {
		container := parseCgroup(text)
		if container.ContainerID != "" && container.PodUID == "" {
			t.Errorf("container without a pod from %q", text)
		}
		if !strings.Contains(text, container.ContainerID) {
			t.Errorf("container ID %q made up from %q", container.ContainerID, text)
		}
	})
}
