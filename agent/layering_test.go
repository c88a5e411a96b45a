// SPDX-License-Identifier: Apache-2.0
// Copyright The vgpud Authors

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/vgpud/vgpud/"

// allowedImports is the arrow of docs/architecture.md as a table: which of our packages each may import. What is
// not listed is forbidden, so a new edge, like a new package, is a line here that somebody reads in review.
// What is listed is used, so that the table shows the whole picture.
var allowedImports = map[string][]string{
	"agent":                     {"*"}, // main: app.go composes
	"agent/amount":              {},
	"agent/source":              {},
	"agent/source/bpfevents":    {"agent/source", "bpf"},
	"agent/source/fake":         {"agent/source"},
	"agent/source/kubelet":      {"agent/source"},
	"agent/source/ledger":       {"agent/source", "plugin/ledger"},
	"agent/source/nvml":         {"agent/source", "agent/source/procs"},
	"agent/source/pages":        {"agent/source", "limiter"},
	"agent/source/procs":        {"agent/source"},
	"agent/monitor":             {"agent/source"},
	"agent/control":             {},
	"agent/demo":                {"plugin", "plugin/ledger", "plugin/kubelettest", "limiter"},
	"agent/events":              {},
	"agent/freezer":             {"agent/decide/witness", "agent/source/procs", "internal/atomicfile"},
	"agent/freezer/freezertest": {"agent/source/procs", "internal/require"},
	"agent/metrics":             {"agent/notes", "agent/monitor", "agent/decide", "agent/decide/contention", "agent/decide/health", "agent/decide/steering", "agent/decide/witness", "agent/outside", "agent/steer", "agent/watch", "internal/atomicfile"},
	"agent/notes":               {},
	"agent/standalone":          {"agent/amount", "agent/source", "agent/source/nvml", "internal/atomicfile", "limiter", "plugin", "plugin/ledger"},
	"agent/store":               {"agent/decide/health", "internal/atomicfile", "limiter", "plugin", "plugin/ledger"},
	"agent/top":                 {"agent/control"},
	"bpf":                       {},
	"limiter":                   {},
	"plugin":                    {"plugin/ledger", "internal/atomicfile"},
	"plugin/ledger":             {"internal/atomicfile"},
	"plugin/kubelettest":        {},
	"internal/atomicfile":       {},
	"internal/logtest":          {},
	"internal/require":          {},

	// Decide and its rooms.
	"agent/decide":             {"agent/monitor", "agent/decide/health"},
	"agent/outside":            {"agent/decide/witness", "agent/freezer", "agent/monitor", "agent/notes", "agent/source", "agent/steer", "limiter"},
	"agent/steer":              {"agent/decide/steering", "agent/monitor", "agent/notes", "agent/source", "agent/store", "limiter", "plugin/ledger"},
	"agent/steer/steertest":    {"limiter"},
	"agent/watch":              {"agent/decide/contention", "agent/decide/health", "agent/decide/steering", "agent/monitor", "agent/notes", "agent/source", "agent/steer", "agent/store", "limiter", "plugin/ledger"},
	"agent/watch/watchtest":    {"agent/decide/contention", "agent/monitor", "agent/source"},
	"agent/decide/attribution": {},
	"agent/decide/contention":  {"agent/monitor", "agent/decide/attribution"},
	"agent/decide/health":      {"agent/decide/contention", "agent/decide/steering"},
	"agent/decide/steering":    {"agent/monitor"},
	"agent/decide/witness":     {"agent/monitor", "agent/decide/steering"},

	"scripts/agentbench":              {"scripts/benchnode", "scripts/benchpage"},
	"scripts/benchnode":               {"limiter", "plugin/kubelettest"},
	"scripts/benchpage":               {},
	"scripts/computebench":            {"limiter", "scripts/benchnode", "scripts/benchpage", "scripts/computebench/scene", "scripts/computebench/virtual"},
	"scripts/computebench/scene":      {},
	"scripts/computebench/virtual":    {"agent/decide/steering", "agent/monitor", "agent/source", "limiter", "scripts/computebench/scene"},
	"scripts/computetest":             {}, // tests alone
	"scripts/contentionbench":         {"agent/control", "agent/decide", "agent/decide/contention", "agent/decide/health", "agent/monitor", "limiter", "scripts/benchnode", "scripts/benchpage", "scripts/contentionbench/scene", "scripts/contentionbench/virtual"},
	"scripts/contentionbench/scene":   {},
	"scripts/contentionbench/virtual": {"agent/monitor", "agent/source", "scripts/contentionbench/scene"},
	"scripts/gendocs":                 {},
	"scripts/tally":                   {},
}

// testImports may be used by any test on top of the package's own row.
var testImports = []string{"internal/logtest", "internal/require", "agent/source/fake", "agent/freezer/freezertest", "agent/steer/steertest", "agent/watch/watchtest", "plugin/kubelettest"}

// noEffects are packages of pure functions, and the standard packages through which they would stop being pure.
var (
	noEffects = []string{"agent/decide", "agent/decide/attribution", "agent/decide/contention", "agent/decide/health", "agent/decide/steering",
		"agent/decide/witness", "agent/monitor"}
	effects = []string{"os", "io/fs", "net", "net/http", "log", "log/slog", "os/exec", "syscall", "math/rand", "math/rand/v2"}
)

// environmentReaders may read the environment: the agent through config.go alone, and the test helper.
var environmentReaders = []string{"agent/config.go", "internal/require/require.go"}

// listedPackage is what `go list -json` says of one package.
type listedPackage struct {
	ImportPath                         string
	Dir                                string
	Imports, TestImports, XTestImports []string
	GoFiles, CgoFiles, TestGoFiles     []string
}

func (p listedPackage) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,Imports,TestImports,XTestImports,GoFiles,CgoFiles,TestGoFiles", "./...")
	cmd.Dir = ".."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var packages []listedPackage
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listedPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		packages = append(packages, p)
	}
	if len(packages) < 2 {
		t.Fatalf("go list names %d packages; the test looks in the wrong place", len(packages))
	}
	return packages
}

// ours returns those of imports that lie in this module, without the module's path.
func ours(imports []string) []string {
	var names []string
	for _, path := range imports {
		if name, ok := strings.CutPrefix(path, module); ok {
			names = append(names, name)
		}
	}
	return names
}

func TestLayeringImports(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range listPackages(t) {
		name := p.name()
		seen[name] = true
		allowed, ok := allowedImports[name]
		if !ok {
			t.Errorf("package %s has no row in allowedImports", name)
			continue
		}
		if slices.Contains(allowed, "*") {
			continue
		}
		for _, path := range ours(p.Imports) {
			if !slices.Contains(allowed, path) {
				t.Errorf("%s imports %s: values travel downstream only (see allowedImports)", name, path)
			}
		}
		for _, path := range allowed {
			if !slices.Contains(ours(p.Imports), path) {
				t.Errorf("%s may import %s and does not: take it out of allowedImports", name, path)
			}
		}
		for _, path := range ours(slices.Concat(p.TestImports, p.XTestImports)) {
			isValues := path == "agent/source" || path == "agent/monitor" // what looks and what is concluded from them are made of
			isNextRoom := isRoom(name) && isRoom(path)                    // tried together
			if path != name && !slices.Contains(allowed, path) && !slices.Contains(testImports, path) && !isValues && !isNextRoom {
				t.Errorf("tests of %s import %s", name, path)
			}
		}
		if slices.Contains(noEffects, name) {
			for _, path := range p.Imports {
				if slices.Contains(effects, path) {
					t.Errorf("%s imports %s: it is a pure function of its arguments", name, path)
				}
			}
		}
	}
	for name := range allowedImports {
		if !seen[name] {
			t.Errorf("allowedImports has a row for %s, which is not there", name)
		}
	}
}

// isRoom says whether a package is decide or one of its rooms.
func isRoom(name string) bool {
	return name == "agent/decide" || strings.HasPrefix(name, "agent/decide/")
}

// TestLayeringTestHelpers keeps what only tests need out of the program.
func TestLayeringTestHelpers(t *testing.T) {
	// `vgpud demo` walks through the protocol with the in-process kubelet, and the benchmarks' nodes have one. Test rooms may
	// need each other.
	exceptions := map[string][]string{"agent/demo": {"plugin/kubelettest"}, "scripts/benchnode": {"plugin/kubelettest"},
		"agent/freezer/freezertest": {"internal/require"}}
	for _, p := range listPackages(t) {
		for _, path := range ours(p.Imports) {
			if slices.Contains(testImports, path) && !slices.Contains(exceptions[p.name()], path) {
				t.Errorf("%s imports %s outside a test", p.name(), path)
			}
		}
	}
}

// TestLayeringCgo: only package limiter has C, so that one package holds every assumption about layout.
func TestLayeringCgo(t *testing.T) {
	found := false
	for _, p := range listPackages(t) {
		if len(p.CgoFiles) == 0 {
			continue
		}
		if p.name() != "limiter" {
			t.Errorf("%s imports \"C\" in %v", p.name(), p.CgoFiles)
		}
		found = found || p.name() == "limiter"
	}
	if !found {
		t.Error("package limiter has no cgo file; the test looks in the wrong place")
	}
}

// TestLayeringEnvironment: configuration is read once, at the edge, into a type.
func TestLayeringEnvironment(t *testing.T) {
	readers := []string{"Getenv", "LookupEnv", "Environ", "ExpandEnv", "Setenv", "Unsetenv", "Clearenv"}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range listPackages(t) {
		for _, file := range slices.Concat(p.GoFiles, p.CgoFiles) {
			path := filepath.Join(p.Dir, file)
			relative, err := filepath.Rel(root, path)
			if err != nil {
				t.Fatal(err)
			}
			if slices.Contains(environmentReaders, relative) {
				continue
			}
			for _, call := range selectors(t, path, "os", "syscall", "golang.org/x/sys/unix") {
				if slices.Contains(readers, call) {
					t.Errorf("%s uses os.%s: only %v reads the environment", relative, call, environmentReaders)
				}
			}
		}
	}
}

// selectors returns every Name in "pkg.Name" of a file, for the given imported packages under whatever local name.
func selectors(t *testing.T, path string, packages ...string) []string {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, source, 0)
	if err != nil {
		t.Fatal(err)
	}
	local := map[string]bool{}
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(packages, imported) {
			continue
		}
		name := imported[strings.LastIndex(imported, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		local[name] = true
	}
	var names []string
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && local[x.Name] {
				names = append(names, s.Sel.Name)
			}
		}
		return true
	})
	return names
}
