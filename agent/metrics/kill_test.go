// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// An agent that is killed while it writes leaves a whole file and nothing that the exporter would read.

package metrics

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const writeForever = "VGPUD_TEST_WRITE_FOREVER"

func TestMain(m *testing.M) {
	directory := os.Getenv(writeForever)
	if directory == "" {
		os.Exit(m.Run())
	}
	textfile := NewTextfile(directory)
	for number := uint64(1); ; number++ {
		if err := textfile.Write(manyContainers(number)); err != nil {
			os.Exit(1)
		}
		if number == 1 {
			_, _ = os.Stdout.WriteString("ready\n")
		}
	}
}

func TestKilledWhileWriting(t *testing.T) {
	const kills = 6
	directory := t.TempDir()
	for range kills {
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writeForever+"="+directory)
		stdout, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = writer.Process.Kill() })
		if _, err := stdout.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		stopInAWrite(t, directory, writer.Process)
		if err := writer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = writer.Wait()
		readOnce(t, directory)
		if left := temporaryFiles(t, directory); len(left) != 1 {
			t.Fatalf("a kill in the midst of a write left %v, want its temporary file", left)
		}
		if err := NewTextfile(directory).RemoveLeftovers(); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(directory); len(entries) != 1 {
			t.Fatalf("after the next start: %v, %v", entries, err)
		}
	}
}

// stopInAWrite stops the process at a moment at which its temporary file is there.
func stopInAWrite(t *testing.T, directory string, process *os.Process) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if len(temporaryFiles(t, directory)) == 0 {
			continue
		}
		var status unix.WaitStatus
		if err := process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Wait4(process.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
			t.Fatalf("the writer is not stopped: status %#x, %v", status, err)
		}
		if len(temporaryFiles(t, directory)) != 0 {
			return
		}
		if err := process.Signal(unix.SIGCONT); err != nil { // the write was over before the signal came
			t.Fatal(err)
		}
	}
	t.Fatal("no write was met in 30 s")
}

func temporaryFiles(t *testing.T, directory string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, ".*.tmp"))
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
