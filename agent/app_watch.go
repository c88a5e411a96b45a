// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// app_watch.go joins the look at contention to the rest: what it is told, and by which policy it judges.

package main

import (
	"context"
	"path/filepath"

	"github.com/vgpud/vgpud/agent/amount"
	"github.com/vgpud/vgpud/agent/decide/health"
	"github.com/vgpud/vgpud/agent/source/pages"
	"github.com/vgpud/vgpud/agent/store"
	"github.com/vgpud/vgpud/agent/watch"
)

// newWatch makes the loop of an agent; it looks at nothing yet.
func (a *app) newWatch() *watch.Loop {
	traffics := pages.NewTraffic(a.pagesPath)
	a.onClose(func(context.Context) error { return traffics.Close() })
	config := watch.Config{Books: a.books, Traffics: traffics, Counters: a.devices, Started: a.processStarted, Moved: a.hurryTick,
		Wall: a.parts.now, Contend: a.parts.contend, Health: healthPolicy(a.config), Log: a.baseLog,
		Verdicts: store.NewVerdicts(filepath.Join(a.config.StateDir, store.HealthFile), a.parts.now)}
	if a.steer != nil {
		config.Steering = a.steer.View
	}
	if a.parts.health != nil {
		config.Health = *a.parts.health
	}
	return watch.New(config)
}

// healthPolicy is what the configuration says of contention and health.
func healthPolicy(config Config) health.Policy {
	policy := health.DefaultPolicy()
	switch config.ContentionPreset {
	case presetFast:
		policy = health.FastPolicy()
	case presetCustom:
		numbers := config.ContentionNumbers
		policy.Above, policy.Below = numbers.Above, numbers.Below
		policy.BadFor, policy.GoodFor, policy.Hold = numbers.BadFor, numbers.GoodFor, numbers.Hold
	}
	policy.LeverFactor = float64(config.ContentionLeverPercent) / amount.WholePercent
	if config.ContentionLeverFor > 0 {
		policy.LeverFor = config.ContentionLeverFor
	}
	return policy
}
