# Two commands matter: `make demo` and `make test`. Both install what is missing.

SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help setup demo test lint bench build fuzz sim

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install Debian packages and compile RocksDB, once per machine
	@scripts/setup.sh

build: setup ## Build everything (development profile)
	@scripts/cargo.sh build --workspace --locked

demo: setup ## Bring JACO up on this machine and run a compose stack on it
	@scripts/cargo.sh build -p jaco-cli --bins --locked
	@scripts/engine.sh scripts/demo.sh

test: setup ## Run every test, end-to-end ones included
	@scripts/engine.sh scripts/test.sh

lint: setup ## Formatting, clippy, documentation, dependency policy
	@scripts/lint.sh

fuzz: setup ## Fuzz what reads foreign bytes: TARGET=compose SECONDS=600
	@TARGET="$(TARGET)" SECONDS_EACH="$(SECONDS)" MINIMIZE="$(MINIMIZE)" scripts/fuzz.sh

sim: setup ## Run simulated clusters: SEEDS=1000, or one with its trace: SEED=7
	@SEEDS="$(SEEDS)" SEED="$(SEED)" MUTATION="$(MUTATION)" scripts/sim.sh

bench: setup ## Measure; prints figures, asserts nothing
	@scripts/engine.sh scripts/bench.sh

