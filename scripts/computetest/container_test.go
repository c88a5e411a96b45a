// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package computetest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpud/vgpud/plugin/kubelettest"
)

// containerVariable tells this program to enter a container: its value is a container in JSON. The program that is to
// run in there, with its arguments, are this one's arguments.
const containerVariable = "COMPUTETEST_CONTAINER"

// containerDir is where libvgpu and the pages are in a container.
const containerDir = "/usr/local/vgpud"

// container is what the kubelet and the runtime make of an allocation, as far as the tests need it: mounts in a
// namespace of its own.
type container struct {
	Mounts      []bind
	Environment []string
}

// bind is one file that is mounted over another place.
type bind struct {
	From, To string
	ReadOnly bool
}

// newContainer describes the container of an allocation. The preload file is left out: the machine's own /etc is not to
// be touched, so the library is named in LD_PRELOAD instead.
func newContainer(a kubelettest.Allocation) (c container) {
	for _, mount := range a.Response.GetMounts() {
		if path := mount.GetContainerPath(); strings.HasPrefix(path, containerDir) {
			c.Mounts = append(c.Mounts, bind{mount.GetHostPath(), path, mount.GetReadOnly()})
		}
	}
	for name, value := range a.Response.GetEnvs() {
		c.Environment = append(c.Environment, name+"="+value)
	}
	c.Environment = append(c.Environment, "LD_PRELOAD="+filepath.Join(containerDir, "libvgpu.so"))
	return c
}

// command is a program in the container.
func (c container) command(t *testing.T, environment []string, arguments ...string) *exec.Cmd {
	t.Helper()
	c.Environment = slices.Concat(cleanEnvironment(), environment, c.Environment)
	description, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("/proc/self/exe", arguments...)
	command.Env = append(cleanEnvironment(), containerVariable+"="+string(description))
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	return command
}

// enterContainer makes the mounts and becomes the program. It returns only if that fails.
func enterContainer() error {
	var c container
	if err := json.Unmarshal([]byte(os.Getenv(containerVariable)), &c); err != nil {
		return fmt.Errorf("read container: %w", err)
	}
	// A directory that is there on every machine; what else lies in it is not needed in here.
	if err := unix.Mount("tmpfs", filepath.Dir(containerDir), "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	for _, b := range c.Mounts {
		if err := b.mount(); err != nil {
			return fmt.Errorf("mount %s: %w", b.To, err)
		}
	}
	return fmt.Errorf("start program: %w", unix.Exec(os.Args[1], os.Args[1:], c.Environment))
}

func (b bind) mount() error {
	if err := os.MkdirAll(filepath.Dir(b.To), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(b.To, nil, 0o644); err != nil {
		return err
	}
	if err := unix.Mount(b.From, b.To, "", unix.MS_BIND, ""); err != nil || !b.ReadOnly {
		return err
	}
	return unix.Mount("", b.To, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}
