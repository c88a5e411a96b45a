// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// view.go is what the agent tells: value types whose JSON is a contract for scripts. Fields are added, never renamed or given
// another meaning, without another Version. Names carry their units; parts are of 1. What is not known is null or left out,
// never 0. Strings from containers, drivers and the API server are in it as they are: who prints them cleans them.

package control

import "time"

// Version of the View. A client refuses a higher one.
const Version = 1

// View is everything that `vgpud top` shows. Nobody changes one that was handed to a Server. Lists are sorted: GPUs by index,
// slices by GPU and allocation.
type View struct {
	Version    int        `json:"version"`
	Time       time.Time  `json:"time"` // of the tick that it is of
	Node       string     `json:"node"`
	Agent      Agent      `json:"agent"`
	GPUs       []GPU      `json:"gpus"`
	Slices     []Slice    `json:"slices"`
	Probes     Probes     `json:"probes"`
	Sources    []Source   `json:"sources"`
	Findings   []Finding  `json:"findings"`
	Frozen     []Frozen   `json:"frozen"`
	Contention Contention `json:"contention"`
}

// Agent says what runs.
type Agent struct {
	Version        string    `json:"version"`
	Revision       string    `json:"revision"`
	LibraryBuildID string    `json:"library_build_id"`
	PID            int       `json:"pid"`
	StartTime      time.Time `json:"start_time"`
}

// Contention says what the agent does about contention, by its configuration.
type Contention struct {
	Mode   string `json:"mode"`             // off, report or health
	Preset string `json:"preset,omitempty"` // of the thresholds
}

// Figure is one measured number and the time that it is a mean over, as the driver takes it. A nil one is not known.
type Figure struct {
	Value         float64 `json:"value"`
	PeriodSeconds float64 `json:"period_seconds"` // 0: of an instant
}

// GPU is one card.
type GPU struct {
	UUID                string     `json:"uuid"`
	Index               int        `json:"index"`
	Model               string     `json:"model"`
	MemoryTotalBytes    uint64     `json:"memory_total_bytes"`
	MemoryUsedBytes     uint64     `json:"memory_used_bytes"`   // by everything, as the driver says
	MemoryUsableBytes   uint64     `json:"memory_usable_bytes"` // can be granted
	MemoryHeldBytes     uint64     `json:"memory_held_bytes"`   // is granted
	BusyRatio           *Figure    `json:"busy_ratio"`          // of the time
	DRAMRatio           *Figure    `json:"dram_ratio"`          // of what the card can do
	PCIeRXRatio         *Figure    `json:"pcie_rx_ratio"`       // host to card, of what the link can do
	PCIeTXRatio         *Figure    `json:"pcie_tx_ratio"`
	PCIeRXBytesPerSec   *Figure    `json:"pcie_rx_bytes_per_second"`
	PCIeTXBytesPerSec   *Figure    `json:"pcie_tx_bytes_per_second"`
	NVLinkRXBytesPerSec *Figure    `json:"nvlink_rx_bytes_per_second"`
	NVLinkTXBytesPerSec *Figure    `json:"nvlink_tx_bytes_per_second"`
	Sharing             string     `json:"sharing"`            // time-sliced, mps, exclusive, mig; "": not known
	Throttle            []string   `json:"throttle"`           // why it runs slower than it could
	Link                string     `json:"link,omitempty"`     // such as "gen4 x16 of gen4 x16"; "": not known
	Possible            []string   `json:"possible"`           // resources on which contention can be told
	Pressures           []Pressure `json:"pressures"`          // over all its slices
	Unattributed        []Traffic  `json:"unattributed"`       // what is no slice's
	Health              Health     `json:"health"`             //
	Slices              Counts     `json:"slices"`             // as the kubelet is told
	Contended           bool       `json:"contended"`          // also where health does not follow it
	Evidence            *Evidence  `json:"evidence,omitempty"` // of the newest change of Contended
	Note                string     `json:"note,omitempty"`     // what keeps contention from being told at present
}

// Health is what is offered of a card, and why.
type Health struct {
	Healthy bool       `json:"healthy"`
	Reason  string     `json:"reason"`           // ok, contended, gpu-lost …
	Detail  string     `json:"detail,omitempty"` // for people
	Hard    bool       `json:"hard"`             // allocated slices are unhealthy too
	Since   *time.Time `json:"since,omitempty"`  // of this state; nil: not known
}

// Evidence is why a card was found contended, or no longer is. Names are those of Slice.
type Evidence struct {
	Time        time.Time `json:"time"`
	Contended   bool      `json:"contended"`
	Resource    string    `json:"resource"`
	Victim      string    `json:"victim"`     // key of its allocation
	Antagonist  string    `json:"antagonist"` // "": nobody in particular, or not known
	Confidence  float64   `json:"confidence"`
	Avg10       float64   `json:"avg10"`
	Avg60       float64   `json:"avg60"`
	DeviceRatio float64   `json:"device_ratio"`
	Samples     uint64    `json:"samples"` // behind the baseline
	Text        string    `json:"text"`    // all of it, for people
}

// Counts says what becomes of the slices of a card; they add up to all.
type Counts struct {
	Free      int `json:"free"`
	Allocated int `json:"allocated"`
	Withdrawn int `json:"withdrawn"`
}

// Slice is what one allocation holds and does on one card.
type Slice struct {
	Allocation           string     `json:"allocation"` // key
	GPUUUID              string     `json:"gpu_uuid"`
	Namespace            string     `json:"namespace"` // "" until the pod is known, as the two below
	Pod                  string     `json:"pod"`
	PodUID               string     `json:"pod_uid"`
	Container            string     `json:"container"`
	SliceIDs             []string   `json:"slice_ids"`
	MemoryUsedBytes      *uint64    `json:"memory_used_bytes"` // nil: its usage page cannot be read
	MemoryLimitBytes     uint64     `json:"memory_limit_bytes"`
	MemoryRefusals       uint64     `json:"memory_refusals"`
	ComputeMode          string     `json:"compute_mode"` // none, hard or elastic
	ShareGranted         float64    `json:"share_granted"`
	ShareCeiling         float64    `json:"share_ceiling"`
	ShareRate            *float64   `json:"share_rate"`      // in force now; more than granted: lent
	ShareUsed            *float64   `json:"share_used"`      // as the driver measured
	ThrottledRatio       *float64   `json:"throttled_ratio"` // part of the time in which launches waited for the share
	LaunchesPerSecond    *float64   `json:"launches_per_second"`
	CutRatio             *float64   `json:"cut_ratio,omitempty"` // what the lever leaves it of its share at present
	HostToDeviceRate     *float64   `json:"host_to_device_bytes_per_second"`
	DeviceToHostRate     *float64   `json:"device_to_host_bytes_per_second"`
	DeviceToDeviceRate   *float64   `json:"device_to_device_bytes_per_second"`
	PeerToPeerRate       *float64   `json:"peer_to_peer_bytes_per_second"`
	SyncStalledRatio     *float64   `json:"sync_stalled_ratio"` // time in …Synchronize, of all threads; can be above 1
	Traffic              []Traffic  `json:"traffic"`
	Pressures            []Pressure `json:"pressures"`
	SelfLimited          []string   `json:"self_limited,omitempty"` // resources on which it is its own antagonist
	Verdicts             []Verdict  `json:"verdicts"`               // what is wrong; none: nothing
	Pages                string     `json:"pages"`                  // readable, tampered, missing, unknown
	AllocationAgeSeconds float64    `json:"allocation_age_seconds"`
}

// Traffic is a slice's part of a card's traffic on a resource.
type Traffic struct {
	Resource    string  `json:"resource"` // dram, pcie_rx, pcie_tx, nvlink
	Known       bool    `json:"known"`    // false: unattributed
	Ratio       float64 `json:"ratio"`    // of what the card can do; 0 where not Known
	BytesPerSec float64 `json:"bytes_per_second"`
	Confidence  float64 `json:"confidence"`
	Why         string  `json:"why,omitempty"` // why not known, or why not with more confidence
}

// Pressure is the time lost on a resource, as in /proc/pressure.
type Pressure struct {
	Resource string   `json:"resource"`
	Some     Averages `json:"some"`
	Full     Averages `json:"full"`
}

// Averages are parts of the time, 0 to 1, over 10, 60 and 300 seconds, and what was lost ever.
type Averages struct {
	Avg10        float64 `json:"avg10"`
	Avg60        float64 `json:"avg60"`
	Avg300       float64 `json:"avg300"`
	TotalSeconds float64 `json:"total_seconds"`
}

// Kinds of verdicts on slices. More may be added: a client shows those that it does not know as they are.
const (
	VerdictVictim     = "victim"     // others slow it
	VerdictAntagonist = "antagonist" // it slows others
	VerdictHeld       = "held"       // waits for its share: what shares are for
	VerdictOverShare  = "over-share" // uses more GPU time than granted
	VerdictOverLimit  = "over-limit" // holds more memory than granted
	VerdictTampered   = "tampered"   // its pages were changed
	VerdictFrozen     = "frozen"     // no new memory until it starts again
	VerdictCut        = "cut"        // the lever holds its share down
)

// Verdict is one thing that is wrong with a slice.
type Verdict struct {
	Kind string `json:"kind"`
	Why  string `json:"why"`
}

// Probes says what the eBPF probes see.
type Probes struct {
	Mode           string   `json:"mode"`   // full, sampled or off
	Reason         string   `json:"reason"` // why not full
	HitCostSeconds float64  `json:"hit_cost_seconds"`
	Libraries      int      `json:"libraries"`
	Unobservable   []string `json:"unobservable"` // one for each file: "path (process PID and N others): reason"
}

// Source is one thing that the agent looks at.
type Source struct {
	Name   string `json:"name"`
	Up     bool   `json:"up"`
	Absent bool   `json:"absent"` // the agent runs without it
	// NotAsked says that it was left out because another source, which is down, knows what to ask it for.
	NotAsked bool   `json:"not_asked,omitempty"`
	Error    string `json:"error,omitempty"`
}

// Finding is something that a witness saw and that no slice accounts for.
type Finding struct {
	Kind      string    `json:"kind"` // no-slot, memory-beyond-book, time-beyond-grant, replaced-file, no-allocation
	Since     time.Time `json:"since"`
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    string    `json:"pod_uid"`
	Container string    `json:"container"` // name, or id where no name is known
	PIDs      []int     `json:"pids"`
	Command   string    `json:"command"`
	GPUUUID   string    `json:"gpu_uuid,omitempty"`
	Detail    string    `json:"detail"`
	Action    string    `json:"action"` // report, freeze or kill
}

// Frozen is a container that the agent has frozen.
type Frozen struct {
	Container   string    `json:"container"` // id, as `vgpud thaw` takes it
	Allocations []string  `json:"allocations"`
	Namespace   string    `json:"namespace"`
	Pod         string    `json:"pod"`
	Name        string    `json:"name"` // of the container in the pod
	Since       time.Time `json:"since"`
	Why         string    `json:"why"`
}
