// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// C47: an agent that is killed while it writes leaves a whole file and nothing that the exporter would read.

package metrics

import (
	"os"
	"os/exec"
	"testing"
	"time"
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
	leftovers := 0
	for kill := range kills {
		writer := exec.Command(os.Args[0])
		writer.Env = append(os.Environ(), writeForever+"="+directory)
		stdout, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := stdout.Read(make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(kill) * 700 * time.Microsecond) // at another point of a write each time
		if err := writer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = writer.Wait()
		readOnce(t, directory)
		entries, err := os.ReadDir(directory)
		if err != nil {
			t.Fatal(err)
		}
		leftovers += len(entries) - 1
		if err := NewTextfile(directory).RemoveLeftovers(); err != nil {
			t.Fatal(err)
		}
		if entries, _ = os.ReadDir(directory); len(entries) != 1 {
			t.Fatalf("after the next start: %v", entries)
		}
	}
	t.Logf("%d kills left %d temporary files, all removed at the next start", kills, leftovers)
}
