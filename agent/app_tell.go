// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_tell.go tells the cluster what its log and metrics say too: Events about contention and findings. Nothing waits for
// the API server.

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/vgpud/vgpud/agent/decide"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/decide/witness"
	"github.com/vgpud/vgpud/agent/events"
	"github.com/vgpud/vgpud/agent/metrics"
)

// openEvents makes the recorder of Events, unless they are off. Without an API server there is none, and that is said.
func (a *app) openEvents() {
	if a.config.Events != wordAuto {
		return
	}
	recorder, err := events.New(events.Config{Node: a.nodeName(), Kubeconfig: a.config.Kubeconfig, Log: a.baseLog})
	switch {
	case errors.Is(err, events.ErrNoCluster):
		a.log.Info("no Kubernetes Events: there is no API server to tell; log and metrics say the same")
	case err != nil:
		a.log.Warn("no Kubernetes Events; log and metrics say the same", "error", err)
	default:
		a.events = recorder
	}
}

// nodeName is the node's name in the cluster.
func (a *app) nodeName() string {
	if a.config.NodeName != "" {
		return a.config.NodeName
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// untoldTransitions takes those that no tick has told of. Those verdicts that are read afterwards have them.
func (a *app) untoldTransitions() []health.Transition {
	if a.watch == nil {
		return nil
	}
	return a.watch.TakeUntold()
}

// tellTransitions tells of cards that became contended or recovered, with what followed: slices are withdrawn only where
// the fuse lets any go and the card has no other fault. before is what the last tick decided.
func (a *app) tellTransitions(list []health.Transition, decisions, before decide.Decisions) {
	for _, transition := range list {
		from := decisions
		if transition.Kind == health.TransitionRecovered {
			from = before
		}
		a.tellContention(transition, withdrawn(from, transition.UUID) > 0)
	}
}

// withdrawn is how many slices of a card may be withdrawn for contention.
func withdrawn(decisions decide.Decisions, uuid string) int {
	for _, gpu := range decisions.GPUs {
		if gpu.UUID == uuid {
			return gpu.Withdraw
		}
	}
	return 0
}

// tellContention tells of a card that became contended or recovered.
func (a *app) tellContention(transition health.Transition, withdrawn bool) {
	begins := transition.Kind == health.TransitionContended
	if a.events == nil || !begins && transition.Kind != health.TransitionRecovered {
		return
	}
	found := transition.Evidence
	told := events.Contention{GPU: a.gpuName(transition.UUID), UUID: transition.UUID, Contended: begins, Resource: string(found.Resource),
		Victim: a.tenant(found.Victim), Confidence: found.Confidence, Avg10: found.Avg10, Avg60: found.Avg60,
		DeviceRatio: found.DeviceRatio, Samples: found.Samples, Withdrawn: withdrawn}
	if found.Antagonist != "" {
		told.Antagonist = a.tenant(found.Antagonist)
	}
	a.events.Offer(told.Events()...)
}

// tellFinding tells of what the witness found, and of what has been done about it. Any goroutine may call it.
func (a *app) tellFinding(finding witness.Finding, done witness.Action) {
	if a.events == nil {
		return
	}
	container := finding.ContainerName
	if container == "" {
		container = finding.ContainerID
	}
	told := events.Finding{Kind: string(finding.Kind), Command: finding.Command, Detail: finding.Detail, Done: string(done),
		Tenant: events.Tenant{Namespace: finding.Namespace, Pod: finding.Pod, UID: finding.PodUID, Container: container, Allocation: finding.Key}}
	if finding.PID > 0 {
		told.PIDs = []int{finding.PID}
	}
	a.events.Offer(told.Event())
}

// tenant is the container of an allocation, as far as it is known.
func (a *app) tenant(key string) events.Tenant {
	record, held := a.books.Record(key)
	if !held || record.Pod == nil {
		return events.Tenant{Allocation: key}
	}
	return events.Tenant{Namespace: record.Pod.Namespace, Pod: record.Pod.Pod, UID: record.Pod.PodUID, Container: record.Pod.Container, Allocation: key}
}

// gpuName is a card for people.
func (a *app) gpuName(uuid string) string {
	if last := a.ticked.Load(); last != nil {
		for _, gpu := range last.snapshot.GPUs {
			if gpu.UUID == uuid {
				return fmt.Sprintf("GPU %d (%s)", gpu.Index, uuid)
			}
		}
	}
	return "GPU " + uuid
}

// eventsView is how Events go, for the metrics.
func (a *app) eventsView() metrics.Events {
	if a.events == nil {
		return metrics.Events{}
	}
	status := a.events.Status()
	return metrics.Events{On: true, Sent: status.Sent, Dropped: status.Dropped}
}
