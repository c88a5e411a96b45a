// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// One allocation on one card between looks: how much of everything it used, as it says, and what it lost.

package contention

import (
	"strings"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// The resources on which pressure is metered.
const (
	onTime = iota
	onDRAM
	onRX
	onTX
	metered
)

// resourceNames are in the order of the numbers above.
var resourceNames = [metered]Resource{ResourceTime, ResourceDRAM, ResourcePCIeRX, ResourcePCIeTX}

// What claims are bounded by.
const (
	classesMost  = 32               // that a usage page has
	overlapMost  = 64               // operations of a class that run at once
	activityMost = 4                // streams' worth of the card's time
	longestOp    = 10 * time.Second // an operation that took longer says nothing
	aheadMost    = 10 * time.Second // most that is lost and not in the averages yet
	severalFrom  = 1.2              // operations under way at once, with which a slice has several streams
	dramMost     = 1e14             // bytes per second
)

// sliceTraffic is what is remembered of an allocation on a card.
type sliceTraffic struct {
	key    string
	first  time.Duration // when it was first seen
	read   time.Duration // when its traffic was last read; 0: never
	oldest time.Duration // when its oldest process was first seen

	copies  [monitor.Directions]uint64 // bytes ever
	stalled time.Duration
	charged time.Duration
	waited  time.Duration
	classes []classTraffic // not changed once they are in a state

	// Since the look before.
	known    bool          // there are both readings
	since    time.Duration // the look before; 0: not read
	charging bool          // its GPU time is known
	activity float64       // part of the card's time
	copied   bool
	worked   bool                        // it did something, whether or not its GPU time is known
	progress float64                     // of its kernels: 1 as fast as undisturbed; 0: not known yet
	rates    [monitor.Directions]float64 // bytes per second
	before   [monitor.Directions]float64 // of the look before
	wasAlone bool                        // at the look before nobody else used the card
	used     float64                     // GPU time ever, in seconds, as far as it was seen
	done     float64                     // the same, less what its kernels lost

	share    [monitor.Directions]float64 // rates over shareOver
	busy     float64                     // activity over shareOver
	effort   float64                     // the same, less what its kernels lost
	pressure [metered]struct{ some, full meter }
	several  [metered]float64 // operations under way at once, over shareOver
	period   [metered]lossOf
	vague    [metered]time.Duration // when it last had operations of which too little is known; 0: not since it had others
}

// lossOf is what happened on a resource since the last period ended.
type lossOf struct {
	took    float64 // seconds of operations that can be judged
	unknown float64 // of those that cannot, because too little is known of their class
	samples uint64  // least behind a baseline that mattered
	hushed  bool    // there were looks that prove nothing
}

// look is one look at a card: what all of its slices did together.
type look struct {
	now, passed time.Duration
	keep        float64 // of means over shareOver
	policy      *Policy
	card        *cardTraffic
	all         use
	unread      int // slices of which is not known what they did
}

// add takes in what a slice did.
func (l *look) add(s *sliceTraffic) {
	if !s.known {
		l.unread++
	}
	l.all.activity += s.activity
	for i := range s.rates {
		l.all.rates[i] += s.rates[i]
		l.all.before[i] += s.before[i]
	}
}

// meetStreams makes the slices for the streams of a look, which are sorted by key: those that are known, and new ones. rested
// is when all that are known were read last without being changed.
func meetStreams(known []sliceTraffic, streams []monitor.Stream, rested time.Duration) []sliceTraffic {
	slices := make([]sliceTraffic, len(streams))
	for i := range streams {
		for len(known) > 0 && strings.Compare(known[0].key, streams[i].Key) < 0 {
			known = known[1:]
		}
		if len(known) > 0 && known[0].key == streams[i].Key {
			slices[i] = known[0]
			if slices[i].read > 0 {
				slices[i].read = max(slices[i].read, rested)
			}
			continue
		}
		slices[i].key = streams[i].Key
	}
	return slices
}

// count takes in the counters of a slice; turns: tenants of the card take turns, keep: of means over shareOver. Counters that went back have begun anew.
func (s *sliceTraffic) count(stream *monitor.Stream, now time.Duration, keep float64, turns bool) {
	if s.first == 0 || now < s.first {
		s.first = now
	}
	s.known, s.activity, s.copied, s.worked = false, 0, false, false
	s.before, s.rates = s.rates, [monitor.Directions]float64{}
	s.since = 0
	if !stream.Known {
		s.charging = false
		return
	}
	since := now - s.read
	s.known = s.read > 0 && since > 0 && since <= gapMost
	s.since = max(since, 0)
	s.read = now
	if stream.Started > 0 && stream.Started <= now {
		s.oldest = stream.Started
	} else {
		s.oldest = s.first
	}
	for i := range s.copies {
		bytes := stream.Copies[i].Bytes
		if s.known && bytes > s.copies[i] {
			most := mostLink
			if i == int(monitor.DeviceToDevice) {
				most = dramMost
			}
			s.rates[i] = min(float64(bytes-s.copies[i])/since.Seconds(), most)
			s.copied = true
		}
		s.copies[i] = bytes
		s.share[i] = mix(s.share[i], s.rates[i], keep, rateLeast)
	}
	charged := max(0, stream.Charged)
	s.charging = stream.Charged > 0 || stream.Share > 0
	switch {
	case !s.known:
	case charged > s.charged:
		s.activity = min((charged-s.charged).Seconds()/since.Seconds(), activityMost)
	case charged == 0: // there is no book: its share is not limited
		kernels := kernelTime(s.classes, stream.Classes, turns)
		s.activity = min(kernels/since.Seconds(), activityMost)
		s.charging = s.charging || s.activity > 0
	}
	waited, stalled := max(0, stream.Waited), max(0, stream.Stalls.Time)
	if s.known {
		idle := max(0, (stalled-s.stalled).Seconds()-s.activity*since.Seconds())
		if !s.charging {
			idle = 0 // how much of that the card worked for it is not known
		}
		s.wait(max(0, waited-s.waited).Seconds(), idle, since.Seconds())
	}
	s.worked = s.copied || s.activity > 0 || s.known && stalled > s.stalled
	s.charged, s.waited, s.stalled = charged, waited, stalled
}

// wait takes in what was lost waiting for a turn, in seconds: launches that were kept waiting, or calls that waited for the
// card for longer than it worked for them, which has the former in it. It is all of the slice's progress as far as the card
// did nothing for it meanwhile.
func (s *sliceTraffic) wait(waited, idle, since float64) {
	some := min(max(waited, idle), since)
	full := min(some, max(0, 1-s.activity)*since)
	s.pressure[onTime].some.lose(seconds(some))
	s.pressure[onTime].full.lose(seconds(full))
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }

// use is what slices did since the look before.
type use struct {
	activity float64
	copying  float64 // bytes per second in all
	rates    [monitor.Directions]float64
	before   [monitor.Directions]float64 // of the look before
}

// others is what all but one slice did.
func (l *look) others(s *sliceTraffic) use {
	found := use{activity: max(0, l.all.activity-s.activity)}
	for i := range found.rates {
		found.rates[i] = max(0, l.all.rates[i]-s.rates[i])
		found.before[i] = max(0, l.all.before[i]-s.before[i])
		found.copying += found.rates[i]
	}
	return found
}

// judge takes in the samples of a slice's operations, in the light of what all did.
func (s *sliceTraffic) judge(stream *monitor.Stream, l *look) {
	if !s.known && stream.Known {
		s.classes = meetClasses(s.classes, stream.Classes)
		return
	}
	if !stream.Known {
		return
	}
	if s.idle(stream) {
		s.wasAlone = false
		return
	}
	others := l.others(s)
	foreign := 0.0
	if l.card.busyPart.knownAt(l.now) {
		foreign = l.card.busyPart.last - l.all.activity
	}
	alone := l.unread == 0 && others.activity <= aloneUse && others.copying <= l.policy.Floor && foreign < foreignUse
	light := classLight{look: l, alone: alone && s.wasAlone, young: l.now-s.oldest < l.policy.Young,
		cold: l.now-s.oldest < l.policy.ColdFor, slow: l.card.throttle != 0, active: l.active(others)}
	light.squeeze()
	s.wasAlone = alone
	var found [metered]loss
	s.classes = measureClasses(s.classes, stream.Classes, &light, &found)
	for on := onDRAM; on < metered; on++ {
		s.lose(on, &found[on], &light)
	}
	s.proceed(&found[onDRAM], &light)
}

// idle says whether it did nothing, and there is nothing of before that has to fade.
func (s *sliceTraffic) idle(stream *monitor.Stream) bool {
	return !s.worked && s.several == [metered]float64{} && unchanged(s.classes, stream.Classes)
}

// pace is how much its kernels do in their time, of what they do undisturbed.
func (s *sliceTraffic) pace() float64 {
	if s.progress == 0 {
		return 1
	}
	return s.progress
}

// proceed takes in how fast its kernels were. Where tenants take turns, a sample may be long because it was interrupted; what
// the card did for it is not less for that.
func (s *sliceTraffic) proceed(found *loss, light *classLight) {
	if found.kernels <= 0 || light.card.sharing == monitor.SharingTimeSliced {
		return
	}
	gain := found.fresh / (found.fresh + progressSamples)
	s.progress = s.pace() + gain*(max(sane(found.work/found.kernels), progressLeast)-s.pace())
}

// spend adds up its GPU time, and what was done in it.
func (s *sliceTraffic) spend(keep float64) {
	s.busy = mix(s.busy, s.activity, keep, meanLeast)
	s.effort = mix(s.effort, s.activity*s.pace(), keep, meanLeast)
	if s.known {
		s.used += s.activity * s.since.Seconds()
		s.done += s.activity * s.since.Seconds() * s.pace()
	}
}
