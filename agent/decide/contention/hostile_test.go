// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// Whatever containers write and drivers answer: no panic, no nonsense, no memory without bound, nobody else harmed.

package contention

import (
	"fmt"
	"math"
	"math/rand"
	"reflect"
	"testing"
	"time"

	"github.com/vgpud/vgpud/agent/monitor"
)

// FuzzContend plays looks with absurd figures.
func FuzzContend(f *testing.F) {
	f.Add([]byte("\x01\x02\x03 0123456789 abcdefgh"), int64(1))
	f.Add([]byte{255, 0, 255, 0, 128, 7, 9, 200, 31, 42, 255, 255, 0, 0, 1}, int64(-5))
	f.Fuzz(func(t *testing.T, data []byte, seed int64) {
		n := &nonsense{data: data, random: rand.New(rand.NewSource(seed))}
		var state State
		policy := DefaultPolicy()
		now := time.Hour
		for range 60 {
			now += time.Duration(n.next()%16) * 200 * ms
			if n.next()%32 == 0 {
				now += n.duration() % (24 * time.Hour)
			}
			var result Result
			result, state = Judge(n.look(now), policy, state)
			checkContention(t, result)
		}
	})
}

// nonsense makes what is seen from bytes, and from chance when there are no more.
type nonsense struct {
	data   []byte
	random *rand.Rand
}

func (n *nonsense) next() int64 {
	if len(n.data) == 0 {
		return n.random.Int63()
	}
	value := int64(n.data[0])
	n.data = n.data[1:]
	return value
}

func (n *nonsense) duration() time.Duration {
	switch n.next() % 8 {
	case 0:
		return time.Duration(n.random.Uint64())
	case 1:
		return math.MaxInt64 - time.Duration(n.next())
	case 2:
		return math.MinInt64 + time.Duration(n.next())
	}
	return time.Duration(n.next()) * ms
}

func (n *nonsense) count() uint64 {
	if n.next()%8 == 0 {
		return n.random.Uint64()
	}
	return uint64(n.next())
}

func (n *nonsense) figure() monitor.Figure {
	value := float64(n.next()) / 200
	if n.next()%8 == 0 {
		value = math.Float64frombits(n.random.Uint64())
	}
	return monitor.Figure{Value: value, Period: n.duration(), Known: n.next()%4 > 0}
}

// look is sorted and without duplicates, as monitor makes it; all else is anything.
func (n *nonsense) look(now time.Duration) *monitor.Contention {
	seen := &monitor.Contention{Now: now}
	for gpu := range 3 {
		uuid := fmt.Sprint("GPU-", gpu)
		if n.next()%8 > 0 {
			seen.Devices = append(seen.Devices, monitor.Device{GPUUUID: uuid, At: now + n.duration()%time.Second, Busy: n.figure(), DRAM: n.figure(),
				PCIeRX: n.figure(), PCIeTX: n.figure(), NVLinkRX: n.figure(), NVLinkTX: n.figure(), SMClockMHz: uint32(n.next()),
				MemoryClockMHz: uint32(n.count()), Throttle: monitor.Throttle(n.next() % 3 * 7), LinkGeneration: uint32(n.count() % 9),
				LinkGenerationMax: uint32(n.next() % 9), LinkWidth: uint32(n.count()), LinkWidthMax: 16,
				Sharing: []monitor.Sharing{"mps", "mps", "mps", "time-sliced", "exclusive", "mig", "", "odd"}[n.next()%8]})
		}
		for key := range 4 {
			if n.next()%8 == 0 {
				continue
			}
			stream := monitor.Stream{Share: float64(n.next()) / 100, Charged: n.duration(), Waited: n.duration(), Started: n.duration()}
			stream.Key, stream.GPUUUID, stream.Known = fmt.Sprint("key-", key), uuid, n.next()%8 > 0
			for i := range stream.Copies {
				stream.Copies[i].Bytes = n.count() << (n.next() % 40)
			}
			stream.Stalls.Time = n.duration()
			for range n.next() % 40 {
				class := monitor.Class{ID: uint64(n.next() % 5), Kind: monitor.OperationKind(n.next() % 7), Samples: n.count(), Operations: n.count(),
					Bytes: n.count(), Time: n.duration()}
				for range n.next() % 40 {
					class.Recent = append(class.Recent, n.duration())
				}
				stream.Classes = append(stream.Classes, class)
			}
			seen.Streams = append(seen.Streams, stream)
		}
	}
	return seen
}

// checkContention holds what was concluded against what must never be.
func checkContention(t *testing.T, result Result) {
	t.Helper()
	if result.Next <= 0 {
		t.Fatalf("next look after %s", result.Next)
	}
	part := func(what string, values ...float64) {
		for _, value := range values {
			if !(value >= 0 && value <= 1) {
				t.Fatalf("%s is %v", what, value)
			}
		}
	}
	averages := func(pressures map[Resource]Pressure) {
		for on, p := range pressures {
			part(string(on), p.Some.Avg10, p.Some.Avg60, p.Some.Avg300, p.Full.Avg10, p.Full.Avg60, p.Full.Avg300)
			if p.Some.Total < 0 || p.Full.Total < 0 || p.Full.Total > p.Some.Total+time.Millisecond {
				t.Fatalf("%s: %+v", on, p)
			}
		}
	}
	attributed := func(all []Attributed) {
		for _, a := range all {
			part(string(a.Resource)+" part", a.Part, a.Confidence)
			if !(a.BytesRate >= 0) || math.IsInf(a.BytesRate, 0) {
				t.Fatalf("%+v", a)
			}
		}
	}
	for _, s := range result.Slices {
		averages(s.Pressures)
		attributed(s.Traffic)
		for _, made := range s.Strain {
			part("strain", made.Avg10, made.Avg60, made.DeviceRatio, made.Confidence)
			if made.Antagonist == s.Key {
				t.Fatalf("its own antagonist: %s", made)
			}
		}
	}
	for _, gpu := range result.GPUs {
		averages(gpu.Pressures)
		attributed(gpu.Device)
		attributed(gpu.Unattributed)
	}
}

// The same state gives the same answer, any number of times: Judge changes nothing that it was given.
func TestContendIsPure(t *testing.T) {
	n := &nonsense{random: rand.New(rand.NewSource(11))}
	policy := DefaultPolicy()
	var state State
	now := time.Hour
	for look := range 300 {
		now += time.Second
		seen := n.look(now)
		if look%3 == 0 { // a sensible one
			seen = newFleetLook(now, look)
		}
		first, after := Judge(seen, policy, state)
		_, _ = Judge(n.look(now+time.Second), policy, state)
		_, _ = Judge(newFleetLook(now+time.Second, look), policy, after)
		second, again := Judge(seen, policy, state)
		if !reflect.DeepEqual(first, second) || !reflect.DeepEqual(after, again) {
			t.Fatalf("look %d: another answer the second time", look)
		}
		state = after
	}
}

func newFleetLook(now time.Duration, look int) *monitor.Contention {
	f := newFleet(3, 4, 6, 4, 6)
	f.seen.Now = now - time.Second
	for range look%5 + 1 {
		f.step(time.Second / 5)
	}
	f.seen.Now = now
	return &f.seen
}

// What is remembered is bounded: by slice, whatever classes come and go, and by card, whoever comes and goes.
func TestContendMemory(t *testing.T) {
	policy := DefaultPolicy()
	policy.Quick = 0 // the DRAM's traffic is told by slice all the time
	random := rand.New(rand.NewSource(12))
	var state State
	const slices = 16
	now, samples := time.Hour, uint64(0)
	look := func(span time.Duration) {
		for end := now + span; now < end; {
			now += 200 * ms
			samples += 8
			seen := newFleet(1, slices, 32, slices, 0)
			seen.seen.Now = now
			seen.step(0)
			for i := range seen.seen.Streams {
				stream := &seen.seen.Streams[i]
				stream.Charged = time.Duration(samples)*ms + time.Duration(random.Intn(100))*ms
				for k := range stream.Classes {
					class := &stream.Classes[k]
					class.ID += uint64(k) % 2 * (samples / 4096) // some are other ones now and then
					class.Samples, class.Operations, class.Time = samples, samples, time.Duration(samples)*ms
					for j := range class.Recent {
						class.Recent[j] = time.Duration(500+random.Intn(500)) * time.Microsecond
					}
				}
			}
			_, state = Judge(&seen.seen, policy, state)
		}
	}
	look(3 * time.Minute)
	before := sizeOf(state)
	look(5 * time.Minute)
	after := sizeOf(state)
	perSlice := after / slices
	t.Logf("%d bytes for a card with %d slices, %d a slice; 3 minutes after the begin %d", after, slices, perSlice, before)
	if after > before*11/10+4096 || perSlice > 40<<10 {
		t.Errorf("%d bytes, %d a slice; before: %d", after, perSlice, before)
	}
}

// sizeOf is how much memory a value holds on to, what it points to included, each once.
func sizeOf(value any) uint64 {
	seen := map[uintptr]bool{}
	var beyond func(v reflect.Value) uint64 // the value itself
	beyond = func(v reflect.Value) (size uint64) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() && !seen[v.Pointer()] {
				seen[v.Pointer()] = true
				size = uint64(v.Type().Elem().Size()) + beyond(v.Elem())
			}
		case reflect.Slice:
			if v.Len() > 0 && !seen[v.Pointer()] {
				seen[v.Pointer()] = true
				size = uint64(v.Cap()) * uint64(v.Type().Elem().Size())
				for i := range v.Len() {
					size += beyond(v.Index(i))
				}
			}
		case reflect.Array:
			for i := range v.Len() {
				size += beyond(v.Index(i))
			}
		case reflect.Struct:
			for _, field := range v.Fields() {
				size += beyond(field)
			}
		case reflect.String:
			size = uint64(v.Len())
		case reflect.Map:
			for entry := v.MapRange(); entry.Next(); {
				size += 2*uint64(entry.Value().Type().Size()) + beyond(entry.Value())
			}
		}
		return size
	}
	v := reflect.ValueOf(value)
	return uint64(v.Type().Size()) + beyond(v)
}

// What one container forges does not have a neighbour blamed or the card judged: it is slow by its own account alone, or
// claims traffic that the card does not show.
func TestContendForged(t *testing.T) {
	for name, forge := range map[string]func(now time.Duration, stream *monitor.Stream){
		"slow copies": func(_ time.Duration, stream *monitor.Stream) {
			for i := range stream.Classes {
				for j := range stream.Classes[i].Recent {
					stream.Classes[i].Recent[j] *= 40
				}
			}
		},
		"any number": func(now time.Duration, stream *monitor.Stream) {
			random := rand.New(rand.NewSource(int64(now)))
			n := &nonsense{random: random}
			stream.Charged, stream.Waited, stream.Stalls.Time = n.duration(), n.duration(), n.duration()
			for i := range stream.Copies {
				stream.Copies[i].Bytes = n.count()
			}
			for i := range stream.Classes {
				stream.Classes[i].Samples, stream.Classes[i].Operations, stream.Classes[i].Time = n.count(), n.count(), n.duration()
			}
		},
		"all of the traffic": func(now time.Duration, stream *monitor.Stream) {
			stream.Copies[monitor.HostToDevice].Bytes += uint64((now - time.Hour).Seconds() * 20e9)
		},
		"none of the traffic": func(_ time.Duration, stream *monitor.Stream) { stream.Copies[monitor.HostToDevice].Bytes = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			forger, honest := copier("forger", 0.4, nil), copier("honest", 0.2, nil)
			forger.forge = func(now time.Duration, stream *monitor.Stream) {
				if now > time.Hour+4*time.Minute {
					forge(now, stream)
				}
			}
			s := newScene(t, 5, forger, honest)
			s.run(8*time.Minute, func() {
				checkContention(t, s.result)
				for _, key := range []string{"forger", "honest"} {
					if made := s.strain(key, ResourcePCIeRX); s.result.Period && made.Bad(0.1) {
						t.Errorf("%s at %s: %s", key, s.now-time.Hour, made)
					}
				}
			})
			if made := s.strain("honest", ResourcePCIeRX); made.Avg60 > 0.02 {
				t.Errorf("the honest one: %s", made)
			}
		})
	}
}

// The clock is set forward and back, the card goes and comes, looks fail for a while: nothing is concluded from that, and
// what is known of pressure stays monotonic.
func TestContendInterrupted(t *testing.T) {
	for name, happens := range map[string]func(s *scene){
		"an hour forward":  func(s *scene) { s.now += time.Hour },
		"ten minutes back": func(s *scene) { s.now -= 10 * time.Minute },
		"a minute without a look": func(s *scene) {
			s.now += time.Minute
		},
		"the card is away": func(s *scene) {
			actors := s.actors
			s.actors = nil
			for range 30 {
				s.now += time.Second
				s.result, s.state = Judge(&monitor.Contention{Now: s.now}, s.policy, s.state)
			}
			if len(s.result.GPUs) > 0 || len(s.state.cards) > 0 {
				s.t.Errorf("a card that is away is still known: %+v", s.result.GPUs)
			}
			s.actors = actors
		},
		"the page cannot be read": func(s *scene) {
			until := s.now + 20*time.Second
			s.actors[1].unread = func(now time.Duration) bool { return now < until }
		},
		"nil": func(s *scene) {
			s.result, s.state = Judge(nil, s.policy, s.state)
			if s.result.Next <= 0 || len(s.result.GPUs) != 1 {
				s.t.Errorf("%+v", s.result)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 6, copier("a", 0.3, nil), copier("b", 0.3, nil), streamer("c", 0.4, 0.4, nil))
			s.run(3*time.Minute, nil)
			for range 5 {
				happens(s)
				last := map[string]time.Duration{}
				s.run(30*time.Second, func() {
					checkContention(t, s.result)
					for _, slice := range s.result.Slices {
						total := slice.Pressures[ResourcePCIeRX].Some.Total
						if total < last[slice.Key] {
							t.Errorf("total of %s fell to %s", slice.Key, total)
						}
						last[slice.Key] = total
						for _, made := range slice.Strain {
							if made.Bad(0.1) {
								t.Errorf("%s: %s", slice.Key, made)
							}
						}
					}
				})
			}
			if len(s.result.Slices) != 3 || len(s.result.GPUs) != 1 || s.gpu().Blind != "" {
				t.Errorf("%d slices, %+v", len(s.result.Slices), s.result.GPUs)
			}
		})
	}
}
