// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Who has which part of a card's traffic: on links by the bytes that each says it copied, held against the card's counter;
// in DRAM by what its counter shows while each is active (package attribution).

package contention

import (
	"fmt"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

const (
	claimsOver  = 1.3  // claims above the counter by this factor are not to be believed
	someTraffic = 0.05 // of what a link can do, above which the rest has to be explained
	chief       = 0.4  // part of the others' traffic that makes one of them the antagonist
)

// shares is how the traffic on a resource is split, as one slice sees it. Parts are of the whole traffic.
type shares struct {
	known      bool
	why        string // not known, or not surer
	own        float64
	others     float64
	antagonist string
	confidence float64
}

// cardShares is how all traffic of a card is split at the end of a period.
type cardShares struct {
	card   *cardTraffic
	policy *Policy
	ratio  [metered]float64 // of what the card can do
	links  [metered]linkShares
	dram   dramShares
}

// linkShares is who copied how much in one direction. Rates are in bytes per second.
type linkShares struct {
	direction  int
	device     float64 // by the card's counter, less what that shows of itself
	claimed    float64
	counted    bool    // the card's counter is known
	residual   float64 // nobody's
	confidence float64
	refused    string // why nobody is to blame; "": nothing against it
	ranking    ranking
}

// attribute splits the traffic of a card.
func (c *cardTraffic) attribute(now time.Duration, policy *Policy) *cardShares {
	made := &cardShares{card: c, policy: policy}
	for on := onDRAM; on < metered; on++ {
		made.ratio[on], _ = c.ratio(on, policy)
	}
	made.links[onRX] = c.splitLink(onRX, int(monitor.HostToDevice), policy)
	made.links[onTX] = c.splitLink(onTX, int(monitor.DeviceToHost), policy)
	made.dram = c.splitDRAM(now, policy)
	return made
}

// splitLink holds claims against the card's counter.
func (c *cardTraffic) splitLink(on, direction int, policy *Policy) linkShares {
	counter := c.counterOf(on)
	made := linkShares{direction: direction, counted: counter.knownAt(c.looked), confidence: 0.5}
	made.ranking = rank(len(c.slices), func(i int) float64 { return c.slices[i].share[direction] })
	made.claimed = made.ranking.sum
	if !made.counted {
		return made
	}
	made.device = max(0, counter.slow-policy.Floor)
	made.residual = max(0, made.device-made.claimed)
	some := max(policy.Floor, someTraffic*c.achievable(on, policy))
	switch {
	case made.device > some && made.residual > policy.Residual*made.device:
		made.refused = fmt.Sprintf("%.0f %% of the traffic is none of the copies that are known", 100*made.residual/made.device)
	case made.claimed > some && made.claimed > claimsOver*counter.slow:
		made.refused = "containers say that they copied more than the card's counter shows"
	}
	made.confidence = 1 - made.residual/max(made.device, 1)
	if made.refused != "" {
		made.confidence = 0
	}
	return made
}

// sharesOf is how the traffic on a resource is split, as a slice sees it.
func (t *cardShares) sharesOf(on, index int) shares {
	if on == onDRAM {
		return t.dram.sharesOf(t.card.slices, index)
	}
	l := &t.links[on]
	if !l.counted {
		return shares{why: "the card's counter is not known"}
	}
	if l.refused != "" {
		return shares{why: l.refused}
	}
	all := max(l.device, l.claimed)
	if all <= 0 {
		return shares{known: true}
	}
	made, most := l.ranking.split(index, all, func(i int) float64 { return t.card.slices[i].share[l.direction] })
	if most >= 0 {
		made.antagonist = t.card.slices[most].key
		made.confidence *= l.confidence
	}
	return made
}

// ranking is what all slices of a card have of a traffic together, and the two that have most.
type ranking struct {
	sum           float64
	first, second int // by slice; -1: none
}

// rank ranks slices by what each has.
func rank(count int, of func(int) float64) ranking {
	made := ranking{first: -1, second: -1}
	for i := range count {
		part := of(i)
		made.sum += part
		switch {
		case part <= 0:
		case made.first < 0 || part > of(made.first):
			made.first, made.second = i, made.first
		case made.second < 0 || part > of(made.second):
			made.second = i
		}
	}
	return made
}

// split is how a traffic is split as one slice sees it; chief is who has most of what the others have, and -1 if nobody has
// much of it.
func (r *ranking) split(index int, all float64, of func(int) float64) (made shares, most int) {
	own := of(index)
	others := max(0, r.sum-own)
	made = shares{known: true, own: sane(own / all), others: sane(others / all)}
	if most = r.first; most == index {
		most = r.second
	}
	if most < 0 || others <= 0 || of(most) < chief*others {
		return made, -1
	}
	made.confidence = sane(of(most) / others)
	return made, most
}

// describe tells the traffic of the card, and what is nobody's.
func (t *cardShares) describe(gpu *GPU) {
	c := t.card
	for _, on := range []int{onRX, onTX} {
		l := &t.links[on]
		if !l.counted {
			continue
		}
		can := c.achievable(on, t.policy)
		gpu.Device = append(gpu.Device, Attributed{Resource: resourceNames[on], Part: partOf(c.counterOf(on).slow, can),
			BytesRate: c.counterOf(on).slow, Known: true, Confidence: 1})
		gpu.Unattributed = append(gpu.Unattributed, Attributed{Resource: resourceNames[on], Part: partOf(l.residual, can),
			BytesRate: l.residual, Known: true, Confidence: 1, Why: l.refused})
	}
	t.dram.describe(t, gpu)
	if c.nvlinkRX.knownAt(c.looked) || c.nvlinkTX.knownAt(c.looked) {
		rate, claimed := c.nvlinkRX.slow+c.nvlinkTX.slow, 0.0
		for i := range c.slices {
			claimed += c.slices[i].share[monitor.PeerToPeer]
		}
		gpu.Device = append(gpu.Device, Attributed{Resource: ResourceNVLink, BytesRate: rate, Known: true, Confidence: 1})
		gpu.Unattributed = append(gpu.Unattributed, Attributed{Resource: ResourceNVLink, BytesRate: max(0, rate-claimed), Known: true,
			Confidence: 1})
	}
}

// partOf is a rate as a part of what can be done.
func partOf(rate, can float64) float64 {
	if can <= 0 {
		return 0
	}
	return sane(rate / can)
}

// of tells the traffic of a slice.
func (t *cardShares) of(index int, found *Slice) {
	s := &t.card.slices[index]
	for _, on := range []int{onRX, onTX} {
		l := &t.links[on]
		rate := s.share[l.direction]
		if rate < 1 {
			continue
		}
		made := Attributed{Resource: resourceNames[on], BytesRate: rate, Part: partOf(rate, t.card.achievable(on, t.policy)),
			Known: l.refused == "", Confidence: l.confidence, Why: l.refused}
		if !l.counted {
			made.Why = "the card's own counter is not known"
		}
		found.Traffic = append(found.Traffic, made)
	}
	t.dram.tell(t, index, found)
	if rate := s.share[monitor.PeerToPeer]; rate >= 1 && t.card.nvlinkRX.known+t.card.nvlinkTX.known > 0 {
		found.Traffic = append(found.Traffic, Attributed{Resource: ResourceNVLink, BytesRate: rate, Known: true, Confidence: 0.5,
			Why: "some of it may have gone over PCIe"})
	}
}
