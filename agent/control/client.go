// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"

	"golang.org/x/sys/unix"
)

// DefaultPath is where the agent's socket is unless it is told otherwise.
const DefaultPath = "/run/vgpud/vgpud.sock"

// What can be wrong with asking; errors of Client wrap one of them, ErrStarting or ErrNotFrozen where it is so.
var (
	ErrNoAgent   = errors.New("no agent answers")
	ErrForbidden = errors.New("only root may ask the agent")
	ErrVersion   = errors.New("the agent is newer than this program")
)

// mostViewBytes bounds what is read of an answer.
const mostViewBytes = 64 << 20

// Client asks an agent. It may be used by several goroutines. Its requests end with their context.
type Client struct {
	path string
	http http.Client
}

// NewClient makes a client of the agent whose socket is at path. It does not connect yet.
func NewClient(path string) *Client {
	c := &Client{path: path}
	c.http.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		MaxIdleConns: 1, DisableCompression: true,
	}
	return c
}

// Close gives idle connections up.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// View asks for the present view.
func (c *Client) View(ctx context.Context) (*View, error) {
	answer, err := c.do(ctx, http.MethodGet, viewPath, nil)
	if err != nil {
		return nil, err
	}
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(answer, &version); err != nil || version.Version < 1 {
		return nil, fmt.Errorf("read answer on %s: not a view of vgpud", c.path)
	}
	if version.Version > Version {
		return nil, fmt.Errorf("%w: its view is of version %d, and %d is known here; use the vgpud that runs as the agent",
			ErrVersion, version.Version, Version)
	}
	var view View
	if err := json.Unmarshal(answer, &view); err != nil {
		return nil, fmt.Errorf("read view: %w", err)
	}
	return &view, nil
}

// Thaw asks the agent to thaw containers.
func (c *Client) Thaw(ctx context.Context, request ThawRequest) (ThawReply, error) {
	if err := request.Validate(); err != nil {
		return ThawReply{}, err
	}
	body, err := json.Marshal(request)
	if err != nil {
		return ThawReply{}, fmt.Errorf("render request: %w", err)
	}
	answer, err := c.do(ctx, http.MethodPost, thawPath, body)
	if err != nil {
		return ThawReply{}, err
	}
	var reply ThawReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return ThawReply{}, fmt.Errorf("read answer: %w", err)
	}
	return reply, nil
}

// do sends one request and returns the body of its answer.
func (c *Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://vgpud"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, c.explain(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, mostViewBytes+1))
	if err != nil {
		return nil, c.explain(err)
	}
	if len(answer) > mostViewBytes {
		return nil, fmt.Errorf("the answer on %s has more than %d bytes", c.path, mostViewBytes)
	}
	if response.StatusCode == http.StatusOK {
		return answer, nil
	}
	return nil, refusal(response.StatusCode, answer, c.path)
}

// refusal is the error of an answer that is none.
func refusal(code int, answer []byte, path string) error {
	var said fault
	if err := json.Unmarshal(answer, &said); err != nil || said.Error == "" {
		return fmt.Errorf("the answer on %s is %d and not of vgpud's", path, code)
	}
	switch code {
	case http.StatusServiceUnavailable:
		return &saidError{said.Error, ErrStarting}
	case http.StatusNotFound:
		return &saidError{said.Error, ErrNotFrozen}
	}
	return errors.New(said.Error)
}

// saidError is what the agent said, and which error it stands for.
type saidError struct {
	text string
	is   error
}

func (e *saidError) Error() string { return e.text }
func (e *saidError) Unwrap() error { return e.is }

// explain says what to do about a connection that failed.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w on %s: it is started with `vgpud run`; one with another --control-socket is named with --socket", ErrNoAgent, c.path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w on %s: try sudo", ErrForbidden, c.path)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %s is too long for a socket's path", ErrNoAgent, c.path)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w on %s in time: it is stopped, or the machine is very busy", ErrNoAgent, c.path)
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return fmt.Errorf("%w on %s: it ended meanwhile", ErrNoAgent, c.path)
	}
	return fmt.Errorf("ask agent: %w", err)
}
