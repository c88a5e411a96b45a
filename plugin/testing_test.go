// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Helpers of this package's tests: an ELF file with a build ID, pages in plain files, a node with two GPUs.

package plugin

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vgpud/vgpud/internal/logtest"
	"github.com/vgpud/vgpud/plugin/kubelettest"
	"github.com/vgpud/vgpud/plugin/ledger"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const (
	gib      = 1 << 30
	resource = "nvidia.com/gpu"
	uuidA    = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
	uuidB    = "GPU-bbbbbbbb-0000-0000-0000-000000000000"
	testID   = "0123456789abcdef0123456789abcdef01234567"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testELF builds a shared library of nothing but a build ID note.
func testELF(t *testing.T, machine elf.Machine, id []byte) []byte {
	t.Helper()
	names := "\x00.note.gnu.build-id\x00.shstrtab\x00"
	note := binary.LittleEndian.AppendUint32(nil, 4)
	note = binary.LittleEndian.AppendUint32(note, uint32(len(id)))
	note = binary.LittleEndian.AppendUint32(note, noteBuildID)
	note = append(append(note, "GNU\x00"...), id...)
	const headerBytes = 64
	noteOff, namesOff := uint64(headerBytes), uint64(headerBytes+len(note))
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT), Ehsize: headerBytes,
		Shoff: namesOff + uint64(len(names)), Shentsize: 64, Shnum: 3, Shstrndx: 2,
	}
	sections := []elf.Section64{
		{},
		{Name: 1, Type: uint32(elf.SHT_NOTE), Off: noteOff, Size: uint64(len(note))},
		{Name: 20, Type: uint32(elf.SHT_STRTAB), Off: namesOff, Size: uint64(len(names))},
	}
	var b bytes.Buffer
	for _, part := range []any{header, note, []byte(names), sections} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// filePages makes pages that are plain files, and can be told to fail.
type filePages struct {
	mu     sync.Mutex
	fail   error
	epochs map[string]int
	made   map[string][]ledger.Grant
}

var _ Pages = (*filePages)(nil)

func newFilePages() *filePages {
	return &filePages{epochs: map[string]int{}, made: map[string][]ledger.Grant{}}
}

func (p *filePages) setFail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

func (p *filePages) Ready() error { return nil }

func (p *filePages) Create(rec ledger.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.createLocked(rec)
}

func (p *filePages) createLocked(rec ledger.Record) error {
	if err := os.MkdirAll(pagesPath(rec), 0o711); err != nil {
		return err
	}
	for name, mode := range map[string]fs.FileMode{limitsName: 0o644, usageName: 0o666} {
		path := filepath.Join(pagesPath(rec), name)
		if err := errors.Join(os.WriteFile(path, []byte("page"), mode), os.Chmod(path, mode)); err != nil {
			return err
		}
	}
	p.made[rec.Key] = rec.Grants
	return p.fail // fails late, so that there is something to undo
}

func (p *filePages) Restore(rec ledger.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := checkPages(rec); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(os.RemoveAll(pagesPath(rec)), p.createLocked(rec))
}

func (p *filePages) RaiseEpoch(rec ledger.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.epochs[rec.Key]++
	return p.fail
}

func (p *filePages) Remove(rec ledger.Record) error { return os.RemoveAll(pagesPath(rec)) }

func (p *filePages) epoch(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.epochs[key]
}

// shortDir is a temporary directory with a path that leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// node is an agent's worth of plugin, before any kubelet.
type node struct {
	t     *testing.T
	dir   string
	cfg   Config
	books *ledger.Ledger
	pages *filePages
	log   *testLog
	srv   *Server
}

// newNode installs a library and builds a server that offers two GPUs of ten slices.
func newNode(t *testing.T, change ...func(*Config)) *node {
	t.Helper()
	dir := shortDir(t)
	n := &node{t: t, dir: dir, cfg: Config{
		ResourceName: resource, KubeletDir: filepath.Join(dir, "kubelet"), Strategy: StrategyEnvvar, CDIKind: "nvidia.com/gpu",
		ContainerDir: "/usr/local/vgpud", LibraryDir: filepath.Join(dir, "lib"), PagesDir: filepath.Join(dir, "pages"),
		Timing: Timing{Poll: 50 * time.Millisecond, Confirm: 500 * time.Millisecond, BackoffFirst: 150 * time.Millisecond, Stop: time.Second},
	}}
	n.cfg.BuildID = n.install([]byte{1, 2, 3, 4})
	for _, f := range change {
		f(&n.cfg)
	}
	n.pages = newFilePages()
	n.log = &testLog{t: t}
	n.reopen()
	return n
}

// install makes a library with this build ID and installs it.
func (n *node) install(id []byte) string {
	n.t.Helper()
	source := filepath.Join(n.dir, fmt.Sprintf("libvgpu-%x.so", id))
	if err := os.WriteFile(source, testELF(n.t, elf.EM_X86_64, id), 0o600); err != nil {
		n.t.Fatal(err)
	}
	buildID, err := InstallLibrary(source, n.cfg.LibraryDir, n.cfg.ContainerDir)
	if err != nil {
		n.t.Fatal(err)
	}
	return buildID
}

// reopen is an agent restart: the ledger from disk, a new server, the GPUs told anew.
func (n *node) reopen() {
	n.t.Helper()
	books, err := ledger.Open(filepath.Join(n.dir, "ledger"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.books = books
	n.srv, err = New(n.cfg, books, n.pages, slog.New(slog.NewTextHandler(n.log, nil)))
	if err != nil {
		n.t.Fatal(err)
	}
	n.update(twoGPUs()...)
}

func (n *node) update(gpus ...GPU) {
	n.t.Helper()
	if err := n.srv.Update(gpus); err != nil {
		n.t.Fatal(err)
	}
}

// run runs the server until the returned function is called, which waits for the end and may be called again.
func (n *node) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	srv := n.srv
	go func() { done <- srv.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				n.t.Errorf("run: %v", err)
			}
		case <-time.After(10 * time.Second):
			n.t.Error("Run does not return")
		}
	})
	n.t.Cleanup(stop)
	return stop
}

// kubelet starts a kubelet on the node.
func (n *node) kubelet(opts kubelettest.Options) *kubelettest.Kubelet {
	n.t.Helper()
	k, err := kubelettest.Start(n.cfg.KubeletDir, opts)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := k.Close(); err != nil {
			n.t.Errorf("close kubelet: %v", err)
		}
	})
	return k
}

// waitAllocatable fails the test unless the kubelet comes to see want devices.
func (n *node) waitAllocatable(k *kubelettest.Kubelet, want int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := k.WaitAllocatable(ctx, n.cfg.ResourceName, want); err != nil {
		n.t.Fatal(err)
	}
}

// eventually polls until ok or 10 s have passed.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func twoGPUs() []GPU {
	return []GPU{
		{GPU: ledger.GPU{UUID: uuidA, UsableBytes: 80 * gib, Slices: 10}, NUMA: NoNUMA},
		{GPU: ledger.GPU{UUID: uuidB, UsableBytes: 80 * gib, Slices: 10}, NUMA: NoNUMA},
	}
}

// testLog keeps log lines and sends them to the test's log; what arrives after the test's end is dropped.
type testLog struct {
	logtest.Buffer
	t *testing.T
}

func (l *testLog) Write(line []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(string(bytes.TrimSpace(line)))
	}
	return l.Buffer.Write(line)
}
