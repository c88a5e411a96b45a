// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package contention

import "time"

// Resource is what tenants of a card can get in each other's way on.
type Resource string

// The resources.
const (
	ResourceTime   Resource = "time"    // waiting for a turn or for a share: what shares are for, never a fault
	ResourceDRAM   Resource = "dram"    // bandwidth of the card's memory
	ResourcePCIeRX Resource = "pcie_rx" // host to card
	ResourcePCIeTX Resource = "pcie_tx" // card to host
	ResourceNVLink Resource = "nvlink"
)

// Averages are one line of a pressure file: the part of the time that was lost, 0 to 1, over the last 10, 60 and 300
// seconds with the weights of Linux PSI, and what was lost ever.
type Averages struct {
	Avg10, Avg60, Avg300 float64
	Total                time.Duration
}

// Pressure is what a slice loses on a resource: Some while at least one of its operations is slowed, by the most slowed
// one; Full by the least slowed one, while all are.
type Pressure struct{ Some, Full Averages }

// Attributed is a slice's part of a card's traffic on a resource.
type Attributed struct {
	Resource   Resource
	Part       float64 // of what the card can do, 0 to 1
	BytesRate  float64 // bytes per second; 0 where only the part is known
	Known      bool    // false: unattributed
	Confidence float64 // 0 to 1
	Why        string  // why not, or why not with more confidence
}

// Slice is what is concluded of one allocation on one GPU.
type Slice struct {
	Key, GPUUUID string
	Pressures    map[Resource]Pressure
	Traffic      []Attributed // by resource
	SelfLimited  []Resource   // on which it is its own antagonist
	Strain       []Strain     // by resource, as of the last period
}

// Strain is the evidence of one period (2 s) that a slice is slowed on a resource by others.
type Strain struct {
	Resource     Resource
	Avg10, Avg60 float64 // of Full, or of Some for a slice with several streams
	Saturated    bool    // the card's own counter is at the limit of what it can do
	CoActive     bool    // others were using the resource meanwhile
	DeviceRatio  float64 // of what it can do
	Antagonist   string  // key of who used most of it; "": nobody in particular, or not known who
	Confidence   float64 // in that
	Samples      uint64  // behind the baseline
	Excluded     string  // why this period proves nothing (throttled, link trained down, too few samples …); "": it does
}

// Bad says whether the period is evidence against the GPU, above a threshold.
func (s Strain) Bad(above float64) bool { return s.Suspicious(above) && s.CoActive && s.Avg60 > above }

// Suspicious says whether it would be if the pressure lasted, and others turned out to have much of the traffic: both are
// means over longer than Avg10.
func (s Strain) Suspicious(above float64) bool {
	return s.Excluded == "" && s.Saturated && s.Avg10 > above
}

// GPU is what is concluded of one card.
type GPU struct {
	UUID         string
	Possible     []Resource // on which there can be a verdict, in the way in which the card is shared
	Device       []Attributed
	Unattributed []Attributed // what is left when all slices' parts are taken off
	Pressures    map[Resource]Pressure
	Blind        string // why nothing can be concluded at present, neither way; "": something can
	Note         string // which verdicts cannot be made, and why, for people; "": all can
}

// Result is what follows from one look.
type Result struct {
	Slices []Slice       // sorted by GPU and key
	GPUs   []GPU         // sorted by UUID
	Quick  []string      // cards to look at more often for a while, for attribution
	Next   time.Duration // when to look again
	Period bool          // a period of 2 s ended with this look: Strain and Pressures are new
}
