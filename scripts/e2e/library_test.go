// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	refusalTimeout = 5 * time.Second  // for an agent that cannot work to say so
	repairTimeout  = 30 * time.Second // for an agent that runs to see that the library is good again
)

// damages are ways in which a library on the node can be no library; the file's old content is saved by the caller.
var damages = []struct {
	name   string
	damage func(t *testing.T, path string, content []byte)
}{
	{"missing", func(*testing.T, string, []byte) {}},
	{"empty", func(t *testing.T, path string, _ []byte) { writeFile(t, path, nil) }},
	{"directory", func(t *testing.T, path string, _ []byte) {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}},
	{"wrong architecture", func(t *testing.T, path string, content []byte) {
		writeFile(t, path, foreign(content))
	}},
	{"unreadable for the container's user", func(t *testing.T, path string, content []byte) {
		writeFile(t, path, content)
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}},
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// foreign makes a library say that it is for another machine.
func foreign(content []byte) []byte {
	const machineOffset = 18 // e_machine of an ELF header
	changed := append([]byte(nil), content...)
	changed[machineOffset] = byte(elf.EM_RISCV)
	return changed
}

// variant is a library that is the same but for its build ID, as a later release of the agent would bring one.
func variant(t *testing.T, name string, mark byte) (path string) {
	t.Helper()
	source := filepath.Join(env.parts, "libvgpu.so")
	file, err := elf.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	note := file.Section(".note.gnu.build-id")
	if note == nil {
		t.Fatal("libvgpu.so has no build ID")
	}
	content, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	content[note.Offset+note.Size-1] ^= mark
	path = filepath.Join(t.TempDir(), name)
	writeFile(t, path, content)
	return path
}

// installedLibraries are the copies of the library that the agent keeps on the node, by path as the test sees it.
func installedLibraries(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(env.cluster.Node.Path("/var/lib/vgpud/*/*/libvgpu.so"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A library that was damaged on the node after the agent has started: no pod starts, and none runs unlimited. An agent
// that starts puts the library right.
func TestNoPodStartsWithADamagedLibrary(t *testing.T) {
	path := installedLibrary(t)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			d.damage(t, path, content)
			name := fmt.Sprintf("damaged-library-%d", i)
			create(t, newPod(name, 1, clientPath, "hold", "all"))
			eventually(t, podTimeout, "the pod is refused", func() (bool, string) { return refused(t, name) })
			if log, err := env.cluster.Logs(t.Context(), name, containerName, false); err == nil && log != "" {
				t.Errorf("the container has run:\n%s", log)
			}
			remove(t, name)
			restartWith(t, nil)
		})
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
		t.Errorf("the library is not what it was (%v)", err)
	}
}

// A running pod whose container crashes while the library is damaged is not started again before it is repaired; the
// running agent notices both by itself.
func TestNoContainerIsRestartedWithADamagedLibrary(t *testing.T) {
	path := installedLibrary(t)
	r := newResident(t, "damaged-restart")
	saved := path + ".saved"
	if err := os.Rename(path, saved); err != nil {
		t.Fatal(err)
	}
	repair := sync.OnceFunc(func() {
		if err := os.Rename(saved, path); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(repair)
	r.mustRunOn(t)
	if err := env.cluster.CrashContainer(t.Context(), r.name, containerName); err != nil {
		t.Fatal(err)
	}
	eventually(t, podTimeout, "the restart is refused", func() (bool, string) {
		status, _ := container(t, r.name)
		if status.RestartCount > 0 {
			t.Fatalf("the container was started again: %+v", status)
		}
		w := status.State.Waiting
		return w != nil && strings.Contains(w.Message, "libvgpu"), fmt.Sprintf("%+v", status.State)
	})
	repair()
	r.awaitRestart(t)
	r.mustRunOn(t)
	r.mustBeLimited(t)
	eventually(t, repairTimeout, "all slices are offered again", func() (bool, string) {
		ok, now, err := allSlices(t.Context())
		return ok && err == nil, now
	})
}

// installedLibrary is the one copy of the library that the agent keeps on the node at this moment.
func installedLibrary(t *testing.T) string {
	t.Helper()
	installed := installedLibraries(t)
	if len(installed) != 1 {
		t.Fatalf("want one installed library, found %v", installed)
	}
	return installed[0]
}

// refused says whether somebody has said no to the pod, for good or for now. A container that runs ends the test.
func refused(t *testing.T, name string) (bool, string) {
	t.Helper()
	pod, err := env.cluster.Pod(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Running != nil || status.State.Terminated != nil || status.LastTerminationState.Terminated != nil {
			t.Fatalf("the container was started: %+v", status)
		}
		if w := status.State.Waiting; w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			t.Logf("refused: %s: %s", w.Reason, w.Message)
			return true, ""
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		t.Logf("refused: %s: %s", pod.Status.Reason, pod.Status.Message)
		return true, ""
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
			t.Logf("refused: %s", condition.Message)
			return true, ""
		}
	}
	return false, string(pod.Status.Phase)
}

// An agent that has no good library to hand out offers no slices, and says so.
func TestAgentWithoutLibraryOffersNoSlices(t *testing.T) {
	good := filepath.Join(env.parts, "libvgpu.so")
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := env.agent.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ensureAgent(t) })
	for _, d := range damages[:4] { // who may read the source does not matter: the agent installs a copy
		t.Run(d.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "libvgpu.so")
			d.damage(t, path, content)
			before := mustCountRegistrations(t)
			if err := env.agent.launch(map[string]string{"library": path}); err != nil {
				t.Fatal(err)
			}
			select {
			case <-env.agent.process.Ended():
				if env.agent.process.ExitCode() == 0 {
					t.Error("vgpud ended with exit code 0, as if all were well")
				}
				t.Logf("vgpud's last words: %s", env.agent.lastWords())
			case <-time.After(refusalTimeout): // it may stay and wait for a better library, if it offers nothing
				if err := env.agent.stop(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
			}
			if n := mustCountRegistrations(t); n != before {
				t.Errorf("vgpud registered %d times with a bad library", n-before)
			}
		})
	}
}

// With another container directory the preload file names the library where it is mounted, and the limit holds.
func TestOtherContainerDirectory(t *testing.T) {
	const dir = "/opt/slices/lib"
	restartWith(t, map[string]string{"container-dir": dir, "library": variant(t, "libvgpu-other-dir.so", 1)})
	create(t, onePod("other-dir", 1, "sh", "-c", "cat /etc/ld.so.preload && ls "+dir+"/libvgpu.so && "+clientPath+" fill"))
	log, code := awaitEnd(t, "other-dir")
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, log)
	}
	if first, _, _ := strings.Cut(log, "\n"); first != dir+"/libvgpu.so" {
		t.Errorf("the preload file names %q, the library is mounted at %s/libvgpu.so", first, dir)
	}
	if got := mustFind(t, log, "filled").number(t, "filled"); got != env.gpus.sliceBytes() {
		t.Errorf("client got %d bytes, want %d", got, env.gpus.sliceBytes())
	}
}

// restartWith starts the agent again; with other flags, if any, until the test ends.
func restartWith(t *testing.T, flags map[string]string) {
	t.Helper()
	if err := env.agent.stop(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if len(flags) > 0 {
			if err := env.agent.stop(syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		}
		ensureAgent(t)
	})
	if err := env.agent.start(t.Context(), flags); err != nil {
		t.Fatal(err)
	}
}

// An agent with a new library: what runs keeps the old one, also when its container is started again; new pods get the
// new one; both keep to their limits.
func TestAgentUpgradeLeavesContainersTheirLibrary(t *testing.T) {
	r := newResident(t, "upgrade-old")
	before := map[string]os.FileInfo{}
	for _, path := range installedLibraries(t) {
		before[path] = stat(t, path)
	}
	restartWith(t, map[string]string{"library": variant(t, "libvgpu-new.so", 2)})
	r.mustRunOn(t)
	r.mustBeLimited(t)
	create(t, onePod("upgrade-new", 1, clientPath, "fill"))
	log, code := awaitEnd(t, "upgrade-new")
	if code != 0 || mustFind(t, log, "filled").number(t, "filled") != env.gpus.sliceBytes() {
		t.Errorf("a new pod is not limited to its slice: exit code %d\n%s", code, log)
	}
	for path, info := range before {
		if now := stat(t, path); !os.SameFile(info, now) || !info.ModTime().Equal(now.ModTime()) {
			t.Errorf("%s was replaced or rewritten under a running container", filepath.Base(filepath.Dir(path)))
		}
	}
	if now := installedLibraries(t); len(now) != len(before)+1 {
		t.Errorf("the node has %d libraries after the upgrade, had %d before", len(now), len(before))
	}
	if err := env.cluster.CrashContainer(t.Context(), r.name, containerName); err != nil {
		t.Fatal(err)
	}
	r.awaitRestart(t)
	r.mustRunOn(t)
	r.mustBeLimited(t)
}

func stat(t *testing.T, path string) os.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// Programs that the library cannot be loaded into run, with at most the loader's own warning.
func TestForeignProgramsRunInASlice(t *testing.T) {
	besideOthers(t)
	for _, program := range []struct{ name, path, file, want string }{
		{"musl", muslPath, "hello-musl", "hello from 64 bits"},
		{"32-bit", hello32Path, "hello-32", "hello from 32 bits"},
	} {
		t.Run(program.name, func(t *testing.T) {
			file := filepath.Join(env.build, "e2e", "client", program.file)
			if _, err := os.Stat(file); err != nil {
				skip(t, program.name, "the machine cannot build "+program.name+" programs")
			}
			if _, err := env.cluster.Node.Output(t.Context(), nil, file); err != nil {
				skip(t, program.name, "the machine cannot run "+program.name+" programs: "+err.Error())
			}
			name := "foreign-" + program.name
			create(t, onePod(name, 1, program.path))
			log, code := awaitEnd(t, name)
			if code != 0 || !strings.Contains(log, program.want) {
				t.Errorf("exit code %d:\n%s", code, log)
			}
			for _, line := range strings.Split(strings.TrimSpace(log), "\n") {
				if line != program.want && !strings.Contains(line, "ld.so: object") {
					t.Errorf("more than the loader's own warning: %q", line)
				}
			}
		})
	}
}
