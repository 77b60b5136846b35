# Every target does its own set-up; `make help` lists them.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export CGO_ENABLED ?= 0
GO      ?= go
GOFLAGS_BUILD := -trimpath
TOOL    := $(GO) tool -modfile=test/tools/go.mod
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X plimsoll.dev/pkg/version.Version=$(VERSION)
# What `go test` runs: everything but the cluster tests, which need e2e's set-up.
PACKAGES = $(shell $(GO) list ./... | grep -v /test/e2e)

.PHONY: help
help: ## List the targets.
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build webhook, agent and kubectl-plimsoll into bin/.
	$(GO) build $(GOFLAGS_BUILD) -ldflags '$(LDFLAGS)' -o bin/ ./webhook ./agent ./pkg/cli/kubectl-plimsoll

.PHONY: deps
deps: ## Install the Debian packages that tests and demo need (needs root).
	@bash test/node/setup.sh

.PHONY: controlplane
controlplane: ## Build etcd and Kubernetes once into .cache/ (6 to 9 minutes cold).
	@$(GO) run $(GOFLAGS_BUILD) ./test/env/cmd/controlplane

.PHONY: demo
demo: deps controlplane ## Run the main job on a real one-node cluster (needs root; KEEP=1 leaves it running).
	@$(GO) run $(GOFLAGS_BUILD) ./test/e2e/cmd/demo $(if $(KEEP),--keep)

.PHONY: test
test: deps controlplane ## Run all tests but those of a whole cluster.
	$(TOOL) gotestsum --format pkgname-and-test-fails -- $(GOFLAGS_BUILD) -count 1 -timeout 20m -p 2 $(PACKAGES)
	cd test/controlplane && $(GO) vet $(GOFLAGS_BUILD) ./...

.PHONY: e2e
e2e: deps controlplane ## Run the demo's cluster under assertions (needs root).
	$(TOOL) gotestsum --format standard-verbose -- $(GOFLAGS_BUILD) -count 1 -timeout 30m ./test/e2e/...

.PHONY: test-kernel
test-kernel: ## Run the tests of real cgroups on Debian's 6.1 and 6.12 with cgroup v2, in a guest (needs root).
	@bash test/node/setup.sh qemu-system-x86 xz-utils
	$(GO) run $(GOFLAGS_BUILD) ./test/kernel ./agent/...

.PHONY: test-kernel-cluster
test-kernel-cluster: deps controlplane ## Run the whole one-node cluster on cgroup v2, in a guest (needs root).
	@bash test/node/setup.sh qemu-system-x86 xz-utils
	$(GO) run $(GOFLAGS_BUILD) ./test/kernel -cluster

.PHONY: bench
bench: deps controlplane ## Print the RESULT lines of every benchmark.
	@$(GO) test $(GOFLAGS_BUILD) -run '^$$' -bench . -benchmem -timeout 2h $(PACKAGES) | grep -E '^(RESULT|Benchmark|FAIL|panic)'

.PHONY: soak
soak: deps controlplane ## Long churn and load; not part of CI.
	$(GO) test $(GOFLAGS_BUILD) -tags soak -count 1 -timeout 2h -run Soak ./agent/... ./webhook/... ./pkg/...

.PHONY: generate
generate: ## Regenerate deepcopy functions and CRDs.
	$(TOOL) controller-gen object paths=./pkg/api/... crd paths=./pkg/api/... output:crd:dir=charts/plimsoll/crds

.PHONY: fmt
fmt: ## Format the code.
	$(TOOL) golangci-lint fmt

.PHONY: verify
verify: generate ## Regenerate, lint, vet; fail if the tree is dirty afterwards.
	$(GO) mod tidy
	cd test/controlplane && $(GO) mod tidy
	cd test/runtime && $(GO) mod tidy
	cd test/tools && $(GO) mod tidy
	$(GO) vet ./...
	$(TOOL) golangci-lint fmt --diff
	$(TOOL) golangci-lint run
	$(TOOL) helm lint --strict charts/plimsoll
	@bash -n .ci/run test/node/*.sh
	@if [ -n "$$(git status --porcelain)" ]; then \
	  echo 'verify: the tree is not clean; commit what the steps above changed:' >&2; git status --short >&2; git diff | head -100 >&2; exit 1; fi
	@echo 'verify: generated code is current, the tree is clean'

.PHONY: clean
clean: ## Remove what was built, caches included.
	rm -rf bin .cache
