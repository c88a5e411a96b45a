// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// Paths of the requests.
const (
	viewPath = "/v1/view"
	thawPath = "/v1/thaw"
)

// Bounds on what clients can take.
const (
	mostConnections = 32
	mostThawBytes   = 64 << 10
	headPatience    = 5 * time.Second
	requestPatience = 10 * time.Second // to read a request, and again to write the answer; profiles get their time on top
	idlePatience    = time.Minute
	closePatience   = time.Second
	// viewAge is for how long one view answers everybody, so that any number of clients costs no more than one.
	viewAge = 200 * time.Millisecond
)

// ErrNotFrozen is wrapped by Config.Thaw's errors when there is nothing of that name to thaw.
var ErrNotFrozen = errors.New("not frozen")

// ErrStarting is what a client gets until there is a view.
var ErrStarting = errors.New("the agent is starting and has looked at nothing yet")

// ThawRequest names what is to be thawed: exactly one of its fields is set.
type ThawRequest struct {
	Container  string `json:"container,omitempty"`  // id, or the only one that begins so
	Allocation string `json:"allocation,omitempty"` // key
	All        bool   `json:"all,omitempty"`
}

// Validate says what is wrong with the request.
func (r ThawRequest) Validate() error {
	named := 0
	for _, is := range []bool{r.Container != "", r.Allocation != "", r.All} {
		if is {
			named++
		}
	}
	if named != 1 {
		return errors.New("name one container, one allocation, or all")
	}
	return nil
}

// ThawReply says what was thawed.
type ThawReply struct {
	Containers []string `json:"containers"` // ids
}

// fault is the body of an answer that is none.
type fault struct {
	Error string `json:"error"`
}

// Config is what a server needs of the agent.
type Config struct {
	Path string // of the socket
	// View makes the present view; nil: there is none yet. It is called when somebody asks, at most once in viewAge and
	// never twice at a time, on a goroutine of the server's. What it returns is not changed any more.
	View func() *View
	// Thaw thaws containers; it may be called several times at once. nil: there is nothing that could be frozen.
	Thaw func(context.Context, ThawRequest) (ThawReply, error)
	Log  *slog.Logger
}

// Server answers on the socket. Listen is called once, then Run once, then Close.
type Server struct {
	config Config
	http   *http.Server
	socket *socket

	mu     sync.Mutex // guards the answer below; held while it is made
	answer []byte
	made   time.Time
}

// New makes a server that does not listen yet.
func New(config Config) *Server {
	s := &Server{config: config}
	log := config.Log.With("component", "control")
	s.http = &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: headPatience, ReadTimeout: requestPatience, WriteTimeout: requestPatience,
		IdleTimeout: idlePatience, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s
}

// Listen puts the socket in place. It wraps ErrInUse when another agent has it.
func (s *Server) Listen() error {
	socket, err := listen(s.config.Path)
	if err != nil {
		return fmt.Errorf("make control socket %s: %w", s.config.Path, err)
	}
	s.socket = socket
	return nil
}

// Run answers until ctx ends; requests that are being answered then have a second.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		patience, cancel := context.WithTimeout(context.WithoutCancel(ctx), closePatience)
		defer cancel()
		if s.http.Shutdown(patience) != nil {
			_ = s.http.Close()
		}
	})
	defer stop()
	err := s.http.Serve(netutil.LimitListener(s.socket, mostConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve %s: %w", s.config.Path, err)
}

// Close ends what Run may have left and takes the socket away.
func (s *Server) Close() error {
	err := s.http.Close()
	if s.socket != nil {
		err = errors.Join(err, s.socket.remove())
		s.socket = nil
	}
	return err
}

func (s *Server) routes() *http.ServeMux {
	routes := http.NewServeMux()
	routes.HandleFunc("GET "+viewPath, s.serveView)
	routes.HandleFunc("POST "+thawPath, s.serveThaw)
	routes.HandleFunc("GET /debug/pprof/", pprof.Index)
	routes.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	routes.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	routes.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	routes.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	return routes
}

func (s *Server) serveView(out http.ResponseWriter, _ *http.Request) {
	answer, err := s.currentView()
	switch {
	case errors.Is(err, ErrStarting):
		writeFault(out, http.StatusServiceUnavailable, err)
	case err != nil:
		writeFault(out, http.StatusInternalServerError, err)
	default:
		out.Header().Set("Content-Type", "application/json")
		_, _ = out.Write(answer) // a client that has gone is its own matter
	}
}

// currentView is the view as JSON, at most viewAge old.
func (s *Server) currentView() ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer != nil && time.Since(s.made) < viewAge {
		return s.answer, nil
	}
	view := s.config.View()
	if view == nil {
		return nil, ErrStarting
	}
	answer, err := json.Marshal(view.withLists())
	if err != nil {
		return nil, fmt.Errorf("render view: %w", err)
	}
	s.answer, s.made = answer, time.Now()
	return answer, nil
}

func (s *Server) serveThaw(out http.ResponseWriter, in *http.Request) {
	var request ThawRequest
	decoder := json.NewDecoder(http.MaxBytesReader(out, in.Body, mostThawBytes))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&request)
	if err == nil {
		err = request.Validate()
	}
	if err != nil {
		writeFault(out, http.StatusBadRequest, fmt.Errorf("read request: %w", err))
		return
	}
	if s.config.Thaw == nil {
		writeFault(out, http.StatusNotFound, fmt.Errorf("%w: this agent freezes nothing", ErrNotFrozen))
		return
	}
	reply, err := s.config.Thaw(in.Context(), request)
	switch {
	case errors.Is(err, ErrNotFrozen):
		writeFault(out, http.StatusNotFound, err)
	case err != nil:
		writeFault(out, http.StatusInternalServerError, err)
	default:
		writeJSON(out, http.StatusOK, reply)
	}
}

func writeFault(out http.ResponseWriter, code int, err error) {
	writeJSON(out, code, fault{err.Error()})
}

func writeJSON(out http.ResponseWriter, code int, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		code, text = http.StatusInternalServerError, []byte(`{"error":"the answer cannot be rendered"}`)
	}
	out.Header().Set("Content-Type", "application/json")
	out.WriteHeader(code)
	_, _ = io.WriteString(out, string(text)+"\n")
}
