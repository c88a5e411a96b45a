// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Package fake has scriptable sources for tests: set the fields, or call Set where other goroutines read, and the
// next tick sees them.
package fake

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/vgpud/vgpud/agent/source"
)

// GPUs answers with List, or with Err.
type GPUs struct {
	mu   sync.Mutex
	list []source.GPU
	err  error
}

// Set replaces the cards and clears the error.
func (g *GPUs) Set(list ...source.GPU) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.list, g.err = slices.Clone(list), nil
}

// Fail makes every read fail until the next Set.
func (g *GPUs) Fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// GPUs implements source.GPUs.
func (g *GPUs) GPUs(context.Context) ([]source.GPU, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.list), g.err
}

// Ledger answers with what was set.
type Ledger struct {
	Records []source.Allocation
	Rows    []source.Book
	Err     error
}

// Allocations implements source.Ledger.
func (l *Ledger) Allocations() ([]source.Allocation, error) { return slices.Clone(l.Records), l.Err }

// Books implements source.Ledger.
func (l *Ledger) Books() ([]source.Book, error) { return slices.Clone(l.Rows), l.Err }

// Pages answers from ByKey; an allocation that is not in it has its pages missing.
type Pages struct {
	ByKey map[string]source.PageUsage
	Err   error
}

// Usage implements source.Pages.
func (p *Pages) Usage(keys []string) ([]source.PageUsage, error) {
	if p.Err != nil {
		return nil, p.Err
	}
	usages := make([]source.PageUsage, 0, len(keys))
	for _, key := range keys {
		usage, known := p.ByKey[key]
		if !known {
			usage = source.PageUsage{State: source.PagesMissing, Reason: "no such page"}
		}
		usage.Key = key
		usages = append(usages, usage)
	}
	return usages, nil
}

// Procs answers with what was set.
type Procs struct {
	Running map[string]int // processes by pod UID
	Ended   map[source.ProcessID]bool
	Err     error
}

// Pods implements source.Procs.
func (p *Procs) Pods() (map[string]int, error) { return maps.Clone(p.Running), p.Err }

// Gone implements source.Procs.
func (p *Procs) Gone([]source.ProcessID) (map[source.ProcessID]bool, error) { return p.Ended, p.Err }

// Kubelet answers with what was set.
type Kubelet struct {
	mu      sync.Mutex
	holders []source.Holder
	pods    map[string]bool
	podsErr error
	err     error
}

// Set replaces the holders and clears the error.
func (k *Kubelet) Set(holders ...source.Holder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.holders, k.err = slices.Clone(holders), nil
}

// Fail makes every read fail until the next Set.
func (k *Kubelet) Fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

// SetPods replaces the pods that have a directory and clears the error of FailPods.
func (k *Kubelet) SetPods(uids ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods, k.podsErr = map[string]bool{}, nil
	for _, uid := range uids {
		k.pods[uid] = true
	}
}

// FailPods makes the pods unknown until the next SetPods.
func (k *Kubelet) FailPods(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods, k.podsErr = nil, err
}

// Pods implements source.Kubelet.
func (k *Kubelet) Pods(context.Context) (map[string]bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.pods), k.podsErr
}

// Holders implements source.Kubelet.
func (k *Kubelet) Holders(context.Context) (source.Holders, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return source.Holders{List: slices.Clone(k.holders), Pods: maps.Clone(k.pods), PodsError: k.podsErr}, k.err
}
