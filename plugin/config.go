// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

// What the plugin is told at start, and what is refused.

package plugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/vgpud/vgpud/plugin/ledger"
)

// Device list strategies: how a container gets its GPUs.
const (
	// StrategyEnvvar names the GPUs in NVIDIA_VISIBLE_DEVICES; the NVIDIA container runtime adds them.
	StrategyEnvvar = "envvar"
	// StrategyCDI names them as CDI devices; the container runtime adds them.
	StrategyCDI = "cdi-cri"
)

// Config is what the plugin is told at start. Paths are absolute, and the same on the host as for the agent.
type Config struct {
	ResourceName string   // the extended resource, such as nvidia.com/gpu
	KubeletDir   string   // /var/lib/kubelet; the sockets are in device-plugins below it
	Strategy     string   // StrategyEnvvar or StrategyCDI
	CDIKind      string   // vendor.com/class of the CDI devices, such as nvidia.com/gpu; used with StrategyCDI
	CDISpecDirs  []string // where CDI spec files are; empty: where runtimes look by default
	ContainerDir string   // where new allocations find library and pages in a container, such as /usr/local/vgpud
	LibraryDir   string   // host directory of library builds, as InstallLibrary fills it
	BuildID      string   // the build that new allocations get
	PagesDir     string   // host directory of the pages: <PagesDir>/<key>/{limits,usage}

	// Timing may be left zero (production values); tests shorten it.
	Timing Timing
}

// Timing holds every duration that the registration uses. A zero field stands for its production value.
type Timing struct {
	Poll         time.Duration // how often sockets are compared when no file event arrives; 1 s
	SelfCheck    time.Duration // deadline of the call to ourselves; 5 s
	Register     time.Duration // deadline of Register; 10 s: the kubelet dials back inside it
	Confirm      time.Duration // how long the kubelet may take to open ListAndWatch; 5 s
	Settle       time.Duration // pause between closing and listening again; 100 ms
	BackoffFirst time.Duration // pause after the first failed registration, doubled each time; 500 ms
	BackoffMax   time.Duration // its limit; 15 s
	Stop         time.Duration // how long running calls may take when we stop; 5 s
	LeftoverAge  time.Duration // age from which a dead predecessor's socket file is removed; 10 s
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	set(&t.Poll, time.Second)
	set(&t.SelfCheck, 5*time.Second)
	set(&t.Register, 10*time.Second)
	set(&t.Confirm, 5*time.Second)
	set(&t.Settle, 100*time.Millisecond)
	set(&t.BackoffFirst, 500*time.Millisecond)
	set(&t.BackoffMax, 15*time.Second)
	set(&t.Stop, 5*time.Second)
	set(&t.LeftoverAge, 10*time.Second)
	return t
}

// PluginDir is the directory of the kubelet's device plugin sockets.
func (c Config) PluginDir() string { return filepath.Join(c.KubeletDir, "device-plugins") }

// KubeletSocket is where the kubelet listens for registrations.
func (c Config) KubeletSocket() string { return filepath.Join(c.PluginDir(), "kubelet.sock") }

// library is what new allocations get.
func (c Config) library() ledger.Library {
	return ledger.Library{BuildID: c.BuildID, ContainerDir: c.ContainerDir}
}

// Validate checks the configuration; the error names the field and the rule.
func (c Config) Validate() error {
	if err := ValidateResourceName(c.ResourceName); err != nil {
		return err
	}
	switch c.Strategy {
	case StrategyEnvvar:
	case StrategyCDI:
		if err := ValidateCDIKind(c.CDIKind); err != nil {
			return fmt.Errorf("CDI kind %q: %w", c.CDIKind, err)
		}
	default:
		return fmt.Errorf("device list strategy %q is neither %s nor %s", c.Strategy, StrategyEnvvar, StrategyCDI)
	}
	for _, dir := range []struct{ name, path string }{
		{"kubelet directory", c.KubeletDir}, {"container directory", c.ContainerDir},
		{"library directory", c.LibraryDir}, {"pages directory", c.PagesDir},
	} {
		if err := ValidatePath(dir.path); err != nil {
			return fmt.Errorf("%s %q: %w", dir.name, dir.path, err)
		}
	}
	if !validBuildID(c.BuildID) {
		return fmt.Errorf("build ID %q is not a string of hexadecimal digits", c.BuildID)
	}
	return nil
}

// ValidatePath is the rule for every path that is configured; its error says the rule. Paths travel as text to the kubelet
// and become a line of ld.so.preload, where blanks and colons separate and # begins a comment.
func ValidatePath(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return errors.New("want a clean absolute path, not the root")
	}
	unusable := func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) || r == ':' || r == '#' }
	if !utf8.ValidString(path) || strings.ContainsFunc(path, unusable) {
		return errors.New("want a path of printable text without blanks, colons and #")
	}
	return nil
}
