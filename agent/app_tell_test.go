// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Tests of what the cluster is told. events has those of how.

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	eventsv1 "k8s.io/api/events/v1"

	"github.com/vgpud/vgpud/agent/decide"
)

// noticeBoard is an API server that takes events.
type noticeBoard struct {
	mu     sync.Mutex
	notes  map[string]string // the last one, by reason
	events []eventsv1.Event  // all that were posted
}

func (b *noticeBoard) note(reason string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.notes[reason]
}

// of lists the events of a reason.
func (b *noticeBoard) of(reason string) (list []eventsv1.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, event := range b.events {
		if event.Reason == reason {
			list = append(list, event)
		}
	}
	return list
}

// openBoard starts one, and returns the access to it.
func openBoard(t *testing.T) (board *noticeBoard, kubeconfig string) {
	t.Helper()
	board = &noticeBoard{notes: map[string]string{}}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		text, err := io.ReadAll(in.Body)
		var event eventsv1.Event
		if err == nil {
			err = json.Unmarshal(text, &event)
		}
		if err != nil {
			t.Error(err)
		}
		board.mu.Lock()
		board.notes[event.Reason] = event.Note
		if in.Method == http.MethodPost {
			board.events = append(board.events, event)
		}
		board.mu.Unlock()
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusCreated)
		_, _ = out.Write(text)
	}))
	t.Cleanup(server.Close)
	return board, accessTo(t, server.URL)
}

// accessTo is a kubeconfig for an API server.
func accessTo(t *testing.T, url string) (kubeconfig string) {
	t.Helper()
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", url)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// Events, metrics and log say that a contended card's slices are withdrawn where they are, and only there.
func TestContentionIsToldWithWhatFollows(t *testing.T) {
	for _, one := range []struct {
		name, mode string
		slices     int
		gone       bool
	}{
		{"free slices go", contentionHealth, 10, true},
		{"its only slice is allocated", contentionHealth, 1, false},
		{"reported alone", contentionReport, 10, false},
	} {
		t.Run(one.name, func(t *testing.T) {
			n, q, _ := newWatchedNode(t)
			board, kubeconfig := openBoard(t)
			n.config.Events, n.config.Kubeconfig, n.config.NodeName = wordAuto, kubeconfig, "node-1"
			n.config.Contention, n.config.SlicesPerGPU = one.mode, one.slices
			agent := n.start()
			agent.allocatable(2 * one.slices)
			_, devices := agent.allocate("victim", 1)
			card, _, _ := strings.Cut(devices[0], "::")
			q.Set(card, "")
			agent.shows(1, "vgpud_gpu_contended", "gpu_uuid="+card)
			told := func(reason, gone string) {
				t.Helper()
				agent.eventually("an event "+reason, func() bool { return board.note(reason) != "" })
				if note := board.note(reason); strings.Contains(note, gone) != one.gone {
					t.Errorf("withdrawn %t, and told: %s", one.gone, note)
				}
			}
			told("GPUContended", "not offered meanwhile")
			if one.mode == contentionHealth {
				agent.shows(map[bool]float64{true: 0, false: 1}[one.gone], "vgpud_gpu_healthy", "gpu_uuid="+card, "reason="+decide.ReasonContended)
				if log := agent.log.String(); strings.Contains(log, "GPU is withdrawn") != one.gone ||
					strings.Contains(log, "none of its slices is withdrawn") == one.gone {
					t.Errorf("withdrawn %t, and logged:\n%s", one.gone, log)
				}
			}
			q.Set("", "")
			told("GPUContentionOver", "offered again")
		})
	}
}

// Contention is told once to the node and once to the victim's pod, with the figures of its evidence.
func TestContentionIsOneEventEach(t *testing.T) {
	n, q, _ := newWatchedNode(t)
	board, kubeconfig := openBoard(t)
	n.config.Events, n.config.Kubeconfig, n.config.NodeName = wordAuto, kubeconfig, "node-1"
	agent := n.start()
	agent.allocatable(20)
	_, devices := agent.allocate("victim", 1)
	agent.eventually("the pod is known", func() bool {
		_, known := n.value("vgpud_slice_info", "pod=victim")
		return known
	})
	card, _, _ := strings.Cut(devices[0], "::")
	q.Set(card, "")
	for reason, about := range map[string]string{"GPUContended": "node-1", "GPUSlowedByNeighbour": "victim"} {
		agent.eventually("an event "+reason, func() bool { return len(board.of(reason)) > 0 })
		event := board.of(reason)[0]
		if event.Regarding.Name != about || event.Type != "Warning" {
			t.Errorf("%s regards %+v, type %s", reason, event.Regarding, event.Type)
		}
		for _, figure := range []string{card, "md/victim/gmx", "lost 60 %", "50 % in 60 s", "pcie_rx", "95 %", "100 samples"} {
			if !strings.Contains(event.Note, figure) {
				t.Errorf("%s lacks %q: %s", reason, figure, event.Note)
			}
		}
	}
	agent.nextTick()
	agent.nextTick()
	for _, reason := range []string{"GPUContended", "GPUSlowedByNeighbour"} {
		if list := board.of(reason); len(list) != 1 {
			t.Errorf("%s was told %d times", reason, len(list))
		}
	}
}

// An API server that takes what it is sent and never answers holds up no loop, and not the end.
func TestHangingAPIServerHoldsNothingUp(t *testing.T) {
	n, q, _ := newWatchedNode(t)
	asked, release := make(chan struct{}, 100), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, in *http.Request) {
		_, _ = io.Copy(io.Discard, in.Body) // else it does not see that the client is gone
		asked <- struct{}{}
		select {
		case <-release:
		case <-in.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(release) })
	n.config.Events, n.config.Kubeconfig = wordAuto, accessTo(t, server.URL)
	agent := n.start()
	agent.allocatable(20)
	_, devices := agent.allocate("victim", 1)
	card, _, _ := strings.Cut(devices[0], "::")
	q.Set(card, "")
	agent.eventually("the server is asked", func() bool { return len(asked) > 0 })
	agent.shows(0, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason="+decide.ReasonContended)
	looks, _ := n.value("vgpud_contention_looks_total")
	rounds, _ := n.value("vgpud_compute_rounds_total")
	agent.eventually("ticks, looks and rounds go on", func() bool {
		now, _ := n.value("vgpud_contention_looks_total")
		later, _ := n.value("vgpud_compute_rounds_total")
		return now > looks && later > rounds
	})
	agent.allocate("another", 1)
	q.Set("", "")
	agent.shows(1, "vgpud_gpu_healthy", "gpu_uuid="+card, "reason=ok")
	if sent, known := n.value("vgpud_events_total", "result=sent"); known && sent != 0 {
		t.Errorf("%v events were taken", sent)
	}
	agent.stop()
}
