// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package events tells the cluster what an operator or a pod's owner should know: Kubernetes Events (events.k8s.io/v1) about
// the node and about pods. app.go offers them, and never waits: what the API server does, or does not, is the Recorder's own
// matter. event.go has the events and their words, recorder.go queues and sends, series.go keeps a thing that flaps from
// flooding, api.go speaks with the API server (client-go's dynamic client; the typed one would be 20 MB more).
//
// What is needed of the cluster is in deploy/rbac.yaml: to create and patch events, and nothing else. Events of a node are in
// the namespace default and name the node as its uid, as the kubelet's own are, so that `kubectl describe node` finds them.
package events
