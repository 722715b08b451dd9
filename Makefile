# Everything a person does with this project, from an empty clone. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
MODELS := models
ROUTERS := .venv-routers
BASELINE ?=
DEMO_FLAGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup system lint format unit e2e test demo bench-store bench-router fuzz-router chaos-router clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY)  ## make the virtual environment with SGLang, Mooncake and this package (about 5 minutes)

$(READY): python/pyproject.toml scripts/setup.sh
	PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup.sh
	touch $(READY)

lint: $(READY)  ## ruff, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)  ## let ruff put the code in shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

unit: $(READY)  ## tests without servers (seconds)
	$(BIN)/python -m pytest test/unit

e2e: $(READY)  ## tests with real servers on the CPU (minutes)
	$(BIN)/python -m pytest test/e2e

test: lint unit e2e  ## everything CI runs

demo: $(READY)  ## real SGLang, real model: one path against both (BASELINE=upstream adds upstream PD + HiCache)
	$(BIN)/python -m sglang_dualpath.demo --models $(MODELS) $(if $(BASELINE),--baseline $(BASELINE)) $(DEMO_FLAGS)

bench-store: $(READY)  ## how fast a file store reads, by threads
	$(BIN)/python benchmark/bench_store_read.py

bench-router: $(READY) $(ROUTERS)/.ready  ## what the router adds, beside sglang_router, its mini-lb and smg
	$(BIN)/python -m benchmark.bench_router --others $(ROUTERS)

$(ROUTERS)/.ready:
	$(PYTHON) -m venv $(ROUTERS)
	$(ROUTERS)/bin/pip install -q sglang-router==0.3.2 smg==1.13.0
	touch $@

fuzz-router: $(READY)  ## 10,000 malformed requests against a router
	$(BIN)/python -m benchmark.fuzz_router

chaos-router: $(READY)  ## 1,000 streams, clients that leave, engines that die
	$(BIN)/python -m benchmark.fuzz_router --chaos

clean:  ## remove what was made here: environment, models, results
	rm -rf $(VENV) $(ROUTERS) $(MODELS) results
