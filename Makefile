# Two commands matter: `make demo` and `make test`. Both install what is missing.

SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: conformance help setup build demo lab lab-down test test-build fresh fresh-short acceptance sim lint bench fuzz

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install Debian packages and compile RocksDB, once per machine
	@scripts/setup.sh

build: setup ## Build everything (development profile)
	@scripts/cargo.sh build --workspace --locked

demo: ## Build a cluster of three machines on this one, and cut the power of one
	@scripts/timed.sh "make demo" scripts/demo.sh

lab: setup ## Build three machines on this one and leave them running: NODES=5 OPTIONS="--disk 256"
	@scripts/cargo.sh build -p jaco-cli -p jaco-chaos --bins --locked
	@scripts/lab.sh up $(or $(NODES),3) $(OPTIONS)

lab-down: ## Remove the labs of `make lab`, and the remains of killed ones
	@scripts/lab.sh down

test: ## Run every test, end-to-end ones included
	@scripts/timed.sh "make test" scripts/test.sh

test-build: ## Build every test program, and run none
	@scripts/timed.sh "make test-build" scripts/test.sh --build-only

fresh: ## Prove that `make demo` and every build work on a bare Debian 12, made for it in namespaces
	@scripts/timed.sh "make fresh" scripts/fresh.sh

fresh-short: ## The same for `make setup` and the crates proto, net and raftnode only
	@scripts/timed.sh "make fresh-short" scripts/fresh.sh --short

acceptance: setup ## Run the full form of the cluster tests: hours (make test runs a short form)
	@scripts/engine.sh scripts/acceptance.sh

lint: setup ## Formatting, clippy, documentation, dependency policy
	@scripts/lint.sh

fuzz: setup ## Fuzz the parsers of untrusted input: TARGET=compose SECONDS=600
	@TARGET="$(TARGET)" SECONDS_EACH="$(SECONDS)" MINIMIZE="$(MINIMIZE)" scripts/fuzz.sh

sim: setup ## Run simulated clusters: SEEDS=1000, or one with its trace: SEED=7; NUISANCE=Loss, MUTATION=SkipSync
	@SEEDS="$(SEEDS)" SEED="$(SEED)" MUTATION="$(MUTATION)" NUISANCE="$(NUISANCE)" scripts/sim.sh

conformance: setup ## Run h2spec and the Autobahn cases against the HTTP data plane; LONG=1 for the slow cases
	@LONG="$(LONG)" scripts/conformance.sh

bench: setup ## Measure; prints figures, asserts nothing
	@scripts/engine.sh scripts/bench.sh

