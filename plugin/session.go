// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// A session: one socket under a name of its own, served until it is closed once and for all.

package plugin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// maxRequestBytes bounds a request: GetPreferredAllocation carries every available ID.
const maxRequestBytes = 16 << 20

// session serves the device plugin on one socket. The kubelet's calls about containers go to the Server.
type session struct {
	v1beta1.UnsafeDevicePluginServer // a call that a new API version adds is to be a compile error here
	*Server

	endpoint string // base name of the socket
	path     string
	id       fileID
	grpc     *grpc.Server

	stop    chan struct{} // closed by close: streams return
	watched chan struct{} // closed when the kubelet has opened ListAndWatch
	ended   chan struct{} // closed when the last open list stream has ended
	served  chan error    // what Serve returned

	mu      sync.Mutex
	streams int // open list streams
	closed  bool
	open    sync.WaitGroup // list handlers that have not returned
}

// openSession listens under a fresh name and serves.
func (s *Server) openSession() (*session, error) {
	endpoint, err := freshEndpoint(s.cfg.PluginDir(), s.cfg.ResourceName)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.cfg.PluginDir(), endpoint)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	listener.SetUnlinkOnClose(false) // the name may be another's by then: see removeSocket
	id, err := identify(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look at own socket: %w", err), listener.Close())
	}
	ses := &session{
		Server: s, endpoint: endpoint, path: path, id: id,
		grpc: grpc.NewServer(grpc.MaxRecvMsgSize(maxRequestBytes)),
		stop: make(chan struct{}), watched: make(chan struct{}), ended: make(chan struct{}), served: make(chan error, 1),
	}
	v1beta1.RegisterDevicePluginServer(ses.grpc, ses)
	go func() { ses.served <- ses.grpc.Serve(listener) }()
	return ses, nil
}

// ListAndWatch sends the list, and again whenever it has changed, until the stream or the session ends. A list
// equal to the last one is not sent: each message makes the kubelet rewrite its checkpoint.
func (ses *session) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if !ses.enter() {
		return errors.New("the plugin is stopping")
	}
	defer ses.leave()
	var sent []Slice
	for first := true; ; first = false {
		listed, changed := ses.inv.Slices()
		if first || !sameMessage(listed, sent) {
			if err := stream.Send(listMessage(listed)); err != nil {
				return fmt.Errorf("send device list: %w", err)
			}
			ses.log.Info("sent device list", "devices", len(listed), "healthy", countHealthy(listed))
			sent = listed
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		case <-ses.stop:
			return nil
		}
	}
}

// enter counts a list stream in, unless the session is closed.
func (ses *session) enter() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.closed {
		return false
	}
	ses.open.Add(1)
	ses.streams++
	select {
	case <-ses.watched:
	default:
		close(ses.watched)
	}
	return true
}

// leave counts it out again; the session has ended when none is left.
func (ses *session) leave() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.streams--
	if ses.streams == 0 {
		select {
		case <-ses.ended:
		default:
			close(ses.ended)
		}
	}
	ses.open.Done()
}

// selfCheck calls ourselves through the socket: the kubelet's dial inside Register will succeed.
func (ses *session) selfCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ses.cfg.Timing.SelfCheck)
	defer cancel()
	conn, err := dialUnix(ses.path)
	if err != nil {
		return fmt.Errorf("dial own socket: %w", err)
	}
	defer conn.Close()
	if _, err := v1beta1.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &v1beta1.Empty{}); err != nil {
		return fmt.Errorf("call own socket: %w", err)
	}
	return nil
}

// close ends the streams, waits for their handlers, lets running calls finish for a while, stops the server and
// removes the socket file if it still is ours.
func (ses *session) close() {
	ses.mu.Lock()
	ses.closed = true
	ses.mu.Unlock()
	close(ses.stop)
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		ses.open.Wait() // GracefulStop would wait for list streams for ever
		ses.grpc.GracefulStop()
	}()
	timer := time.NewTimer(ses.cfg.Timing.Stop)
	defer timer.Stop()
	select {
	case <-graceful:
	case <-timer.C:
		ses.grpc.Stop() // ends calls that still run, and a list that a stuck kubelet does not read
		<-graceful
	}
	if err := removeSocket(ses.path, ses.id); err != nil {
		ses.log.Warn("own socket file stays", "path", ses.path, "error", err)
	}
}

// removeSocket removes the file at path if it is the one that id names.
func removeSocket(path string, id fileID) error {
	now, err := identify(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if now != id {
		return nil // somebody else's by now
	}
	return os.Remove(path)
}

// dialUnix makes a client of a socket; the first call connects. No proxy of the environment has a say.
func dialUnix(path string) (*grpc.ClientConn, error) {
	target := url.URL{Scheme: "unix", Path: path}
	return grpc.NewClient(target.String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
}

// sameMessage reports whether two lists look the same on the wire, where reasons do not appear.
func sameMessage(a, b []Slice) bool {
	return slices.EqualFunc(a, b, func(x, y Slice) bool {
		return x.ID == y.ID && x.Healthy() == y.Healthy() && x.NUMA == y.NUMA
	})
}

func countHealthy(listed []Slice) int {
	n := 0
	for _, slice := range listed {
		if slice.Healthy() {
			n++
		}
	}
	return n
}

// newNonce returns nonceDigits random hexadecimal digits.
func newNonce() (string, error) {
	raw := make([]byte, nonceDigits/2)
	if _, err := rand.Read(raw); err != nil {
		return "", err
	}
	return hex.EncodeToString(raw), nil
}
