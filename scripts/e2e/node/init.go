// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package node

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RunInit is the node's first process. It returns at once, having done nothing, in any other process: the test
// binary calls it before all else.
func RunInit() {
	dir := os.Getenv(initVariable)
	if dir == "" {
		return
	}
	if err := setUp(dir); err != nil {
		fmt.Fprintln(os.Stderr, "set up node:", err)
		os.Exit(1)
	}
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		}
	}()
	ready := os.NewFile(3, "ready")
	_, _ = ready.Write([]byte{1})
	ready.Close()
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test process
	os.Exit(0)
}

// mount is one line of the node's own mounts, in order.
type mount struct {
	source, target, kind string
	flags                uintptr
	data                 string
}

func setUp(dir string) error {
	if err := unix.Sethostname([]byte(Name)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	varLib, varLog := filepath.Join(dir, "var-lib"), filepath.Join(dir, "var-log")
	for _, d := range []string{varLib, varLog} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, m := range []mount{
		{target: "/", flags: unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{varLib, "/var/lib", "", unix.MS_BIND, ""},
		{varLog, "/var/log", "", unix.MS_BIND, ""},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	} {
		if err := m.do(); err != nil {
			return err
		}
	}
	for _, step := range []func() error{makeDev, hideSysctls, makeNetwork} {
		if err := step(); err != nil {
			return err
		}
	}
	// Mounts of pods are to reach each other's namespaces as they do on a real node.
	return mount{target: "/", flags: unix.MS_REC | unix.MS_SHARED}.do()
}

func (m mount) do() error {
	if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
		return fmt.Errorf("mount %s: %w", m.target, err)
	}
	return nil
}

// makeDev gives the node a /dev of its own, so that device nodes made there never show outside.
func makeDev() error {
	const staged = "/run/dev"
	if err := os.Mkdir(staged, 0o755); err != nil {
		return err
	}
	if err := (mount{"tmpfs", staged, "tmpfs", unix.MS_NOSUID, "mode=755"}).do(); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "kmsg"} {
		var st unix.Stat_t
		if err := unix.Stat("/dev/"+name, &st); err != nil {
			return fmt.Errorf("look at /dev/%s: %w", name, err)
		}
		if err := makeDeviceNode(filepath.Join(staged, name), st.Mode, st.Rdev); err != nil {
			return err
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1",
		"stderr": "fd/2", "ptmx": "pts/ptmx"} {
		if err := os.Symlink(target, filepath.Join(staged, name)); err != nil {
			return err
		}
	}
	for _, m := range []mount{
		{"devpts", staged + "/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620"},
		{"tmpfs", staged + "/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"mqueue", staged + "/mqueue", "mqueue", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{staged, "/dev", "", unix.MS_MOVE, ""},
	} {
		if m.flags&unix.MS_MOVE == 0 {
			if err := os.Mkdir(m.target, 0o755); err != nil {
				return err
			}
		}
		if err := m.do(); err != nil {
			return err
		}
	}
	return nil
}

// MakeNullDevice makes a device node under path that behaves as /dev/null. Call it on a Path of the node.
func MakeNullDevice(path string) error {
	return makeDeviceNode(path, unix.S_IFCHR|0o666, unix.Mkdev(1, 3))
}

func makeDeviceNode(path string, mode uint32, device uint64) error {
	if err := unix.Mknod(path, mode, int(device)); err != nil {
		return fmt.Errorf("make device node %s: %w", path, err)
	}
	return os.Chmod(path, os.FileMode(mode&0o777)) // mknod is subject to the umask
}

// hideSysctls gives the kubelet files of its own for the settings of the whole machine that it insists on writing.
func hideSysctls() error {
	const dir = "/run/sysctl"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for path, value := range map[string]string{"vm/overcommit_memory": "1\n", "kernel/panic": "10\n",
		"kernel/panic_on_oops": "1\n"} {
		own := filepath.Join(dir, filepath.Base(path))
		if err := os.WriteFile(own, []byte(value), 0o644); err != nil {
			return err
		}
		if err := (mount{own, "/proc/sys/" + path, "", unix.MS_BIND, ""}).do(); err != nil {
			return err
		}
	}
	return nil
}

// makeNetwork gives the node an address that is not a loopback one: kubelet refuses those as a node address.
func makeNetwork() error {
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "node0", "type", "bridge"},
		{"address", "add", Address + "/24", "dev", "node0"},
		{"link", "set", "node0", "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", args, err, out)
		}
	}
	return nil
}
