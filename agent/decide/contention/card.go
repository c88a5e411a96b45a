// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// One card between looks: its counters, bounded and smoothed, how it is shared, and whether it can be judged.

package contention

import (
	"math"
	"slices"
	"time"

	"github.com/vgpud/vgpud/agent/decide/attribution"
	"github.com/vgpud/vgpud/agent/monitor"
)

// A link's counter is a mean over as little as 20 ms: only means of these times are used.
const (
	meanOver   = 10 * time.Second // how used up a resource is
	shareOver  = 30 * time.Second // who has which part of it
	unknownFor = 5 * time.Second  // a counter that was not read for so long is not known

	mostLink    = 1e12            // bytes per second that no link and no copy exceeds: more is nonsense
	linkSettles = 2 * time.Second // a link that is otherwise for so long is another

	linkLoaded      = 50e6 // bytes per second from which a link is not in power saving
	aloneUse        = 0.02 // of the card's time by others, with which one is alone
	otherUse        = 0.05 // from which others are active
	meanLeast       = 1e-4 // of a part, that is next to nothing
	rateLeast       = 1000 // of bytes per second
	progressLeast   = 0.05
	progressSamples = 3    // samples of kernels that say as much as all before of how fast they are
	foreignUse      = 0.3  // by nobody who is known, with which nobody is alone
	copyPasses      = 2    // a copy within the card reads and writes
	copiesUse       = 1e9  // bytes per second within the card, from which they are in the way
	linkUse         = 0.02 // of what a link can do, from which others are active on it
)

// lane is what one lane of each generation of PCIe carries in one direction, in bytes per second, after its encoding.
var lane = [...]float64{0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9, 15.125e9}

// ShareOver is the time over which the parts that are concluded are means; what is older counts by e less for each of it.
const ShareOver = shareOver

// counter is one smoothed counter of a card.
type counter struct {
	last       float64
	mean, slow float64       // over meanOver and shareOver
	most       float64       // the largest mean
	known      time.Duration // when it was last read; 0: never
}

// take takes in a figure that stands for the time since the last look.
func (c *counter) take(figure monitor.Figure, most float64, now, passed time.Duration) {
	if !figure.Known || math.IsNaN(figure.Value) || math.IsInf(figure.Value, 0) || figure.Value < 0 {
		return
	}
	c.last = min(figure.Value, most)
	if c.known == 0 || now-c.known > gapMost || now < c.known {
		c.mean, c.slow = c.last, c.last
		passed = 0
	}
	c.known = now
	c.mean = fade(c.mean, c.last, passed, meanOver)
	c.slow = fade(c.slow, c.last, passed, shareOver)
}

// fade moves a mean towards a value that stood for some time.
func fade(mean, value float64, passed, over time.Duration) float64 {
	return value + (mean-value)*math.Exp(-float64(passed)/float64(over))
}

// mix is a mean of which a part is kept; what is less than least is nothing.
func mix(mean, value, keep, least float64) float64 {
	mixed := value + (mean-value)*keep
	if mixed < least {
		return 0
	}
	return mixed
}

// knownAt says whether the counter was read of late.
func (c *counter) knownAt(now time.Duration) bool { return c.known > 0 && now-c.known <= unknownFor }

// link is the width and generation of a link; 0: not known.
type link struct{ generation, width uint32 }

// carries is what a link carries in one direction, in bytes per second; 0: not known.
func (l link) carries() float64 {
	if l.generation == 0 || int(l.generation) >= len(lane) {
		return 0
	}
	return lane[l.generation] * float64(min(l.width, 32))
}

// cardTraffic is what is remembered of a card. It is not changed once it is in a state.
type cardTraffic struct {
	uuid   string
	looked time.Duration // when last
	rested time.Duration // when all of its slices were last read and had done nothing
	base   float64       // of its DRAM's counter meanwhile
	slices []sliceTraffic

	pressure [metered]struct{ some, full meter }

	fault              string // why its counters could not be read at the last look
	read               time.Duration
	busyPart           counter
	dram, rx, tx       counter
	nvlinkRX, nvlinkTX counter
	sharing            monitor.Sharing
	clocks             clocks // the lowest of this look and the one before
	clocksNow          clocks
	throttle           monitor.Throttle
	throttled          time.Duration // when it last was
	link, linkMost     link
	newLink            link // of late
	newLinkAt          time.Duration
	trainedDown        bool

	copied float64 // bytes ever that copies within the card read and wrote
	rows   *attribution.Window
	fit    *attribution.Fit // the last; not changed once it is made
	quick  bool
	wish   quickWish
}

// look makes the state of a card after a look.
func (c *cardTraffic) look(now time.Duration, device *monitor.Device, streams []monitor.Stream, policy *Policy) *cardTraffic {
	next := *c
	next.looked = now
	passed := now - c.looked
	if c.looked == 0 || passed < 0 || passed > gapMost {
		passed = 0
	}
	resting := passed > 0 && c.atRest(streams)
	if !resting {
		next.slices = meetStreams(c.slices, streams, c.rested)
	}
	next.readDevice(device, now, passed)
	if resting {
		next.rest(now, passed)
		return &next
	}
	total := look{now: now, policy: policy, card: &next, passed: passed, keep: math.Exp(-float64(passed) / float64(shareOver))}
	for i := range next.slices {
		next.slices[i].count(&streams[i], now, total.keep, next.sharing == monitor.SharingTimeSliced)
		total.add(&next.slices[i])
	}
	next.copied += copyPasses * total.all.rates[monitor.DeviceToDevice] * passed.Seconds()
	for i := range next.slices {
		next.slices[i].judge(&streams[i], &total)
		next.slices[i].spend(total.keep)
	}
	next.keepRow(&total, device)
	return &next
}

// readDevice takes in what the card's counters say; device is nil where there is nothing.
func (c *cardTraffic) readDevice(device *monitor.Device, now, passed time.Duration) {
	if device == nil || device.Err != nil {
		c.fault = "there is no reading of the card's counters"
		if device != nil {
			c.fault = "the card's counters cannot be read: " + device.Err.Error()
		}
		return
	}
	c.fault, c.read = "", now
	c.busyPart.take(device.Busy, 1, now, passed)
	c.dram.take(device.DRAM, 1, now, passed)
	c.rx.take(device.PCIeRX, mostLink, now, passed)
	c.tx.take(device.PCIeTX, mostLink, now, passed)
	c.nvlinkRX.take(device.NVLinkRX, mostLink, now, passed)
	c.nvlinkTX.take(device.NVLinkTX, mostLink, now, passed)
	c.dram.most = max(c.dram.most, c.dram.mean)
	c.rx.most, c.tx.most = max(c.rx.most, c.rx.mean), max(c.tx.most, c.tx.mean)
	if device.Sharing == "" && device.SMClockMHz == 0 && device.LinkWidth == 0 && device.Throttle == 0 {
		return // a quick look
	}
	read := clocks{sm: mhz(device.SMClockMHz), memory: mhz(device.MemoryClockMHz)}
	c.clocks, c.clocksNow = read.lowest(c.clocksNow), read
	if c.throttle = device.Throttle &^ monitor.ThrottleSetting; c.throttle != 0 {
		c.throttled = now
	}
	c.share(device.Sharing)
	c.train(device, now)
}

func mhz(value uint32) uint16 { return uint16(min(value, math.MaxUint16)) }

// share takes in how the card is shared. What was learnt in another way of sharing is forgotten.
func (c *cardTraffic) share(sharing monitor.Sharing) {
	if sharing == "" || sharing == c.sharing {
		return
	}
	if c.sharing != "" {
		c.forget(func(monitor.OperationKind) bool { return true })
		c.rows, c.dram.most = nil, 0
	}
	c.sharing = sharing
}

// train takes in the link. An idle link is trained down to save power: only what is seen under load counts, and a change only
// when it lasts.
func (c *cardTraffic) train(device *monitor.Device, now time.Duration) {
	read := link{generation: device.LinkGeneration, width: device.LinkWidth}
	if read.carries() == 0 {
		return
	}
	c.linkMost = link{generation: device.LinkGenerationMax, width: device.LinkWidthMax}
	if c.rx.last+c.tx.last < linkLoaded {
		return
	}
	c.trainedDown = c.linkMost.carries() > read.carries()*1.01
	switch {
	case c.link == (link{}) || read == c.link:
		c.link, c.newLink = read, link{}
	case read != c.newLink:
		c.newLink, c.newLinkAt = read, now
	case now-c.newLinkAt >= linkSettles:
		c.link, c.newLink = read, link{}
		c.rx.most, c.tx.most = 0, 0
		c.forget(func(kind monitor.OperationKind) bool {
			return kind == monitor.OperationHostToDevice || kind == monitor.OperationDeviceToHost
		})
	}
}

// forget drops the baselines of some kinds of operations. The slices may be those of the state before.
func (c *cardTraffic) forget(which func(monitor.OperationKind) bool) {
	c.slices = slices.Clone(c.slices)
	for i := range c.slices {
		kept := make([]classTraffic, 0, len(c.slices[i].classes))
		for _, class := range c.slices[i].classes {
			if which(class.kind) {
				class.baseline = baseline{}
			}
			kept = append(kept, class)
		}
		c.slices[i].classes = kept
	}
}

// achievable is what the card can do on a resource: a part of the DRAM's peak, or bytes per second; 0: not known.
func (c *cardTraffic) achievable(on int, policy *Policy) float64 {
	lanes := c.link
	if lanes == (link{}) {
		lanes = c.linkMost
	}
	switch on {
	case onDRAM:
		return min(1, max(policy.AchievableDRAM, c.dram.most))
	case onRX:
		return linkAchieves(lanes, c.rx.most, policy)
	case onTX:
		return linkAchieves(lanes, c.tx.most, policy)
	}
	return 0
}

// linkAchieves is what a link achieves, by its lanes or by what was seen; more than its lanes carry was not.
func linkAchieves(l link, most float64, policy *Policy) float64 {
	carries := l.carries()
	return max(policy.AchievableLink*carries, min(most, carries))
}

// counterOf is the card's counter of a resource.
func (c *cardTraffic) counterOf(on int) *counter {
	switch on {
	case onDRAM:
		return &c.dram
	case onRX:
		return &c.rx
	}
	return &c.tx
}

// ratio is how used up a resource is, of what the card can do; ok: that is known.
func (c *cardTraffic) ratio(on int, policy *Policy) (ratio float64, ok bool) {
	counter, can := c.counterOf(on), c.achievable(on, policy)
	if can <= 0 || !counter.knownAt(c.looked) {
		return 0, false
	}
	return min(counter.mean/can, 1), true
}

// busy says whether there is traffic.
func (c *cardTraffic) busy() bool {
	for i := range c.slices {
		if c.slices[i].activity > 0 || c.slices[i].copied {
			return true
		}
	}
	return false
}
