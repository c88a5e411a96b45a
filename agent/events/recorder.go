// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package events

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	queueLength = 128
	// New events come in bursts of at most newBurst, and then one in newEvery. What is beyond is dropped, and counted.
	newBurst = 30
	newEvery = 10 * time.Second
	// mostTries bounds how long one event is tried for: about four minutes by retries.
	mostTries = 10
)

// retries is how long to wait between tries.
var retries = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: mostTries, Cap: time.Minute}

// Config says where events go.
type Config struct {
	Node       string // name of this node in the cluster
	Kubeconfig string // file; "": as a pod
	Log        *slog.Logger
}

// Status is how it goes, for the metrics.
type Status struct {
	Sent    uint64 // events and counts of series that the API server took
	Dropped uint64 // events that nobody will see: too many, refused, or the API server was away for too long
}

// Recorder sends events. Offer may be called by any goroutine; Run is called once.
type Recorder struct {
	api     *api
	log     *slog.Logger
	queue   chan queued
	limiter flowcontrol.RateLimiter
	now     func() time.Time
	retries wait.Backoff

	sent, dropped atomic.Uint64
	down          atomic.Bool
	book          seriesBook      // of Run's goroutine, as what follows
	complained    map[string]bool // refusals that were logged, by reason
}

// queued is an event and when it was offered.
type queued struct {
	event Event
	at    time.Time
}

// New makes a recorder. It connects to nothing yet. ErrNoCluster: there is no API server to tell.
func New(config Config) (*Recorder, error) {
	if config.Node == "" {
		return nil, errors.New("make event recorder: the name of the node is not known")
	}
	api, err := newAPI(config.Kubeconfig, config.Node)
	if err != nil {
		return nil, err
	}
	return &Recorder{api: api, log: config.Log.With("component", "events"), queue: make(chan queued, queueLength),
		limiter: flowcontrol.NewTokenBucketRateLimiter(float32(1/newEvery.Seconds()), newBurst), now: time.Now, retries: retries,
		book: seriesBook{}, complained: map[string]bool{}}, nil
}

// Offer queues events. It never waits; what does not fit is dropped.
func (r *Recorder) Offer(events ...Event) {
	for _, event := range events {
		select {
		case r.queue <- queued{event, r.now()}:
		default:
			r.dropped.Add(1)
		}
	}
}

// Status returns the counters.
func (r *Recorder) Status() Status {
	return Status{Sent: r.sent.Load(), Dropped: r.dropped.Load()}
}

// Run sends until ctx ends. What is queued then is lost: it is about an agent that is no longer there.
func (r *Recorder) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(r.tellCounts(ctx))
		select {
		case <-ctx.Done():
			return nil
		case next := <-r.queue:
			r.tell(ctx, next)
		case <-timer.C:
		}
	}
}

// tell sends a new event, or counts it where it is one of a series.
func (r *Recorder) tell(ctx context.Context, next queued) {
	namespace, name := r.api.place(next.event.Regarding, next.at)
	s, isNew := r.book.note(next.event, namespace, name, next.at)
	if !isNew {
		return // tellCounts
	}
	if !r.limiter.TryAccept() {
		r.drop(next.event, s)
		if r.first("too-many") {
			r.log.Warn("more events than are told; what is too much is dropped", "at_once", newBurst, "then_one_in", newEvery)
		}
		return
	}
	if r.send(ctx, func() error { return r.api.create(ctx, next.event, s) }) {
		s.told, s.toldAt = 1, r.now()
		return
	}
	r.drop(next.event, s)
}

// drop forgets a series that the API server does not know, so that the next one of it is told.
func (r *Recorder) drop(event Event, s *series) {
	if r.book[event.key()] == s {
		delete(r.book, event.key())
	}
	r.dropped.Add(1)
}

// tellCounts sends the counts that are due, and returns when to look again.
func (r *Recorder) tellCounts(ctx context.Context) time.Duration {
	list, _ := r.book.due(r.now())
	for _, s := range list {
		count := s.count
		s.toldAt = r.now()
		if r.send(ctx, func() error { return r.api.count(ctx, s) }) {
			s.told = count
		} else {
			s.told = s.count // the event has gone, or nobody may count it
		}
	}
	if _, next := r.book.due(r.now()); next > 0 {
		return next
	}
	return time.Hour
}

// send tries until the API server has answered. It says whether the request was taken.
func (r *Recorder) send(ctx context.Context, request func() error) bool {
	backoff := r.retries
	for try := 1; ; try++ {
		err := request()
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil:
			r.answered()
			r.sent.Add(1)
			return true
		case isLost(err):
			r.answered()
			r.refused(err)
			return false
		}
		if !r.down.Swap(true) {
			r.log.Warn("the API server takes no events; they are kept for a while, and tried again", "error", err)
		}
		if try == mostTries {
			return false
		}
		pause := backoff.Step()
		if seconds, asked := apierrors.SuggestsClientDelay(err); asked {
			pause = max(pause, min(time.Duration(seconds)*time.Second, r.retries.Cap))
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

// answered notes that the API server is there.
func (r *Recorder) answered() {
	if r.down.Swap(false) {
		r.log.Info("the API server takes events again", "dropped", r.dropped.Load())
	}
}

// refused says once for each reason why an event is not taken.
func (r *Recorder) refused(err error) {
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause), apierrors.IsNotFound(err):
		r.log.Debug("nobody is left to tell", "error", err) // the pod goes with its namespace, or the event was too old
	case apierrors.IsForbidden(err):
		if r.first("forbidden") {
			r.log.Warn("the agent may not create events; deploy/rbac.yaml has the rights", "error", err)
		}
	default:
		if r.first(string(apierrors.ReasonForError(err))) {
			r.log.Warn("an event is refused", "error", err)
		}
	}
}

// first says whether nothing was logged for this reason yet.
func (r *Recorder) first(reason string) bool {
	before := r.complained[reason]
	r.complained[reason] = true
	return !before
}
