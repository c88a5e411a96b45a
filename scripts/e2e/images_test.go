// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vgpud/vgpud/scripts/e2e/image"
)

const (
	pauseImage = "vgpud.test/pause:1"
	testImage  = "vgpud.test/e2e:1"
)

// Programs of our own in the test image, built by build.sh into build/e2e/client. Those for musl and for 32 bits are
// there only where the machine can build them.
const (
	clientPath  = "/usr/bin/client"
	floodPath   = "/usr/bin/flood"
	roguePath   = "/usr/bin/rogue"
	muslPath    = "/usr/bin/hello-musl"
	hello32Path = "/usr/bin/hello-32"
)

// userland is what tests run in containers besides our own programs; the files are this machine's.
var userland = []string{"sh", "cat", "cp", "dd", "env", "grep", "head", "ls", "mkdir", "mount", "rm", "sleep", "stat", "truncate", "wc"}

// buildImages makes the two images: the pod sandbox's, and the one that all test containers run.
func buildImages(store *image.Store) (archives []string, err error) {
	ours := filepath.Join(env.build, "e2e", "client")
	base := image.Files{}
	programs := userland
	if hasFFmpeg() {
		programs = append(programs, "ffmpeg")
	}
	for _, name := range programs {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		if err := base.AddProgramAs("/usr/bin/"+name, path); err != nil {
			return nil, err
		}
	}
	top := image.Files{}
	for imagePath, name := range map[string]string{
		clientPath: "client", floodPath: "flood", roguePath: "rogue", muslPath: "hello-musl", hello32Path: "hello-32"} {
		path := filepath.Join(ours, name)
		if strings.HasPrefix(name, "hello") && exec.Command(path).Run() != nil {
			continue // not built, or nothing that this machine runs: the test that wants it is skipped
		}
		if err := top.AddProgramAs(imagePath, path); err != nil {
			return nil, err
		}
	}
	for _, img := range []image.Image{
		{Name: pauseImage, Entrypoint: []string{"/pause"}, Layers: []image.Files{{"/pause": filepath.Join(ours, "pause")}}},
		{Name: testImage, Entrypoint: []string{clientPath}, Layers: []image.Files{base, top}},
	} {
		archive, err := store.Build(img)
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, store.Prune()
}

func hasFFmpeg() bool {
	_, err := exec.LookPath("ffmpeg")
	return err == nil
}

// tool finds a program that run.sh has unpacked or the machine has installed; empty where there is none.
func tool(name string) string {
	unpacked := filepath.Join(env.build, "e2e", "tools", "usr", "bin", name)
	if _, err := os.Stat(unpacked); err == nil {
		return unpacked
	}
	path, _ := exec.LookPath(name)
	return path
}

func etcdPath() string { return tool("etcd") }
