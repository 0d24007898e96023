# Everyday commands. `make` lists them, with the comment behind each target.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
SERVE := .venv/serve
DEV := .venv/dev
BIN := $(DEV)/bin
CLIENTS := .venv/clients
# gpu if an NVIDIA driver answers, else cpu; or `make serve ACCELERATOR=cpu`
ACCELERATOR ?= $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)

# Compiled modules are kept, also where the environment says otherwise: tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

# An environment is bound to its folder: one that was moved or copied is made anew.
$(shell for made in .venv/*/; do \
  grep -qsF " $$(pwd -P)/$${made%/}" "$$made/pyvenv.cfg" || rm -f "$$made".made*; done)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: python
python:
	@$(PYTHON) tools/check-python

# Packages are locked, each checked against its hash; ours comes last and brings no others. Python compiles a
# module when it is first imported: compiling all of them here takes a quarter of the time.
QUICK = install --quiet --no-compile
LOCKED = $(QUICK) --require-hashes --requirement
# The locked pip installs the rest: one as old as Python 3.11 takes twice as long.
define NEW
rm -rf $(1)
$(PYTHON) -m venv $(1)
$(1)/bin/pip $(LOCKED) requirements/build.txt
endef
OURS = $(QUICK) --no-deps --no-build-isolation --editable .

$(SERVE)/.made-%: requirements/serve-%.txt requirements/build.txt pyproject.toml | python
	$(call NEW,$(SERVE))
	$(SERVE)/bin/pip $(LOCKED) $<
	$(SERVE)/bin/pip $(OURS)
	touch $@

# torch is not locked: its wheel differs by platform, accelerator and index, so that no set of hashes fits all.
$(DEV)/.made: requirements/dev.txt requirements/build.txt pyproject.toml | python
	$(call NEW,$(DEV))
	$(BIN)/pip $(QUICK) "torch==2.13.0"
	$(BIN)/pip $(LOCKED) $<
	$(BIN)/pip $(OURS)
	touch $@

COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" .venv/lock/bin/uv pip compile --quiet --upgrade \
  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate
.PHONY: lock
lock: | python ## refresh requirements/: the newest packages that pyproject.toml allows, with hashes
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/pip install --quiet uv
	$(COMPILE) pyproject.toml --extra cpu --extra postgresql --output-file requirements/serve-cpu.txt
	$(COMPILE) pyproject.toml --extra gpu --extra postgresql --output-file requirements/serve-gpu.txt
	$(COMPILE) pyproject.toml --extra cpu --extra train --extra dev --excludes <(echo torch) \
	  --output-file requirements/dev.txt
	printf '%s\n' editables 'hatchling>=1.27' pip \
	  | $(COMPILE) - --constraint requirements/dev.txt --output-file requirements/build.txt

.PHONY: serve
serve: $(SERVE)/.made-$(ACCELERATOR) ## serve the bundled models on http://localhost:3000 (PORT=...)
	$(SERVE)/bin/rul serve $(if $(PORT),--port $(PORT))

.PHONY: setup
setup: $(DEV)/.made ## the environment for everything below

# The wheels for CPU and GPU share a folder: one takes the other's place. CUDA and cuDNN come with torch.
$(DEV)/.made-gpu: $(DEV)/.made requirements/serve-gpu.txt
	$(BIN)/pip uninstall --quiet --yes onnxruntime
	$(BIN)/pip $(QUICK) --no-deps --require-hashes \
	  --requirement <(sed -n '/^onnxruntime-gpu==/,/[^\\]$$/p' requirements/serve-gpu.txt)
	touch $@
GPU_DEV = $(if $(filter gpu,$(ACCELERATOR)),$(DEV)/.made-gpu,$(DEV)/.made)

$(CLIENTS)/.made: tests/clients/requirements.txt requirements/build.txt | python
	$(call NEW,$(CLIENTS))
	$(CLIENTS)/bin/pip $(QUICK) --requirement $<
	touch $@

.PHONY: clients
clients: $(CLIENTS)/.made ## the environment of third-party clients, for integration tests

.PHONY: demo tour screenshots
demo: $(SERVE)/.made-$(ACCELERATOR) ## a simulated fleet against the service, which it starts if there is none (PORT=... SECONDS=...)
	tools/demo "$(CURDIR)/$(SERVE)/bin" $(or $(PORT),3000) $(SECONDS)

tour: setup ## simulate, train, export, check, serve and predict in under two minutes (PORT=...)
	tools/tour "$(CURDIR)/$(BIN)" $(PORT)

screenshots: setup ## docs/images: pictures of the page, from a demo with a fixed seed
	$(BIN)/python -m tools.screenshots

# Files keep the order of tests/conftest.py: the long ones first.
BY_FILE := --dist loadfile --no-loadscope-reorder
TINY := build/tiny-bundles
ALONE = $(shell grep -rlw --include='*.py' 'mark\.alone' tests/integration tests/hostile)

.PHONY: test
test: setup ## every test but the long ones
	rm -rf $(TINY)
	$(BIN)/python -m pytest --tiny-bundles $(TINY) -n 4 $(BY_FILE) -m "not long and not alone" \
	  tests/unit tests/contract tests/integration tests/hostile tests/gpu
	$(BIN)/python -m pytest --tiny-bundles $(TINY) -n 2 $(BY_FILE) -m "alone and not long" $(ALONE)

.PHONY: test-unit test-long test-integration test-gpu bench bench-gpu bench-peers
test-unit: setup ## one module at a time
	$(BIN)/python -m pytest -n auto $(BY_FILE) tests/unit

test-long: setup ## property tests with 20 times as many, new examples, and long tests: for every night
	$(BIN)/python -m pytest -n auto -m hypothesis --hypothesis-profile=long tests/unit tests/integration
	$(BIN)/python -m pytest -m long tests/integration

test-integration: setup ## the real process: HTTP, gRPC, metrics, clean shutdown
	$(BIN)/python -m pytest tests/integration

test-gpu: $(GPU_DEV) ## tests that need the CUDA provider
	$(BIN)/python -m pytest tests/gpu

bench: setup ## speed of the front ends, as a table
	$(BIN)/python -m tests.benchmarks.front_ends

bench-gpu: $(GPU_DEV) ## the graph and the service by provider, beside PyTorch and the limits of the device
	$(BIN)/python -m tests.benchmarks.gpu

bench-peers: setup ## the same beside FastAPI, LitServe, BentoML, MLServer, Triton and Ray Serve; installs each
	$(BIN)/python -m tests.benchmarks.peers

.PHONY: fmt lint types imports
fmt: setup ## format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup ## style and common errors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup ## pyrefly, strict
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

imports: setup ## import rules
	$(BIN)/lint-imports

.PHONY: generate
generate: setup ## generated code and files
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. service/proto/*.proto
	$(BIN)/python -m grpc_tools.protoc -I. --grpc_python_out=. service/proto/rul_v1.proto
	$(BIN)/python -m observability.dashboards
	$(BIN)/python -m observability.reference
	$(BIN)/python -m model.fleet_keys
	$(BIN)/rul settings > .env.example

.PHONY: check
# Pictures of the page, for a CI to keep.
check: export RUL_SCREENSHOTS ?= $(CURDIR)/build/screenshots
check: setup ## everything CI runs, in CI's order
	$(MAKE) --jobs=2 lint types imports
	$(MAKE) test

.PHONY: sbom
sbom: | python ## the bill of materials of each image, CycloneDX, from the lock files: dist/sbom-*.json
	[ -x .venv/sbom/bin/cyclonedx-py ] || { $(PYTHON) -m venv .venv/sbom && .venv/sbom/bin/pip install --quiet cyclonedx-bom; }
	mkdir -p dist
	for lock in serve-cpu serve-gpu; do \
	  .venv/sbom/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	    --output-file dist/sbom-$$lock.json requirements/$$lock.txt; \
	done

DATA ?= data/cmapss
FOLDS ?= 5
.PHONY: bundles
bundles: setup ## train, export and check fd001..fd004 (DATA=folder with train_FD001.txt and so on)
	for n in 1 2 3 4; do \
	  run=runs/fd00$$n; \
	  [ -e $$run/run.json ] || (cd "$(DATA)" && "$(CURDIR)/$(BIN)/rul" train --data train_FD00$$n.txt --name fd00$$n \
	    --folds $(FOLDS) --output "$(CURDIR)/$$run" $$([ ! -e "$(CURDIR)/$$run/state.pt" ] || echo --resume)); \
	  $(BIN)/rul export $$run --output export/bundles/fd00$$n; \
	  $(BIN)/rul check export/bundles/fd00$$n; \
	done

.PHONY: up down
up: ## service, Prometheus and Grafana in containers
	docker compose up --build --detach --wait

down: ## stop them
	docker compose --profile '*' down

.PHONY: clean
clean: ## delete the environments and all results
	rm -rf .venv runs build dist bench-results
