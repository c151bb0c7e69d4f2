# Every target sets up what it needs on a fresh machine; `make setup` is a no-op when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
LOWEST := .venv-lowest

# Tests and examples start hundreds of processes: each would compile the package again where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup services demo test test-fast test-lowest check bench soak mutants docs format clean screenshots
.DELETE_ON_ERROR:

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(BENCH_STAMP): $(STAMP)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	@touch $@

# The servers that real tests need, from Debian where it may; without them `make test` names what it skips.
services:
	@scripts/services

demo: setup
	$(BIN)/holdfast demo

test: setup
	$(BIN)/python -m pytest -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder

# The same tests with the lowest version of everything that pyproject.toml declares. pip installs torch, as everywhere.
test-lowest:
	test -x $(LOWEST)/bin/uv || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv torch
	VIRTUAL_ENV=$(LOWEST) UV_FIND_LINKS="$$PIP_FIND_LINKS" $(LOWEST)/bin/uv pip install --quiet --resolution lowest-direct -e '.[dev]'
	$(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder

# What is quick to run while working: orders, sources, metrics and detectors, without processes of their own.
test-fast: setup
	$(BIN)/python -m pytest -q -m "not soak and not distributed" -n 2 tests/order tests/metrics tests/states tests/debug/detectors tests/test_public_names.py tests/test_errors.py

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(BENCH_STAMP)
	$(BIN)/python bench/run_all.py

soak: setup
	$(BIN)/python -m pytest -m soak --timeout 3600

# Small changes to the code, drawn at random: how many do the tests notice?
mutants: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	$(BIN)/python scripts/mutants.py order coordinate checkpoint

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

screenshots: setup
	$(BIN)/python bench/screenshots.py

clean:
	rm -rf $(VENV) $(LOWEST) site build .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
