// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/vgpud/vgpud/plugin"
)

// container is a directory laid out as the answer to Allocate asks a container to be: every file at its container
// path below root. It is no isolation, only the same files in the same places, so that programs run in it without
// privileges.
type container struct {
	root    string
	env     []string // what the answer adds to the environment
	preload string   // the library, as the preload file names it, below root
	client  string   // the program that runs in it
	cards   cards
}

// layOut builds the directory. root is on the file system of the pages, which are hard-linked: the very files that
// the agent made, and the library takes no link for a page. The others may be links.
func layOut(root string, answer *v1beta1.ContainerAllocateResponse, client string, c cards) (*container, error) {
	for _, m := range answer.GetMounts() {
		target := filepath.Join(root, m.GetContainerPath())
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return nil, fmt.Errorf("lay out container: %w", err)
		}
		err := os.Link(m.GetHostPath(), target)
		if errors.Is(err, syscall.EXDEV) {
			err = os.Symlink(m.GetHostPath(), target)
		}
		if err != nil {
			return nil, fmt.Errorf("lay out container: %w", err)
		}
	}
	line, err := os.ReadFile(filepath.Join(root, plugin.PreloadFile))
	if err != nil {
		return nil, fmt.Errorf("read preload file: %w", err)
	}
	box := &container{root: root, client: client, cards: c,
		preload: filepath.Join(root, strings.TrimSpace(string(line)))}
	for _, name := range slices.Sorted(maps.Keys(answer.GetEnvs())) {
		box.env = append(box.env, name+"="+answer.GetEnvs()[name])
	}
	return box, nil
}

// command prepares the client with the container's environment and preload.
func (b *container) command(ctx context.Context, args ...string) *exec.Cmd {
	return client(ctx, b.client, b.cards.environ(append(b.env, "LD_PRELOAD="+b.preload)...), args...)
}

// bare prepares the same program on the same cards without vgpud.
func (b *container) bare(ctx context.Context, args ...string) *exec.Cmd {
	return client(ctx, b.client, b.cards.environ(), args...)
}

func client(ctx context.Context, path string, env []string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	return cmd
}

// run runs a client to its end and returns what it printed, one key=value map per line.
func run(cmd *exec.Cmd) ([]map[string]string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run client %s: %w: %s%s", cmd.Args[1], err, stdout.String(), stderr.String())
	}
	return parseLines(stdout.String()), nil
}

func parseLines(text string) []map[string]string {
	var lines []map[string]string
	for line := range strings.Lines(text) {
		values := map[string]string{}
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(word, "=")
			values[key] = value
		}
		lines = append(lines, values)
	}
	return lines
}

// errNoValue is what a client that prints something unexpected comes to.
var errNoValue = errors.New("the client did not print it")

// value returns the number behind key in the first line; with api, in the first line that has api=index.
func value(lines []map[string]string, key, api, index string) (uint64, error) {
	for _, line := range lines {
		text, ok := line[key]
		if !ok || (api != "" && line[api] != index) {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", key, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("read %s: %w", key, errNoValue)
}
