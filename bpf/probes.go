// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Mode is how much is probed.
type Mode string

// The modes. Auto takes the fullest that the measured cost of a hit allows.
const (
	ModeAuto    Mode = "auto"
	ModeFull    Mode = "full"
	ModeSampled Mode = "sampled" // only calls that are rare: allocations and contexts
	ModeOff     Mode = "off"
)

// The budget: a container's calls may cost it half a percent of its time at a thousand calls a second, which makes full
// probes worth having up to 5 µs a hit; rare calls may cost ten times that.
const (
	budgetShare   = 0.005
	fullHitCost   = 5 * time.Microsecond
	rareHitCost   = 50 * time.Microsecond
	burst         = time.Second // what a group may do at once beyond the rate: that long's worth
	lowestCap     = 100         // calls a second that are counted at any cost
	watchInterval = lookEvery
	closePatience = 10 * time.Second
)

// Options say what to probe. The zero value is what a node's agent wants, but for Libraries.
type Options struct {
	Mode      Mode     // "" is ModeAuto
	Proc      string   // "" is /proc; it must show the host's processes
	Dev       string   // "" is /dev
	Libraries []string // patterns of paths whose drivers are probed before anybody maps them
	Never     []string // and of files that are no driver's, whatever a container calls them
	Log       *slog.Logger

	// For tests and special machines; zero values choose by themselves.
	Numbering Numbering
	Mechanism Mechanism
	Cap       int           // counted calls per second and control group; 0: by budget
	Unused    time.Duration // how long a library that nobody maps stays probed
	restFor   time.Duration // the first rest of a file whose calls stay over the cap, see rest.go; 0: by Mode
	noRecords bool          // as if the kernel refused records of mappings
	trace     bool          // keep whose libraries are probed
}

func (o Options) keepUnused() time.Duration { return cmp.Or(o.Unused, keepUnused) }

// DefaultLibraries are where drivers lie on a host.
func DefaultLibraries() []string {
	return []string{
		"/usr/lib/x86_64-linux-gnu/libcuda.so.*", "/usr/lib/aarch64-linux-gnu/libcuda.so.*", "/usr/lib64/libcuda.so.*",
		"/usr/lib/libcuda.so.*", "/usr/local/nvidia/lib64/libcuda.so.*", "/*/kubernetes/bin/nvidia/lib64/libcuda.so.*",
		"/run/nvidia/driver/usr/lib/*/libcuda.so.*", "/run/nvidia/driver/usr/lib64/libcuda.so.*",
	}
}

// Unobservable is a driver's library that processes have mapped and that cannot be probed, or not all of it.
type Unobservable struct {
	Path      string // as the process of PID sees it
	PID       int    // the lowest of those that have it mapped
	Processes int    // that have; counted up to maxUsers
	Partial   bool   // it is probed, but some of its functions cannot be
	Reason    string
}

// Status is what the probes see and cost.
type Status struct {
	Mode         Mode // never ModeAuto
	Reason       string
	Mechanism    Mechanism
	Numbering    Numbering
	HitCost      time.Duration  // of one probed call, entry and return, on an instruction that the kernel emulates
	SteppedCost  time.Duration  // on one that it single-steps
	Cap          int            // counted calls per second and control group
	Libraries    int            // files that are probed
	Resting      int            // of them those where only rare calls are for now; the mode is ModeSampled meanwhile
	Records      bool           // mappings are told by the kernel; else found by scanning
	Ioctls       bool           // ioctls on device nodes are counted
	Unobservable []Unobservable // one for each file, by path
}

// Probes are at work until Close. Its methods may be called at the same time.
type Probes struct {
	loaded *loaded
	extra  []link.Link // tracepoints
	stop   chan struct{}
	done   chan struct{}

	mutex    sync.Mutex // of what follows; never held while files are opened or probes attached
	reader   reader
	status   Status
	reasons  []string
	looked   time.Time        // when the watcher last ended a round
	traced   map[int][]fileID // by pid, 0: ahead
	resting  []fileID
	watchErr error // of detaching, once done is closed
	closeErr error
	once     sync.Once
}

// ErrOff says that Options asked for no probes.
var ErrOff = errors.New("probes are switched off")

// Unavailable says why there are no probes.
type Unavailable struct {
	Reason string // for people; names what is missing
	Cause  error
}

func (e *Unavailable) Error() string { return e.Reason }
func (e *Unavailable) Unwrap() error { return e.Cause }

// Open loads the programs, measures what a hit costs, probes every library that is mapped, and goes on looking for new
// ones. An error is ErrOff or Unavailable.
func Open(options Options) (*Probes, error) {
	options.Mode = cmp.Or(options.Mode, ModeAuto)
	options.Proc = cmp.Or(options.Proc, "/proc")
	options.Dev = cmp.Or(options.Dev, "/dev")
	if options.Log == nil {
		options.Log = slog.New(slog.DiscardHandler)
	}
	if options.Mode == ModeOff {
		return nil, ErrOff
	}
	n := cmp.Or(options.Numbering, numbering())
	unavailable := func(err error) error {
		return &Unavailable{Reason: lookAtMachine(options.Proc).explain(err, n), Cause: err}
	}
	l, err := load(options.Mechanism, n)
	if err != nil {
		return nil, unavailable(err)
	}
	c, err := l.measure()
	if err != nil {
		l.close()
		return nil, unavailable(err)
	}
	p := &Probes{loaded: l, stop: make(chan struct{}), done: make(chan struct{})}
	if err := p.choose(options, c); err != nil {
		l.close()
		return nil, err
	}
	if err := p.limit(options.Cap, c); err != nil {
		l.close()
		return nil, unavailable(err)
	}
	p.attachTracepoints()
	w := newWatcher(options, l, p.accept(c))
	i := newIoctls(options.Proc, options.Dev, l)
	p.begin(w, i)
	go p.watch(w, i)
	return p, nil
}

// choose settles the mode.
func (p *Probes) choose(options Options, c cost) error {
	p.status = Status{Mechanism: p.loaded.mechanism, Numbering: p.loaded.numbering, HitCost: c.emulated, SteppedCost: c.stepped}
	mode := options.Mode
	if mode == ModeAuto {
		switch {
		case c.emulated <= fullHitCost:
			mode = ModeFull
		case c.emulated <= rareHitCost:
			mode = ModeSampled
			p.because("a probed call costs %v here, more than %v: only allocations and contexts are probed", c.emulated, fullHitCost)
		default:
			return &Unavailable{Reason: fmt.Sprintf("a probed call costs %v here, more than %v", c.emulated, rareHitCost)}
		}
	}
	if p.loaded.mechanism == MechanismSingle && mode == ModeFull {
		mode = ModeSampled
		p.because("kernel %s has no uprobe.multi (6.6): only allocations and contexts are probed", lookAtMachine(options.Proc).kernel)
	}
	p.status.Mode = mode
	return nil
}

// accept says which probes are put in.
func (p *Probes) accept(c cost) func(placed) bool {
	mode := p.status.Mode
	return func(f placed) bool {
		if f.rare() {
			return f.emulated || c.stepped <= rareHitCost
		}
		return mode == ModeFull && (f.emulated || c.stepped <= fullHitCost)
	}
}

// capFor is how many calls a second keep the budget.
func capFor(hit time.Duration) int {
	return max(lowestCap, int(budgetShare*float64(time.Second)/float64(max(hit, 100*time.Nanosecond))))
}

// limit sets the rate cap in the kernel.
func (p *Probes) limit(perSecond int, c cost) error {
	if perSecond == 0 {
		perSecond = capFor(c.emulated)
	}
	p.status.Cap = perSecond
	variables := p.loaded.collection.Variables
	if err := variables[probesVarBurstNs].Set(uint64(burst)); err != nil {
		return fmt.Errorf("set the cap's burst: %w", err)
	}
	if err := variables[probesVarIntervalNs].Set(uint64(time.Second) / uint64(perSecond)); err != nil {
		return fmt.Errorf("set the cap: %w", err)
	}
	return nil
}

// attachTracepoints attaches what probes can do without.
func (p *Probes) attachTracepoints() {
	for _, t := range []struct{ program, tracepoint, lost string }{
		{"exit", "sched_process_exit", "ends of processes are not counted"},
		{"gone", "cgroup_rmdir", "counts of removed control groups are kept until there is no room"},
	} {
		program, err := p.loaded.also(t.program)
		if err == nil {
			var l link.Link
			if l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: t.tracepoint, Program: program}); err == nil {
				p.extra = append(p.extra, l)
			}
		}
		if err != nil {
			p.because("%s: %s", t.lost, firstLine(err))
		}
	}
}

func (p *Probes) because(format string, args ...any) {
	p.reasons = append(p.reasons, fmt.Sprintf(format, args...))
}

// begin is the first look, which finds all there is.
func (p *Probes) begin(w *watcher, i *ioctls) {
	m := lookAtMachine(w.options.Proc)
	if missing := m.lacks(unix.CAP_SYS_PTRACE); len(missing) > 0 {
		p.because("CAP_SYS_PTRACE missing: libraries of other users' processes are not found")
	}
	if err := w.start(); err != nil {
		p.because("new libraries are found by scanning, as the kernel's records of mappings are refused (kernel.perf_event_paranoid is %d): %s", m.paranoid, firstLine(err))
	}
	if err := i.update(); err != nil {
		p.because("ioctls are not counted: %s", firstLine(err))
	}
	p.loaded.done()
	p.publish(w, i, time.Now())
}

// watch runs until Close.
func (p *Probes) watch(w *watcher, i *ioctls) {
	defer close(p.done)
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	nextDevices := time.Now().Add(pathsEvery)
	for {
		select {
		case <-p.stop:
			p.watchErr = errors.Join(w.close(), i.close())
			return
		case <-ticker.C:
		}
		now := time.Now()
		w.look(now)
		if now.After(nextDevices) {
			nextDevices = now.Add(pathsEvery)
			before := i.err
			if err := i.update(); err != nil && before == nil {
				p.mutex.Lock()
				p.because("ioctls are not counted: %s", firstLine(err))
				p.mutex.Unlock()
			}
		}
		p.publish(w, i, now)
	}
}

// publish makes what the watcher found the status.
func (p *Probes) publish(w *watcher, i *ioctls, now time.Time) {
	libraries := 0
	for _, l := range w.libraries {
		if l.probes != nil {
			libraries++
		}
	}
	hidden, resting := w.unobservable(), w.resting()
	traced := w.trace()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.looked, p.traced, p.resting = now, traced, resting
	p.status.Libraries, p.status.Resting, p.status.Unobservable = libraries, len(resting), hidden
	p.status.Records, p.status.Ioctls = len(w.rings) > 0, i.link != nil && i.err == nil
}

// Status tells what the probes see now.
func (p *Probes) Status() Status {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	s := p.status
	reasons := slices.Clone(p.reasons)
	if quiet := time.Since(p.looked); quiet > 10*time.Second {
		reasons = append(reasons, fmt.Sprintf("the search for libraries has hung for %v: somebody's file does not answer", quiet.Round(time.Second)))
	}
	var lost uint64
	if err := p.loaded.collection.Variables[probesVarLost].Get(&lost); err == nil && lost > 0 {
		reasons = append(reasons, fmt.Sprintf("%d calls were not counted: there are more control groups than rows", lost))
	}
	if s.Resting > 0 {
		s.Mode = ModeSampled
		reasons = append(reasons, fmt.Sprintf("copies and waits in %d libraries are not counted for a while: containers make more than %d a second", s.Resting, s.Cap))
	}
	s.Reason = strings.Join(reasons, "; ")
	s.Unobservable = slices.Clone(s.Unobservable)
	return s
}

// Groups returns the counts of every control group that has any, by its number.
func (p *Probes) Groups() ([]Group, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	m := p.loaded.collection.Maps[probesMapGroups]
	groups, err := p.reader.read(m)
	if err != nil {
		return nil, err
	}
	return groups, p.reader.makeRoom(m, groups, time.Now())
}

// Close detaches everything. A second call answers as the first.
func (p *Probes) Close() error {
	p.once.Do(func() {
		close(p.stop)
		select {
		case <-p.done:
		case <-time.After(closePatience):
			p.closeErr = fmt.Errorf("detach probes: somebody's file has not answered for %v; the kernel detaches them when this process ends", closePatience)
			return
		}
		p.mutex.Lock()
		defer p.mutex.Unlock()
		p.closeErr = p.watchErr
		for _, l := range p.extra {
			p.closeErr = errors.Join(p.closeErr, l.Close())
		}
		p.loaded.close()
	})
	return p.closeErr
}
