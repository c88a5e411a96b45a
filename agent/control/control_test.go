// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests over a real socket: the answers, who may ask, a second agent, what dead agents leave, and clients that misbehave.

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/vgpud/vgpud/internal/require"
)

var update = flag.Bool("update", false, "write testdata again")

// patience bounds what takes an instant on an idle machine.
const patience = 20 * time.Second

// Variables that name the socket which the test binary is to make, or to ask on, as a process of its own; see TestMain.
const (
	childVariable = "VGPUD_TEST_CONTROL_SOCKET"
	askVariable   = "VGPUD_TEST_CONTROL_ASK"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(askVariable); path != "" {
		_, err := NewClient(path).View(context.Background())
		fmt.Println(err)
		return
	}
	path := os.Getenv(childVariable)
	if path == "" {
		goleak.VerifyTestMain(m)
		return
	}
	// An agent that only has the socket, until it is killed.
	if _, err := listen(path); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("listening")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// shortDir is a directory whose name fits in the address of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vgpud")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// sample is a view with a value in every kind of field.
func sample() *View {
	used, share := uint64(1<<30), 0.25
	now := time.Date(2026, 11, 30, 4, 5, 6, 0, time.UTC)
	return &View{
		Version: Version, Time: now, Node: "n1", Agent: Agent{Version: "devel", PID: 7, StartTime: now},
		GPUs: []GPU{{UUID: "GPU-1", MemoryTotalBytes: 80 << 30, DRAMRatio: &Figure{0.5, 1}, Sharing: "time-sliced",
			Health: Health{Healthy: true, Reason: "ok", Since: &now}, Slices: Counts{Free: 7, Allocated: 3}}},
		Slices: []Slice{{Allocation: "k", GPUUUID: "GPU-1", Pod: "p\x1b[31m", MemoryUsedBytes: &used, ShareUsed: &share,
			Traffic:   []Traffic{{Resource: "dram", Why: "too few periods"}},
			Pressures: []Pressure{{Resource: "pcie_rx", Some: Averages{Avg10: 0.1}}}}},
	}
}

// serve runs a server until the test ends and returns a client of it.
func serve(t *testing.T, config Config) (*Client, *Server) {
	t.Helper()
	if config.Path == "" {
		config.Path = filepath.Join(shortDir(t), "run", "vgpud.sock")
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	server := New(config)
	if err := server.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	client := NewClient(config.Path)
	t.Cleanup(func() {
		client.Close()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := server.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := os.Lstat(config.Path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return client, server
}

func TestViewArrivesAsItIs(t *testing.T) {
	client, _ := serve(t, Config{View: sample})
	view, err := client.View(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sample(), view, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("view (-sent +got):\n%s", diff)
	}
}

// TestJSONIsStable holds the names that scripts read; a new field is a new line in the file. A list is never null.
func TestJSONIsStable(t *testing.T) {
	text, err := json.MarshalIndent(sample().withLists(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "view.json")
	if *update {
		if err := os.WriteFile(golden, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), string(text)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", golden, diff)
	}
}

func TestStartingAgentSaysSo(t *testing.T) {
	client, _ := serve(t, Config{View: func() *View { return nil }})
	if _, err := client.View(t.Context()); !errors.Is(err, ErrStarting) {
		t.Errorf("view: %v, want %v", err, ErrStarting)
	}
}

func TestNewerAgentIsRefused(t *testing.T) {
	client, _ := serve(t, Config{View: func() *View { return &View{Version: Version + 1} }})
	if _, err := client.View(t.Context()); !errors.Is(err, ErrVersion) {
		t.Errorf("view: %v, want %v", err, ErrVersion)
	}
}

func TestManyClientsCostOneView(t *testing.T) {
	var made atomic.Int64
	client, _ := serve(t, Config{View: func() *View { made.Add(1); return sample() }})
	began := time.Now()
	for range 50 {
		if _, err := client.View(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if most := int64(time.Since(began)/viewAge) + 1; made.Load() > most {
		t.Errorf("50 requests in %s made %d views, want %d at most", time.Since(began), made.Load(), most)
	}
}

func TestSocketIsForItsOwnerAlone(t *testing.T) {
	client, _ := serve(t, Config{View: sample})
	for path, want := range map[string]os.FileMode{client.path: os.ModeSocket | 0o600, filepath.Dir(client.path): os.ModeDir | 0o755} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, info.Mode(), want, err)
		}
	}
}

func TestOthersAreTold(t *testing.T) {
	require.Root(t)
	client, _ := serve(t, Config{View: sample})
	if err := os.Chmod(filepath.Dir(filepath.Dir(client.path)), 0o755); err != nil {
		t.Fatal(err)
	}
	if said := askAsNobody(t, client.path); !strings.HasPrefix(said, ErrForbidden.Error()) {
		t.Errorf("as an ordinary user: %s, want %v", said, ErrForbidden)
	}
}

// TestSecondAgentIsRefused has another process hold the socket, alive, killed, and replaced.
func TestSecondAgentIsRefused(t *testing.T) {
	path := filepath.Join(shortDir(t), "vgpud.sock")
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+path)
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	if n, err := stdout.Read(line); err != nil || string(line[:n]) != "listening\n" {
		t.Fatalf("first agent: %q, %v", line, err)
	}
	second := New(Config{Path: path, View: sample, Log: slog.New(slog.DiscardHandler)})
	if err := second.Listen(); !errors.Is(err, ErrInUse) {
		t.Errorf("beside a live agent: %v, want %v", err, ErrInUse)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the live agent's socket: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the dead agent has left nothing: %v", err)
	}
	client := NewClient(path)
	defer client.Close()
	if _, err := client.View(t.Context()); !errors.Is(err, ErrNoAgent) {
		t.Errorf("a dead agent: %v, want %v", err, ErrNoAgent)
	}
	client, _ = serve(t, Config{Path: path, View: sample})
	if _, err := client.View(t.Context()); err != nil {
		t.Errorf("after a dead agent: %v", err)
	}
}

func TestListenRefuses(t *testing.T) {
	for name, prepare := range map[string]struct {
		make func(dir string) string
		want string
	}{
		"file there": {func(dir string) string {
			path := filepath.Join(dir, "s")
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return path
		}, "something else than a socket"},
		"link there": {func(dir string) string {
			path := filepath.Join(dir, "s")
			if err := os.Symlink("/nowhere", path); err != nil {
				t.Fatal(err)
			}
			return path
		}, "something else than a socket"},
		"open directory": {func(dir string) string {
			if err := os.Chmod(dir, 0o1777); err != nil {
				t.Fatal(err)
			}
			return filepath.Join(dir, "s")
		}, "others could put another socket there"},
		"no parent":     {func(dir string) string { return filepath.Join(dir, "a", "b", "s") }, "no such file"},
		"parent a file": {func(string) string { return "/proc/version/s" }, ""},
		"too long":      {func(dir string) string { return filepath.Join(dir, strings.Repeat("x", 120)) }, "bytes"},
		"relative":      {func(string) string { return "vgpud.sock" }, "absolute"},
		"foreign server": {func(dir string) string {
			path := filepath.Join(dir, "s")
			listener, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			return path
		}, ErrInUse.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			path := prepare.make(shortDir(t))
			server := New(Config{Path: path, View: sample, Log: slog.New(slog.DiscardHandler)})
			err := server.Listen()
			if err == nil || !strings.Contains(err.Error(), prepare.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("listen: %v, want %q and the path", err, prepare.want)
			}
			if err := server.Close(); err != nil {
				t.Errorf("close what never listened: %v", err)
			}
		})
	}
}

func TestThaw(t *testing.T) {
	thaw := func(_ context.Context, request ThawRequest) (ThawReply, error) {
		switch {
		case request.Container == "abc":
			return ThawReply{Containers: []string{"abcdef"}}, nil
		case request.All:
			return ThawReply{}, errors.New("freezer: permission denied")
		}
		return ThawReply{}, fmt.Errorf("container %q is %w", request.Container, ErrNotFrozen)
	}
	client, _ := serve(t, Config{View: sample, Thaw: thaw})
	reply, err := client.Thaw(t.Context(), ThawRequest{Container: "abc"})
	if err != nil || len(reply.Containers) != 1 || reply.Containers[0] != "abcdef" {
		t.Errorf("thaw: %v, %v", reply, err)
	}
	if _, err := client.Thaw(t.Context(), ThawRequest{Container: "x"}); !errors.Is(err, ErrNotFrozen) || !strings.Contains(err.Error(), `"x"`) {
		t.Errorf("thaw what is not frozen: %v", err)
	}
	if _, err := client.Thaw(t.Context(), ThawRequest{All: true}); err == nil || err.Error() != "freezer: permission denied" {
		t.Errorf("thaw that fails: %v", err)
	}
	for _, bad := range []ThawRequest{{}, {Container: "a", All: true}, {Container: "a", Allocation: "b"}} {
		if _, err := client.Thaw(t.Context(), bad); err == nil {
			t.Errorf("%+v is accepted", bad)
		}
	}
	// The server judges for itself.
	for _, body := range []string{"", "{}", `{"all":true,"container":"a"}`, `{"everything":true}`, "[" + strings.Repeat(" ", mostThawBytes) + "]"} {
		response, err := client.http.Post("http://vgpud"+thawPath, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("body %.40q: %d, want %d", body, response.StatusCode, http.StatusBadRequest)
		}
	}
}

func TestAgentThatFreezesNothing(t *testing.T) {
	client, _ := serve(t, Config{View: sample})
	if _, err := client.Thaw(t.Context(), ThawRequest{All: true}); !errors.Is(err, ErrNotFrozen) {
		t.Errorf("thaw: %v, want %v", err, ErrNotFrozen)
	}
}

func TestProfilesAreServed(t *testing.T) {
	client, _ := serve(t, Config{View: sample})
	for _, path := range []string{"heap", "goroutine", "profile?seconds=1"} {
		answer, err := client.do(t.Context(), http.MethodGet, "/debug/pprof/"+path, nil)
		if err != nil || !bytes.HasPrefix(answer, []byte{0x1f, 0x8b}) {
			t.Errorf("%s: %d bytes that are no gzip, %v", path, len(answer), err)
		}
	}
}

// TestSilentClientsHoldNothingUp has clients that connect and say nothing, read nothing and are more than may connect; the
// agent's own calls never wait for any of them, and it stops in time.
func TestSilentClientsHoldNothingUp(t *testing.T) {
	large := sample()
	large.Node = strings.Repeat("n", 8<<20)
	client, _ := serve(t, Config{View: func() *View { return large }})
	for range mostConnections - 2 {
		silent, err := net.Dial("unix", client.path)
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
		if _, err := io.WriteString(silent, "GET "+viewPath+" HTTP/1.1\r\nHost: vgpud\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := client.View(ctx); err != nil {
		t.Errorf("view beside clients that do not read: %v", err)
	}
}

func TestAgentThatHangsIsNamed(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	listener, err := net.Listen("unix", path) // accepts in the kernel, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client := NewClient(path)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.View(ctx); !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "in time") {
		t.Errorf("view: %v", err)
	}
}

func TestAnswersOfSomethingElse(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	bodies := []string{"hello", "{}", `{"version":1,"gpus":7}`, `{"version":"1"}`}
	var next atomic.Int64
	server := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if in.Method == http.MethodPost {
			http.Error(out, "what?", http.StatusTeapot)
			return
		}
		_, _ = io.WriteString(out, bodies[int(next.Add(1)-1)%len(bodies)])
	})}
	done := make(chan error)
	go func() { done <- server.Serve(listener) }()
	defer func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	client := NewClient(path)
	defer client.Close()
	for _, body := range bodies {
		if _, err := client.View(t.Context()); err == nil {
			t.Errorf("%q is taken for a view", body)
		}
	}
	if _, err := client.Thaw(t.Context(), ThawRequest{All: true}); err == nil || !strings.Contains(err.Error(), "418") {
		t.Errorf("thaw: %v", err)
	}
}

// askAsNobody asks in a process without rights and returns what it is told.
func askAsNobody(t *testing.T, path string) string {
	t.Helper()
	dir := shortDir(t)
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(dir, "ask") // the test's own program is where others cannot get
	if err := errors.Join(os.WriteFile(own, program, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	const nobody = 65534
	child := exec.Command(own)
	child.Dir = "/"
	child.Env = []string{askVariable + "=" + path}
	child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := child.CombinedOutput()
	if err != nil {
		t.Fatalf("ask: %v\n%s", err, out)
	}
	return strings.TrimSpace(string(out))
}
