// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package events

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Reasons, as `kubectl get events` shows them.
const (
	ReasonContended = "GPUContended"         // of the node: a card's slices are slowed by each other
	ReasonRecovered = "GPUContentionOver"    // of the node
	ReasonSlowed    = "GPUSlowedByNeighbour" // of the victim's pod
	ReasonSlows     = "GPUSlowsNeighbours"   // of the antagonist's pod
	ReasonBypass    = "GPULimitBypassed"     // of the pod, or of the node where no pod is known
	ReasonFroze     = "GPUContainerFrozen"   // the same, and its container was frozen
	ReasonKilled    = "GPUContainerKilled"   // the same, and its container was killed
)

// Bounds and names of the API.
const (
	longestNote       = 1024 // bytes
	longestInstance   = 128  // bytes
	reportingName     = "vgpud.io/agent"
	nodeNamespace     = "default"            // of events about what has no namespace
	longestObjectName = 253 - len("x.") - 16 // what the time in an event's name leaves of its object's
)

// Object is what an event is about. The zero value is the node.
type Object struct {
	Namespace, Pod, UID string
}

// Event is one thing to tell.
type Event struct {
	Reason    string
	Action    string // what was done, UpperCamelCase
	Warning   bool
	Note      string
	Regarding Object
	Related   Object // the zero value: none
	// Subject tells things of one reason about one object apart: a card, a container. Those of one subject are one series.
	Subject string
}

// Tenant is a container with slices.
type Tenant struct {
	Namespace, Pod, UID, Container string
	Allocation                     string // key
}

// object is the tenant's pod; false where it is not known.
func (t Tenant) object() (Object, bool) {
	return Object{t.Namespace, t.Pod, t.UID}, t.Namespace != "" && t.Pod != "" && t.UID != ""
}

func (t Tenant) String() string {
	switch {
	case t.Pod != "":
		return t.Namespace + "/" + t.Pod + "/" + t.Container
	case t.Allocation != "":
		return "allocation " + t.Allocation
	case t.UID != "":
		return "container " + t.Container + " of pod " + t.UID
	case t.Container != "":
		return "container " + t.Container
	}
	return "nobody in particular"
}

// Contention is a change of a card's contention, with its evidence.
type Contention struct {
	GPU         string // as people name it, such as "GPU 0 (GPU-f465…)"
	UUID        string
	Contended   bool
	Resource    string
	Victim      Tenant
	Antagonist  Tenant // zero: not known
	Confidence  float64
	Avg10       float64 // parts of the time that the victim lost
	Avg60       float64
	DeviceRatio float64 // of what the card can do
	Samples     uint64
	Withdrawn   bool // health follows it: free slices are not offered
}

// Events are what is told of the change: to the node's operator, and where it begins to the owners of both pods.
func (c Contention) Events() []Event {
	if !c.Contended {
		note := fmt.Sprintf("%s is no longer contended on %s: %s lost %s of its time in 10 s and %s in 60 s.", c.GPU, c.Resource, c.Victim,
			percent(c.Avg10), percent(c.Avg60))
		if c.Withdrawn {
			note += " Its free slices are offered again."
		}
		return []Event{{Reason: ReasonRecovered, Action: "Offer", Note: note, Subject: c.UUID}}
	}
	figures := fmt.Sprintf("%s lost %s of its time in 10 s and %s in 60 s to others on %s, with the card at %s of what it can do (baseline of %d samples)",
		c.Victim, percent(c.Avg10), percent(c.Avg60), c.Resource, percent(c.DeviceRatio), c.Samples)
	suspect := "no antagonist stands out"
	if c.Antagonist != (Tenant{}) {
		suspect = fmt.Sprintf("antagonist %s, confidence %.2f", c.Antagonist, c.Confidence)
	}
	node := Event{Reason: ReasonContended, Action: "Report", Warning: true, Subject: c.UUID,
		Note: fmt.Sprintf("%s is contended: %s; %s.", c.GPU, figures, suspect)}
	if c.Withdrawn {
		node.Action = "Withdraw"
		node.Note += " Its free slices are not offered meanwhile."
	}
	list := []Event{node}
	victim, isPod := c.Victim.object()
	if isPod {
		list[0].Related = victim
		list = append(list, Event{Reason: ReasonSlowed, Action: "Report", Warning: true, Regarding: victim, Subject: c.UUID,
			Note: fmt.Sprintf("%s: %s.", c.GPU, figures)}) // whose pod the other is, is not its owner's business
	}
	if antagonist, isPod := c.Antagonist.object(); isPod {
		list = append(list, Event{Reason: ReasonSlows, Action: "Report", Regarding: antagonist, Subject: c.UUID,
			Note: fmt.Sprintf("%s: %s uses most of %s, and slows others there (confidence %.2f).", c.GPU, c.Antagonist, c.Resource, c.Confidence)})
	}
	return list
}

// Finding is what a witness found of a container, and what was done.
type Finding struct {
	Kind    string // no-slot, memory-beyond-book …
	Tenant  Tenant // Pod and UID may be unknown
	PIDs    []int
	Command string
	Detail  string
	Done    string // to its container: report (nothing), freeze, kill
}

// Event is what is told of the finding.
func (f Finding) Event() Event {
	e := Event{Reason: ReasonBypass, Action: "Report", Warning: true, Subject: f.Kind + " " + f.Tenant.Container}
	switch f.Done {
	case "freeze":
		e.Reason, e.Action = ReasonFroze, "Freeze"
	case "kill":
		e.Reason, e.Action = ReasonKilled, "Kill"
	}
	if object, isPod := f.Tenant.object(); isPod {
		e.Regarding = object
	}
	e.Note = fmt.Sprintf("%s by %s", f.Kind, f.Tenant)
	if len(f.PIDs) > 0 {
		e.Note += fmt.Sprintf(", pid %s", strings.Trim(fmt.Sprint(f.PIDs), "[]"))
	}
	if f.Command != "" {
		e.Note += fmt.Sprintf(" (%q)", f.Command)
	}
	if f.Detail != "" {
		e.Note += ": " + f.Detail
	}
	return e
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// printable makes text fit for a field of the API: valid, on one line, and of at most so many bytes.
func printable(text string, most int) string {
	text = strings.Map(func(char rune) rune {
		if !unicode.IsPrint(char) {
			return unicode.ReplacementChar
		}
		return char
	}, text)
	if len(text) <= most {
		return text
	}
	const ellipsis = "…"
	text = text[:most-len(ellipsis)]
	for !utf8.ValidString(text) {
		text = text[:len(text)-1]
	}
	return text + ellipsis
}
