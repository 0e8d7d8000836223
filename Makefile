# Every target first does what it still needs; stamps in .venv say what is done.
#   make serve                            environment + bundled model + server
#   make serve ARGS="--port 9000"         arguments go to `ultrafast serve`
#   make test ARGS="-k gguf"              arguments go to pytest
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# Tried in this order; override with PYTHON=/path/to/python.
PYTHON ?=
CANDIDATES := $(if $(PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11)
MODEL := smollm2-135m-instruct
ARGS ?=

.PHONY: help install install-dev model serve test sim check format bench lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(VENV)/.stamp-created:
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$python"; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
	  echo "error: no Python 3.11 or newer among: $(CANDIDATES)" >&2; \
	  echo "hint: install one (Debian, Ubuntu: apt install python3 python3-venv) or name it: make install PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi; \
	if ! "$$found" -m venv $(VENV); then \
	  rm -rf $(VENV); \
	  echo "error: $$found cannot create a virtual environment" >&2; \
	  echo "hint: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; \
	  exit 1; \
	fi
	@touch $@

# --no-index: the editable build uses the hash-pinned hatchling above and downloads nothing.
$(VENV)/.stamp-runtime: $(VENV)/.stamp-created requirements/runtime.txt pyproject.toml
	$(PIP) install --require-hashes -r requirements/runtime.txt
	$(PIP) install --quiet --no-index --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.stamp-dev: $(VENV)/.stamp-runtime requirements/dev.txt
	$(PIP) install --require-hashes -r requirements/runtime.txt -r requirements/dev.txt
	@touch $@

install: $(VENV)/.stamp-runtime ## create .venv with what the server needs

install-dev: $(VENV)/.stamp-dev ## add what tests and checks need

model: install ## fetch the bundled model (98 MB, once)
	@$(BIN)/ultrafast models pull $(MODEL)

serve: install ## start the server (bundled model by default)
	@if [ "$$($(BIN)/python tools/chosen_model.py $(ARGS))" = $(MODEL) ]; then $(BIN)/ultrafast models pull $(MODEL); fi
	@exec $(BIN)/ultrafast serve $(ARGS)

test: install-dev model ## run all tests
	$(BIN)/python -m pytest $(ARGS)

check: install-dev ## format, lint, types, import contracts; prints the longest files and functions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/longest.py src tests

format: install-dev ## rewrite the code as `check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sim: install-dev ## 1,000,000 simulated requests through the scheduler, invariants checked (ARGS go to it)
	$(BIN)/python -m tests.sim.long_run $(ARGS)

bench: install-dev model ## run benchmarks/run.py (ARGS go to it)
	@if [ -f benchmarks/run.py ]; then exec $(BIN)/python benchmarks/run.py $(ARGS); \
	else echo "benchmarks:"; find benchmarks -name '*.py' | sort; fi

lock: install-dev ## recompile the hash-pinned requirements
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
	  requirements/runtime.in -o requirements/runtime.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.11 \
	  requirements/dev.in -o requirements/dev.txt

clean: ## remove the environment and caches (models in the user's cache folder stay)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
