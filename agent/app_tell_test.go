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
	mu    sync.Mutex
	notes map[string]string // the last one, by reason
}

func (b *noticeBoard) note(reason string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.notes[reason]
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
		board.mu.Unlock()
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(http.StatusCreated)
		_, _ = out.Write(text)
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {}}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return board, kubeconfig
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
