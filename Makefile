# `make demo` and `make test` set everything up on a machine that has only
# Python >= 3.11, git and make. A second run starts at once.

VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT ?= demo-report
# What `make test` installs beside the core; CI also runs with `EXTRAS=all,dev`.
EXTRAS ?= dev
OFFLINE := HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1
PIP := $(BIN)/python -m pip install --disable-pip-version-check
# One worker per core, one thread each: workers with two threads get in each other's way.
PYTEST := $(OFFLINE) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4

# One stamp for each set of packages: newer than pyproject.toml means installed.
CORE := $(VENV)/.stamp-core
DEV := $(VENV)/.stamp-$(EXTRAS)
DOCS := $(VENV)/.stamp-docs
PANGO := $(VENV)/.stamp-pango
SYSTEM := $(VENV)/.stamp-system

.DEFAULT_GOAL := help
.PHONY: help demo setup test test-all gpu lint format docs clean

help: ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

demo: $(CORE) $(PANGO) ## Audit a model that leaks, and write the report
	@rm -f $(DEMO_OUT)/report.html $(DEMO_OUT)/report.pdf; \
	code=0; $(OFFLINE) $(BIN)/privaudit demo --out $(DEMO_OUT) || code=$$?; \
	if [ $$code -eq 1 ] && [ -s $(DEMO_OUT)/report.html ]; then \
	  echo "make demo: as expected, the gate failed (exit 1: the photographs" \
	    "leak). Reports:" $(DEMO_OUT)/report.*; \
	else \
	  echo "make demo: expected exit 1 and $(DEMO_OUT)/report.html," \
	    "got exit $$code" >&2; \
	  exit 1; \
	fi

setup: $(DEV) $(SYSTEM) ## Only install what the tests need

test: setup lint ## Lint, types and the tests of a few minutes
	$(PYTEST) -m "not slow"

test-all: setup lint ## Everything, the slow tests included
	$(PYTEST)

gpu: $(DEV) ## The tests that need a CUDA device
	@if [ -z "$$(find tests/gpu -name 'test_*.py' 2>/dev/null)" ]; then \
	  echo "make gpu: there are no tests in tests/gpu yet; nothing was checked"; \
	else \
	  $(PYTEST) tests/gpu; \
	fi

lint: $(DEV) ## What pre-commit and CI run: ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DEV) ## Let ruff repair what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove what was built; the environment stays
	rm -rf build dist site $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache
	rm -rf .hypothesis *.egg-info
	find . -path ./$(VENV) -prune -o -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	tools/ensure-venv.sh $(VENV)

$(CORE): pyproject.toml $(BIN)/python
	@echo "Installing privaudit; the first time this downloads PyTorch (minutes, GBs)."
	$(PIP) --editable ".[pdf]"
	@touch $@

$(DEV): pyproject.toml $(BIN)/python
	@echo "Installing privaudit[$(EXTRAS)]; the first time this downloads PyTorch" \
	  "(minutes, GBs)."
	$(PIP) --editable ".[$(EXTRAS)]"
	@touch "$@" $(CORE)

$(DOCS): pyproject.toml $(CORE)
	$(PIP) --editable ".[docs]"
	@touch $@

# Tried once: both are optional, and each script says what it could not do.
$(PANGO): $(BIN)/python tools/ensure-pango.sh
	@tools/ensure-pango.sh
	@touch $@

$(SYSTEM): $(PANGO) tools/ensure-chromium.sh
	@tools/ensure-chromium.sh
	@touch $@
