// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests against an API server that answers as it is told: what is sent, what is sent once, and what becomes of events while
// it is away or refuses. apiserver_test.go has a real one.

package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/vgpud/vgpud/internal/logtest"
)

// patience bounds what takes an instant on an idle machine.
const patience = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is one that the server got.
type request struct {
	method, path string
	event        eventsv1.Event // of a POST, or the patch
}

// server is an API server of events alone.
type server struct {
	*httptest.Server
	mu       sync.Mutex
	requests []request
	answer   func(request) int // status; 0: take it
}

func startServer(t *testing.T) *server {
	s := &server{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(out http.ResponseWriter, in *http.Request) {
	body, _ := io.ReadAll(in.Body)
	r := request{method: in.Method, path: in.URL.Path}
	if err := json.Unmarshal(body, &r.event); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	status := 0
	if s.answer != nil {
		status = s.answer(r)
	}
	s.requests = append(s.requests, r)
	out.Header().Set("Content-Type", "application/json")
	if status == 0 {
		r.event.Kind, r.event.APIVersion = "Event", "events.k8s.io/v1"
		_ = json.NewEncoder(out).Encode(r.event)
		return
	}
	reasons := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonAlreadyExists, 422: metav1.StatusReasonInvalid}
	out.WriteHeader(status)
	_ = json.NewEncoder(out).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(status), Reason: reasons[status], Message: "as told"})
}

func (s *server) answerWith(answer func(request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *server) got() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]request{}, s.requests...)
}

// kubeconfig is a file that names a server.
func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\nusers: [{name: u, user: {}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n", url)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// sending is a recorder that runs until the test ends, with a log that can be read.
type sending struct {
	*Recorder
	log logtest.Buffer
}

func record(t *testing.T, url string, prepare func(*Recorder)) *sending {
	t.Helper()
	s := &sending{}
	recorder, err := New(Config{Node: "n1", Kubeconfig: kubeconfig(t, url), Log: slog.New(slog.NewTextHandler(&s.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	s.Recorder = recorder
	recorder.retries.Duration, recorder.retries.Cap = time.Millisecond, 5*time.Millisecond
	if prepare != nil {
		prepare(recorder)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- recorder.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	return s
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", patience, what)
		}
	}
}

var (
	victim     = Tenant{Namespace: "ml", Pod: "train-7", UID: "uid-v", Container: "main", Allocation: "k1"}
	antagonist = Tenant{Namespace: "ml", Pod: "stream-0", UID: "uid-a", Container: "copy", Allocation: "k2"}
	contended  = Contention{GPU: "GPU 0 (GPU-0aaa)", UUID: "GPU-0aaa", Contended: true, Resource: "dram", Victim: victim, Antagonist: antagonist,
		Confidence: 0.93, Avg10: 0.41, Avg60: 0.33, DeviceRatio: 0.97, Samples: 812, Withdrawn: true}
)

func TestContentionIsToldToAllWhomItConcerns(t *testing.T) {
	server := startServer(t)
	r := record(t, server.URL, nil)
	r.Offer(contended.Events()...)
	over := contended
	over.Contended, over.Avg10, over.Avg60 = false, 0.02, 0.1
	r.Offer(over.Events()...)
	eventually(t, "four events", func() bool { return len(server.got()) == 4 })
	got := server.got()
	for i, want := range []struct{ path, reason, kind, name, uid, words string }{
		{"default", ReasonContended, "Warning", "n1", "n1", "GPU 0 (GPU-0aaa) is contended: ml/train-7/main lost 41 % of its time in 10 s and 33 % in 60 s to others on dram, " +
			"with the card at 97 % of what it can do (baseline of 812 samples); antagonist ml/stream-0/copy, confidence 0.93. Its free slices are not offered meanwhile."},
		{"ml", ReasonSlowed, "Warning", "train-7", "uid-v", "lost 41 % of its time"},
		{"ml", ReasonSlows, "Normal", "stream-0", "uid-a", "uses most of dram"},
		{"default", ReasonRecovered, "Normal", "n1", "n1", "lost 2 % of its time in 10 s and 10 % in 60 s. Its free slices are offered again."},
	} {
		e := got[i].event
		if got[i].method != http.MethodPost || got[i].path != "/apis/events.k8s.io/v1/namespaces/"+want.path+"/events" || e.Namespace != want.path {
			t.Errorf("%d: %s %s in %s", i, got[i].method, got[i].path, e.Namespace)
		}
		if e.Reason != want.reason || e.Type != want.kind || e.Regarding.Name != want.name || string(e.Regarding.UID) != want.uid || !strings.Contains(e.Note, want.words) {
			t.Errorf("%d: got %+v\nwant %+v", i, e, want)
		}
		if e.ReportingController != reportingName || e.ReportingInstance != "n1" || e.Action == "" || e.EventTime.IsZero() || e.Series != nil {
			t.Errorf("%d: %+v", i, e)
		}
		if strings.Contains(e.Note, "stream-0") && e.Regarding.Name == "train-7" {
			t.Errorf("%d: the victim's owner reads whose pod the other is: %s", i, e.Note)
		}
	}
	if related := got[0].event.Related; related == nil || related.Name != "train-7" || related.Kind != "Pod" {
		t.Errorf("related to %+v", related)
	}
	eventually(t, "counted", func() bool { return r.Status() == Status{Sent: 4} })
}

func TestFindings(t *testing.T) {
	for done, reason := range map[string]string{"report": ReasonBypass, "freeze": ReasonFroze, "kill": ReasonKilled} {
		e := Finding{Kind: "no-slot", Tenant: victim, PIDs: []int{7, 8}, Command: "a\x1b[2Jb", Detail: "calls the driver", Done: done}.Event()
		if e.Reason != reason || e.Regarding != (Object{"ml", "train-7", "uid-v"}) || e.Note != `no-slot by ml/train-7/main, pid 7 8 ("a\x1b[2Jb"): calls the driver` {
			t.Errorf("%s: %+v", done, e)
		}
	}
	unknown := Finding{Kind: "no-allocation", Tenant: Tenant{Container: "3f2a"}, Done: "report"}.Event()
	if unknown.Regarding != (Object{}) || unknown.Note != "no-allocation by container 3f2a" {
		t.Errorf("a container of no pod is told of %+v: %s", unknown.Regarding, unknown.Note)
	}
}

// TestWhatFlapsIsOneSeries has one card come and go many times: one event of each reason, and its count at most once a minute.
func TestWhatFlapsIsOneSeries(t *testing.T) {
	server := startServer(t)
	var mu sync.Mutex
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	pass := func(d time.Duration) { mu.Lock(); now = now.Add(d); mu.Unlock() }
	r := record(t, server.URL, func(r *Recorder) { r.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now } })
	event := Event{Reason: ReasonContended, Action: "Report", Note: "n", Subject: "GPU-0"}
	other := event
	other.Subject = "GPU-1"
	r.Offer(event, other) // at the same instant
	eventually(t, "an event for each card", func() bool { return r.Status().Sent == 2 })
	if a, b := server.got()[0].event.Name, server.got()[1].event.Name; a == b {
		t.Errorf("two events are called %s", a)
	}
	for range 19 {
		pass(time.Second)
		r.Offer(event)
	}
	eventually(t, "all taken", func() bool { return len(r.queue) == 0 })
	pass(seriesEvery)
	r.Offer(event)
	eventually(t, "a count", func() bool { return r.Status().Sent == 3 })
	patch := server.got()[2]
	if patch.method != http.MethodPatch || patch.event.Series == nil || patch.event.Series.Count < 20 {
		t.Errorf("%s %s: series %+v, want a count of 21, or of 20 where the last one came late", patch.method, patch.path, patch.event.Series)
	}
	if name := server.got()[0].event.Name; !strings.HasSuffix(patch.path, "/"+name) || !strings.HasPrefix(name, "n1.") {
		t.Errorf("the count of %s is at %s", name, patch.path)
	}
	pass(seriesSpan) // the series is over, and all of it is told
	r.Offer(event)
	eventually(t, "a new event with the figures of now", func() bool { got := server.got(); return got[len(got)-1].method == http.MethodPost && len(got) == 4 })
}

func TestAPIServerDown(t *testing.T) {
	server := startServer(t)
	server.answerWith(func(request) int { return http.StatusServiceUnavailable })
	r := record(t, server.URL, nil)
	began := time.Now()
	for i := range 3 * queueLength {
		r.Offer(Event{Reason: ReasonContended, Action: "Report", Subject: fmt.Sprint(i)})
	}
	if took := time.Since(began); took > patience/2 {
		t.Errorf("offering took %s while nobody takes events", took)
	}
	eventually(t, "tried again", func() bool { return len(server.got()) > 3 })
	if status := r.Status(); !r.down.Load() || status.Dropped < queueLength || status.Sent != 0 {
		t.Errorf("status %+v", status)
	}
	server.answerWith(nil)
	eventually(t, "sent what was kept", func() bool { return r.Status().Sent > 0 && !r.down.Load() })
	eventually(t, "log", func() bool { return strings.Contains(r.log.String(), "takes events again") })
	if log := r.log.String(); strings.Count(log, "takes no events") != 1 || strings.Count(log, "level=WARN") > 2 {
		t.Errorf("the log says it more than once:\n%s", log)
	}
}

func TestOneEventIsGivenUp(t *testing.T) {
	server := startServer(t)
	server.answerWith(func(r request) int {
		if r.event.Note == "bad luck" {
			return http.StatusInternalServerError
		}
		return 0
	})
	r := record(t, server.URL, nil)
	r.Offer(Event{Reason: "A", Action: "A", Note: "bad luck"}, Event{Reason: "B", Action: "B", Note: "good luck"})
	eventually(t, "the second event", func() bool { return r.Status() == Status{Sent: 1, Dropped: 1} })
	if tries := len(server.got()) - 1; tries != mostTries {
		t.Errorf("%d tries, want %d", tries, mostTries)
	}
}

func TestRefusals(t *testing.T) {
	for status, words := range map[int]string{http.StatusForbidden: "deploy/rbac.yaml", http.StatusUnprocessableEntity: "an event is refused"} {
		server := startServer(t)
		server.answerWith(func(request) int { return status })
		r := record(t, server.URL, nil)
		for i := range 5 {
			r.Offer(Event{Reason: "A", Action: "A", Subject: fmt.Sprint(i)})
		}
		eventually(t, "all dropped", func() bool { return r.Status() == Status{Dropped: 5} })
		if got := len(server.got()); got != 5 {
			t.Errorf("%d: %d requests for 5 events", status, got)
		}
		if log := r.log.String(); strings.Count(log, words) != 1 {
			t.Errorf("%d: %q is not in the log once:\n%s", status, words, log)
		}
	}
}

func TestLostAnswerIsNoSecondEvent(t *testing.T) {
	server := startServer(t)
	first := true
	server.answerWith(func(request) int {
		if first {
			first = false
			return http.StatusGatewayTimeout
		}
		return http.StatusConflict // it had arrived
	})
	r := record(t, server.URL, nil)
	r.Offer(Event{Reason: "A", Action: "A"})
	eventually(t, "sent", func() bool { return r.Status() == Status{Sent: 1} })
	if got := server.got(); got[0].event.Name != got[1].event.Name {
		t.Errorf("tried as %s and as %s", got[0].event.Name, got[1].event.Name)
	}
}

func TestFloodIsBounded(t *testing.T) {
	server := startServer(t)
	r := record(t, server.URL, nil)
	for i := range 2 * newBurst {
		r.Offer(Event{Reason: "A", Action: "A", Subject: fmt.Sprint(i)})
	}
	eventually(t, "all judged", func() bool { s := r.Status(); return s.Sent+s.Dropped == 2*newBurst })
	if sent := r.Status().Sent; sent < newBurst || sent > newBurst+uint64(patience/newEvery) {
		t.Errorf("%d of %d were sent", sent, 2*newBurst)
	}
}

func TestServerThatHangsIsLeft(t *testing.T) {
	block := make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
		select {
		case <-block:
		case <-in.Context().Done():
		}
	}))
	t.Cleanup(func() { close(block); hanging.Close() })
	r := record(t, hanging.URL, nil)
	r.Offer(Event{Reason: "A", Action: "A"}) // record's clean-up ends Run in time, or the test binary fails
}

func TestNew(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	log := slog.New(slog.DiscardHandler)
	if _, err := New(Config{Node: "n", Log: log}); !errors.Is(err, ErrNoCluster) {
		t.Errorf("outside a pod: %v", err)
	}
	if _, err := New(Config{Kubeconfig: kubeconfig(t, "http://127.0.0.1:1"), Log: log}); err == nil {
		t.Error("no node's name is no fault")
	}
	for _, text := range []string{"", "{", "apiVersion: v1\nkind: Config\n"} {
		path := filepath.Join(t.TempDir(), "bad")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(Config{Node: "n", Kubeconfig: path, Log: log}); err == nil {
			t.Errorf("kubeconfig %q is accepted", text)
		}
	}
	if _, err := New(Config{Node: "n", Kubeconfig: "/nowhere", Log: log}); err == nil {
		t.Error("a kubeconfig that is not there is accepted")
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{"a\nb\x1b": "a\ufffdb\ufffd", "\xff": "\ufffd", strings.Repeat("ä", 20): "ääää…", "abcdefghijk": "abcdefghijk"} {
		if got := printable(text, 11); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestBookIsBounded: series that nobody asks for any more go.
func TestBookIsBounded(t *testing.T) {
	book := seriesBook{}
	now := time.Now()
	for i := range 5 * mostSeries {
		s, _ := book.note(Event{Subject: fmt.Sprint(i)}, "", "", now.Add(time.Duration(i)))
		s.told = 1
	}
	if len(book) > mostSeries {
		t.Errorf("%d series are remembered", len(book))
	}
	if book.forget(now.Add(2 * seriesSpan)); len(book) != 0 {
		t.Errorf("%d series after twice their time", len(book))
	}
}
