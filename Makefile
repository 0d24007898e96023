# Everyday commands. The list that `make` prints is made from the comments behind each target.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
SERVE := .venv/serve
DEV := .venv/dev
BIN := $(DEV)/bin
CLIENTS := .venv/clients
# gpu where an NVIDIA driver answers, else cpu; or say `make serve ACCELERATOR=cpu`
ACCELERATOR ?= $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
TESTS ?= tests/unit tests/contract tests/integration tests/gpu

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "rulserve needs Python 3.11 or later: say which with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "this Python cannot make environments: install its venv package (Debian: python3-venv)" >&2; exit 1; }

$(SERVE)/.made-%: pyproject.toml | python
	rm -rf $(SERVE)
	$(PYTHON) -m venv $(SERVE)
	$(SERVE)/bin/pip install --quiet --editable ".[$*]"
	touch $@

$(DEV)/.made: pyproject.toml | python
	rm -rf $(DEV)
	$(PYTHON) -m venv $(DEV)
	$(BIN)/pip install --quiet "torch==2.13.0"
	$(BIN)/pip install --quiet --editable ".[cpu,train,dev]"
	touch $@

.PHONY: serve
serve: $(SERVE)/.made-$(ACCELERATOR) ## serve the bundled models on http://localhost:3000 (PORT=...)
	$(SERVE)/bin/rul serve $(if $(PORT),--port $(PORT))

.PHONY: setup
setup: $(DEV)/.made ## the environment for everything below

$(CLIENTS)/.made: tests/clients/requirements.txt | python
	rm -rf $(CLIENTS)
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/pip install --quiet --requirement $<
	touch $@

.PHONY: clients
clients: $(CLIENTS)/.made ## the environment of other people's clients, which integration tests ask with

.PHONY: demo
demo: setup ## simulate, train, export, check, serve and ask, in under two minutes (PORT=...)
	tools/demo $(CURDIR)/$(BIN) $(PORT)

.PHONY: test
test: setup ## every test
	$(BIN)/python -m pytest $(TESTS)

.PHONY: test-unit test-integration test-gpu bench bench-peers
test-unit: setup ## one module at a time, seconds
	$(BIN)/python -m pytest tests/unit

test-integration: setup ## the real process: HTTP, gRPC, metrics, clean shutdown
	$(BIN)/python -m pytest tests/integration

test-gpu: setup ## what needs the CUDA provider
	$(BIN)/python -m pytest tests/gpu

bench: setup ## speed, side by side, as a table
	$(BIN)/python -m tests.benchmarks.front_ends

bench-peers: setup ## the same beside FastAPI, LitServe, BentoML, MLServer, Triton and Ray Serve, each installed
	$(BIN)/python -m tests.benchmarks.peers

.PHONY: fmt lint types imports
fmt: setup ## format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup ## style and common errors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup ## pyright, strict
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: setup ## who may import whom
	$(BIN)/lint-imports

.PHONY: generate generated
generate: setup ## code and files that are made from others
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. service/proto/*.proto
	$(BIN)/python -m observability.dashboards
	$(BIN)/python -m observability.reference
	$(BIN)/rul settings --output .env.example

.PHONY: check
check: lint types imports test ## everything CI runs, in CI's order

DATA ?= data/cmapss
FOLDS ?= 5
.PHONY: bundles
bundles: setup ## train, export and check fd001..fd004 (DATA=folder with train_FD001.txt and so on)
	for n in 1 2 3 4; do \
	  run=runs/fd00$$n; \
	  [ -e $$run/run.json ] || $(BIN)/rul train --fleet cmapss --data $(DATA)/train_FD00$$n.txt --name fd00$$n \
	    --folds $(FOLDS) --out $$run $$([ ! -e $$run/state.pt ] || echo --resume); \
	  $(BIN)/rul export $$run --out export/bundles/fd00$$n; \
	  $(BIN)/rul check export/bundles/fd00$$n; \
	done

.PHONY: up down
up: ## service, Prometheus and Grafana in containers
	docker compose up --build --detach --wait

down: ## stop them
	docker compose down

.PHONY: clean
clean: ## forget both environments and every result
	rm -rf .venv runs build dist bench-results
