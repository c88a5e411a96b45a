# SPDX-License-Identifier: Apache-2.0
# Copyright The vgpud Authors
#
# The front door: `make help` lists it. Everything that is made lies in build/; `make clean` removes it.
# Needs bash, Go, gcc and make; scripts/need.sh says or installs what else a target wants on Debian.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

OUT := $(CURDIR)/build
JOBS ?= $(shell nproc)

# One set of flags for every Go build: others would compile every dependency again.
export GOFLAGS := -buildvcs=false
export CGO_ENABLED := 1

# What `vgpud version` and vgpud_build_info tell; only the link depends on it.
REVISION := $(or $(shell git describe --always --dirty --abbrev=12 2>/dev/null),unknown)

# A nested make takes our job server where there is one, and -j otherwise. V=1 shows its commands, in tests too.
SUBMAKE = $(MAKE) $(if $(V),,-s) $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))

.PHONY: help build shim sim agent client demo test check e2e bench-shim bench-compute bench-agent bench-contention bench-probes test-gpu format docs tools clean need-build

help: ## Show this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

build: shim sim agent client ## Build the agent, libvgpu and the simulated GPU into build/

shim: need-build
	@echo "building libvgpu.so"
	@$(SUBMAKE) -C libvgpu OUT=$(OUT) all

sim: need-build
	@echo "building the simulated GPU"
	@$(SUBMAKE) -C libvgpu/sim OUT=$(OUT) all

agent: need-build
	@echo "building vgpud"
	@mkdir -p $(OUT)
	@go build -ldflags '-X main.revision=$(REVISION)' -o $(OUT)/vgpud ./agent

# The small driver-API programs that the demo runs in slices; the end-to-end tests run the same sources.
CLIENTS := $(addprefix $(OUT)/sim/,client flood)
client: $(CLIENTS)
$(CLIENTS): $(OUT)/sim/%: scripts/e2e/client/%.c $(wildcard scripts/e2e/client/*.h) | need-build
	@mkdir -p $(@D)
	@$(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -Wshadow -Wconversion -pthread -o $@ $< -ldl

need-build:
	@scripts/need.sh build

demo: build ## Walk through vgpud on a simulated GPU: no GPU, no cluster, no root
	@$(OUT)/vgpud demo

test: build ## Run all tests that need only a compiler, and count them
	@OUT=$(OUT) V=$(V) scripts/test.sh

check: tools ## Lint, formatting, exports, layering, generated docs
	@OUT=$(OUT) scripts/check.sh

e2e: build ## Run the end-to-end tests on a real one-node Kubernetes cluster (root)
	@OUT=$(OUT) scripts/e2e/run.sh

bench-shim: shim sim ## Measure what libvgpu adds to a call, in ns, also as JSON
	@$(SUBMAKE) -C libvgpu OUT=$(OUT) bench

bench-compute: build ## Measure how exactly shares of GPU time are held, into docs/benchmarks (root)
	@go run ./scripts/computebench --build $(OUT) --out docs/benchmarks

bench-contention: build ## Measure how contention is found and told from what is none, into docs/benchmarks (root)
	@go run ./scripts/contentionbench --build $(OUT) --out docs/benchmarks

bench-agent: build ## Measure what the agent costs, with a profile, into docs/benchmarks (root)
	@go run ./scripts/agentbench --build $(OUT) --out docs/benchmarks

bench-probes: sim ## Measure what the kernel's probes cost: hits, attaching, reading, looking (root)
	@go test -run '^$$' -bench . -benchtime 1x ./bpf

test-gpu: build bench-shim ## Check caps, views and costs on a real GPU and driver
	@scripts/test-gpu.sh

format: ## Format Go and C
	@gofmt -w $$(git ls-files '*.go')
	@clang-format -i $$(git ls-files 'libvgpu/*.[ch]' 'bpf/*.[ch]')

docs: ## Write the generated pages of docs/ again
	@OUT=$(OUT) scripts/gendocs.sh docs

tools: ## Build the pinned linter into build/tools (once)
	@OUT=$(OUT) scripts/tools/build.sh

clean: ## Remove build/
	rm -rf $(OUT)
