// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Registration: come up, stay registered through whatever the kubelet does, go down cleanly.

package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// briefly is how long a session has to last for its end to count as an event and not as one more failure.
const briefly = 10 * time.Second

// Run offers the slices until ctx ends, then stops in order and returns nil: running containers keep what they
// have. It returns an error only at the start, before anything was registered: when the library's files cannot be
// used, or the socket's path would be too long.
func (s *Server) Run(ctx context.Context) error {
	if _, err := endpointStem(s.cfg.PluginDir(), s.cfg.ResourceName); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	s.inv.Refresh()
	w := newWatcher(s.cfg.PluginDir(), s.cfg.Timing.Poll, s.log)
	defer w.close()
	s.stayRegistered(ctx, w)
	return nil
}

// stayRegistered runs one session after another.
func (s *Server) stayRegistered(ctx context.Context, w *watcher) {
	pause := s.cfg.Timing.BackoffFirst
	var last fileID
	for {
		kubelet, ok := s.awaitKubelet(ctx, w)
		if !ok {
			return
		}
		if kubelet != last {
			pause = s.cfg.Timing.BackoffFirst // a new kubelet owes us nothing
			last = kubelet
		}
		lasted := s.runSession(ctx, w, kubelet)
		if ctx.Err() != nil {
			return
		}
		if lasted >= briefly {
			pause = s.cfg.Timing.BackoffFirst
		}
		// The settling pause is never cut short; the back-off is, by a new kubelet.
		if !sleep(ctx, s.cfg.Timing.Settle) || !s.backOff(ctx, w, pause-s.cfg.Timing.Settle, kubelet) {
			return
		}
		pause = min(2*pause, s.cfg.Timing.BackoffMax)
	}
}

// runSession registers with the kubelet that the given socket belongs to, and keeps the session while it is good.
// It returns how long it was registered.
func (s *Server) runSession(ctx context.Context, w *watcher, kubelet fileID) time.Duration {
	ses, err := s.openSession()
	if err == nil {
		defer ses.close()
		err = ses.register(ctx)
	}
	if err != nil {
		if ctx.Err() == nil {
			s.count(func(st *Status) { st.RegistrationFailures++ })
			s.log.Error("registration failed", "error", err)
		}
		return 0
	}
	s.count(func(st *Status) { st.Registrations++; st.Registered = true })
	defer s.count(func(st *Status) { st.Registered = false })
	start := time.Now()
	s.log.Info("registered with the kubelet", "endpoint", ses.endpoint)
	reason := s.keep(ctx, w, ses, kubelet)
	s.log.Info("registration ends", "endpoint", ses.endpoint, "reason", reason)
	return time.Since(start)
}

// register makes the socket known to the kubelet and waits until the kubelet has opened the list stream: Register
// may succeed and the stream still be lost.
func (ses *session) register(ctx context.Context) error {
	removed, err := removeLeftovers(ses.cfg.PluginDir(), ses.cfg.ResourceName, ses.cfg.Timing.LeftoverAge, time.Now())
	if len(removed) > 0 || err != nil {
		ses.log.Info("removed sockets that nobody listens on", "names", removed, "error", err)
	}
	if err := ses.selfCheck(ctx); err != nil {
		return err
	}
	if err := ses.callRegister(ctx); err != nil {
		return err
	}
	timer := time.NewTimer(ses.cfg.Timing.Confirm)
	defer timer.Stop()
	select {
	case <-ses.watched:
		return nil
	case err := <-ses.served:
		return fmt.Errorf("serve: %w", err)
	case <-timer.C:
		return fmt.Errorf("the kubelet accepted %s and did not open its list within %s", ses.endpoint, ses.cfg.Timing.Confirm)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (ses *session) callRegister(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ses.cfg.Timing.Register)
	defer cancel()
	conn, err := dialUnix(ses.cfg.KubeletSocket())
	if err != nil {
		return fmt.Errorf("dial the kubelet: %w", err)
	}
	defer conn.Close()
	options, err := ses.GetDevicePluginOptions(ctx, nil)
	if err != nil {
		return err
	}
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: ses.endpoint, ResourceName: ses.cfg.ResourceName, Options: options,
	})
	if err != nil {
		return fmt.Errorf("register with the kubelet: %w", err)
	}
	return nil
}

// keep watches over a session and returns why it cannot go on.
func (s *Server) keep(ctx context.Context, w *watcher, ses *session, kubelet fileID) string {
	nextCheck := time.Now().Add(nodeCheckEvery)
	for {
		if reason := s.displaced(ses, kubelet); reason != "" {
			return reason
		}
		select {
		case <-ctx.Done():
			return "the agent stops"
		case <-ses.ended:
			return "the kubelet ended the list stream"
		case err := <-ses.served:
			return fmt.Sprintf("the server ended: %v", err)
		case <-w.look:
		}
		if time.Now().After(nextCheck) {
			_ = s.checkNode() // has withdrawn the slices and said why
			s.checkCDI()
			nextCheck = time.Now().Add(nodeCheckEvery)
		}
	}
}

// displaced compares the two sockets with what they were. While there is no kubelet.sock nothing could be done
// about it, and the open stream is worth keeping.
func (s *Server) displaced(ses *session, kubelet fileID) string {
	now, err := identify(s.cfg.KubeletSocket())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err == nil && now != kubelet:
		return "kubelet.sock is a new one"
	}
	if own, err := identify(ses.path); errors.Is(err, fs.ErrNotExist) || (err == nil && own != ses.id) {
		return "own socket file is gone"
	}
	return ""
}

// awaitKubelet waits for a kubelet.sock that accepts connections, and says which one it is.
func (s *Server) awaitKubelet(ctx context.Context, w *watcher) (fileID, bool) {
	waiting := false
	for {
		// Identity first: should the socket be replaced after this, the next look finds the difference.
		id, err := identify(s.cfg.KubeletSocket())
		if err == nil && ctx.Err() == nil && listens(s.cfg.KubeletSocket()) {
			return id, true
		}
		if !waiting {
			s.log.Info("waiting for the kubelet", "socket", s.cfg.KubeletSocket())
			waiting = true
		}
		select {
		case <-ctx.Done():
			return fileID{}, false
		case <-w.look:
		}
	}
}

// backOff pauses for d, or until kubelet.sock is another than the one given. It reports false when ctx ended.
func (s *Server) backOff(ctx context.Context, w *watcher, d time.Duration, kubelet fileID) bool {
	timer := time.NewTimer(max(d, 0))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-w.look:
			if now, err := identify(s.cfg.KubeletSocket()); err == nil && now != kubelet {
				return true
			}
		}
	}
}

// sleep pauses for d; it reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
