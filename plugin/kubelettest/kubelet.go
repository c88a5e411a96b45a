// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package kubelettest is an in-process kubelet, as far as device plugins can tell: it listens on kubelet.sock,
// dials a plugin back inside Register, consumes ListAndWatch, chooses devices, calls Allocate and
// PreStartContainer, keeps the answers in a checkpoint file like the real one, and can serve the pod-resources
// API. Tests use it, and `vgpud demo`; nothing else does.
//
// A Kubelet lives in one directory that stands for /var/lib/kubelet. Keep the path short: a socket's path may
// have 107 characters.
//
//	k, err := kubelettest.Start(dir, kubelettest.Options{})
//	err = k.WaitAllocatable(ctx, "nvidia.com/gpu", 10)
//	a, err := k.Allocate(ctx, kubelettest.Pod{UID: "u1", Namespace: "default", Name: "p"}, kubelettest.Container{Name: "c"}, "nvidia.com/gpu", 1)
//	responses, err := k.StartContainer(ctx, "u1", "c")
//	k.Close()
//
// What it keeps from the real one, where plugins have been hurt by it: sockets in its directory are removed when
// it starts; a stream's end makes all devices of the resource unhealthy and is never followed by a redial; an
// answer is cached and used again at every container start; ordinary init containers hand their devices on; a pod that
// has ended stays in the checkpoint until the next allocation.
package kubelettest

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Model says which kubelet's bookkeeping of plugins is followed.
type Model int

const (
	// Model137 keys plugins by resource and socket path (kubelet 1.37): the latest of several is used, and a path
	// that registers again while its stream is open is lost for good.
	Model137 Model = iota
	// Model136 keys them by resource (1.36 and before): the end of an older stream stops the newer plugin too.
	Model136
)

// Options of a Kubelet. The zero value is a 1.37 kubelet without pod-resources.
type Options struct {
	Model Model
	// Observe, when set, is called with every protocol message in the order of this kubelet's view. It must not
	// call the Kubelet.
	Observe func(Message)
	// PodResources serves the pod-resources API on pod-resources/kubelet.sock.
	PodResources bool
	// IgnoreLists makes the kubelet accept registrations and never open the list stream: how a lost stream looks.
	IgnoreLists func(attempt int) bool
}

// Message is one protocol message as seen by the kubelet.
type Message struct {
	At       time.Time
	Method   string // "Register", "GetDevicePluginOptions", "ListAndWatch", "Allocate", ...
	Resource string
	Endpoint string        // the plugin's socket, base name
	Request  proto.Message // nil for further messages of a stream
	Response proto.Message // nil when Err is set
	Err      error
}

// List is one ListAndWatch message.
type List struct {
	Resource string
	Endpoint string
	Message  *v1beta1.ListAndWatchResponse
}

// listBuffer is how many lists may wait on the Lists channel; when it is full the oldest is dropped.
const listBuffer = 1024

// Kubelet is a running in-process kubelet. Its methods may be called from any goroutine.
type Kubelet struct {
	dir  string
	opts Options

	admission sync.Mutex // pods are admitted one at a time; taken before mu

	mu        sync.Mutex
	server    *grpc.Server // nil while stopped
	podServer *grpc.Server
	serving   sync.WaitGroup // goroutines of the servers and the list streams
	changed   chan struct{}  // closed and replaced at each change of state
	resources map[string]*resource
	attempts  int            // registrations tried
	registers map[string]int // registrations accepted, by resource
	pods      map[string]*podState
	lists     chan List
}

// Start runs a kubelet in dir, which is made if needed. As the real one does, it first removes every socket in the
// device-plugins directory.
func Start(dir string, opts Options) (*Kubelet, error) {
	k := &Kubelet{
		dir: dir, opts: opts, changed: make(chan struct{}), resources: map[string]*resource{},
		registers: map[string]int{}, pods: map[string]*podState{}, lists: make(chan List, listBuffer),
	}
	if err := k.Resume(); err != nil {
		return nil, err
	}
	return k, nil
}

// PluginDir is the directory of the device plugin sockets.
func (k *Kubelet) PluginDir() string { return filepath.Join(k.dir, "device-plugins") }

// podDir is the directory of one pod, or of all.
func (k *Kubelet) podDir(uid string) string { return filepath.Join(k.dir, "pods", uid) }

// SocketPath is where plugins register.
func (k *Kubelet) SocketPath() string { return filepath.Join(k.PluginDir(), "kubelet.sock") }

// PodResourcesPath is where the pod-resources API is served, if it is.
func (k *Kubelet) PodResourcesPath() string {
	return filepath.Join(k.dir, "pod-resources", "kubelet.sock")
}

// Resume starts a kubelet again that Stop has stopped: sockets are removed, kubelet.sock is made anew, and what
// was allocated before is still known (the real one reads it from the checkpoint).
func (k *Kubelet) Resume() error {
	if err := os.MkdirAll(k.PluginDir(), 0o750); err != nil {
		return fmt.Errorf("make plugin directory: %w", err)
	}
	if err := os.MkdirAll(k.podDir(""), 0o750); err != nil {
		return fmt.Errorf("make pods directory: %w", err)
	}
	if err := removeSockets(k.PluginDir()); err != nil {
		return fmt.Errorf("clean plugin directory: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.server != nil {
		return errors.New("the kubelet is running")
	}
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, &registration{kubelet: k})
	if err := k.serveLocked(server, k.SocketPath()); err != nil {
		return err
	}
	k.server = server
	if k.opts.PodResources {
		if err := k.startPodResourcesLocked(); err != nil {
			return err
		}
	}
	return k.writeCheckpointLocked()
}

// Stop ends the kubelet like a crash: connections break, the socket files stay, the checkpoint stays. Devices are
// forgotten until their plugin registers with the next one.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	servers := []*grpc.Server{k.server, k.podServer}
	k.server, k.podServer = nil, nil
	for _, r := range k.resources {
		r.closeAll()
	}
	k.resources = map[string]*resource{}
	k.notifyLocked()
	k.mu.Unlock()
	for _, server := range servers {
		if server != nil {
			server.Stop()
		}
	}
	k.serving.Wait()
}

// Restart is Stop, a pause, and Resume.
func (k *Kubelet) Restart(pause time.Duration) error {
	k.Stop()
	time.Sleep(pause)
	return k.Resume()
}

// Close ends the kubelet for good and removes its sockets.
func (k *Kubelet) Close() error {
	k.Stop()
	return errors.Join(removeIfThere(k.SocketPath()), removeIfThere(k.PodResourcesPath()))
}

// Lists yields every list message of every plugin, in order.
func (k *Kubelet) Lists() <-chan List { return k.lists }

// serveLocked listens at path and serves in the background.
func (k *Kubelet) serveLocked(server *grpc.Server, path string) error {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	k.serving.Go(func() {
		// Serve's error is the listener's end: Stop is the only cause here.
		_ = server.Serve(listener)
	})
	return nil
}

// notifyLocked wakes whoever waits for a state.
func (k *Kubelet) notifyLocked() {
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *Kubelet) observe(m Message) {
	if k.opts.Observe != nil {
		m.At = time.Now()
		k.opts.Observe(m)
	}
}

// pushList hands a list to the Lists channel; the oldest makes room. Only one goroutine per plugin pushes, and a
// reader may take one meanwhile, so it tries until it fits.
func (k *Kubelet) pushList(l List) {
	for {
		select {
		case k.lists <- l:
			return
		default:
		}
		select {
		case <-k.lists:
		default:
		}
	}
}

// removeSockets removes every socket of a directory, as kubelets since 1.31 do at start.
func removeSockets(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type()&fs.ModeSocket == 0 {
			continue
		}
		if err := removeIfThere(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
