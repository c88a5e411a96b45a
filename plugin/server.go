// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// The server: what is built once at start, and the state that outlives a registration.

package plugin

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// Server offers the slices of this node under one resource name. Run may be called once.
type Server struct {
	cfg   Config
	books *ledger.Ledger
	inv   *Inventory
	pages Pages
	log   *slog.Logger

	mu         sync.Mutex // guards what follows; nothing else is taken under it
	status     Status
	complaints map[string]string // by reason of withdrawal: what was last logged
}

// Status is what the metrics say of the plugin.
type Status struct {
	Registered           bool // the kubelet has our list stream open
	Registrations        uint64
	RegistrationFailures uint64
	Allocations          uint64
	AllocationFailures   uint64
	AllocateDurations    Durations // of every answer to Allocate, refusals included
	StartRefusals        uint64    // PreStartContainer calls that failed
}

// New checks the configuration and builds a server with an empty inventory.
func New(cfg Config, books *ledger.Ledger, pages Pages, log *slog.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.Timing = cfg.Timing.withDefaults()
	return &Server{
		cfg: cfg, books: books, inv: NewInventory(books), pages: pages, complaints: map[string]string{},
		log: log.With("component", "plugin", "resource", cfg.ResourceName),
	}, nil
}

// Update tells the plugin, and the ledger, which GPUs there are and how they are. It is called before Run and on
// every tick; only a change reaches the kubelet. An error says which GPUs are left out and why; see Inventory.Update.
func (s *Server) Update(gpus []GPU) error { return s.inv.Update(gpus) }

// Slices returns the slices as the kubelet is told about them now.
func (s *Server) Slices() []Slice {
	listed, _ := s.inv.Slices()
	return listed
}

// Status returns the counters.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Server) count(change func(*Status)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.status)
}

// prepare checks what has to be right before anything is offered, and brings back pages that a reboot took.
func (s *Server) prepare() error {
	if err := CheckLibrary(s.cfg.LibraryDir, s.cfg.library()); err != nil {
		return fmt.Errorf("offer no slices: %w", err)
	}
	s.checkCDI()
	for _, rec := range s.books.Snapshot() {
		if err := s.pages.Restore(rec); err != nil {
			// The allocation cannot start again until it is put right (PreStartContainer says so); others can.
			s.log.Error("pages of an allocation could not be restored", "allocation", rec.Key, "error", err)
		}
	}
	return nil
}

// checkNode looks whether new containers could load the library and be given pages, and withdraws free slices if not.
func (s *Server) checkNode() error {
	libraryErr := CheckLibrary(s.cfg.LibraryDir, s.cfg.library())
	pagesErr := s.pages.Ready()
	reason := ""
	switch {
	case libraryErr != nil:
		reason = ReasonLibrary
	case pagesErr != nil:
		reason = ReasonPages
	}
	s.inv.setNodeFault(reason)
	s.complain(ReasonLibrary, libraryErr)
	s.complain(ReasonPages, pagesErr)
	return errors.Join(libraryErr, pagesErr)
}

// checkCDI looks whether the container runtime will find the GPUs, and withdraws free slices of those it will not.
func (s *Server) checkCDI() {
	if s.cfg.Strategy != StrategyCDI {
		return
	}
	missing, err := unresolvedCDI(s.cfg.CDIKind, s.inv.uuids(), s.cfg.CDISpecDirs)
	s.inv.setUnresolved(missing)
	s.complain(ReasonCDI, err)
}

// complain logs why free slices are withdrawn, once per cause, and that they are back.
func (s *Server) complain(reason string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	s.mu.Lock()
	before := s.complaints[reason]
	s.complaints[reason] = text
	s.mu.Unlock()
	switch text {
	case before:
	case "":
		s.log.Info("withdrawn slices are offered again", "reason", reason)
	default:
		s.log.Error("free slices are withdrawn", "reason", reason, "error", err)
	}
}

// Reasons that hold for every free slice of the node.
const (
	ReasonLibrary = "library-unusable" // the installed library cannot be used
	ReasonPages   = "pages-unusable"   // there is no place for pages
)

// nodeCheckEvery is how often the installed library and the CDI specs are checked while nothing happens.
const nodeCheckEvery = 10 * time.Second
