# Every target sets up what it needs on a fresh machine; `make setup` is a no-op when nothing changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-torch
BENCH_STAMP := $(VENV)/.installed-bench
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOWEST := .venv-lowest
LOWEST_CORE := .venv-lowest-core
# Two workers, each running whole files; tests/conftest.py moves the slowest files to the front. A worker that dies is
# not replaced: with whole files, pytest-xdist would then wait forever for the tests the dead one had been given.
EVERYDAY := -m "not soak" -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Tests and examples start hundreds of processes: without cached bytecode, each would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup services demo test test-fast test-lowest check bench soak mutants docs format clean screenshots
.DELETE_ON_ERROR:

setup: $(STAMP)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e '.[dev]'
	@touch $@ $(DEMO_STAMP)

# The demo needs only what users install, not the development tools, which take far longer to install.
$(DEMO_STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -c constraints.txt -e '.[torch]'
	@touch $@

$(BENCH_STAMP): $(STAMP) bench/peers.txt
	$(PIP) --no-deps -r bench/peers.txt
	@touch $@

# The servers that some tests need, installed from Debian if possible; without them `make test` names what it skips.
services:
	@scripts/services

demo: $(DEMO_STAMP)
	$(BIN)/holdfast demo

test: setup
	$(BIN)/python -m pytest $(EVERYDAY)

# The same tests with the lowest versions that pyproject.toml declares, and then, without the extras, the tests that
# need none: an extra may require a newer version of a package than holdfast does. pip installs torch, as everywhere.
UV := UV_FIND_LINKS="$$PIP_FIND_LINKS" $(LOWEST)/bin/uv pip install --quiet --resolution lowest-direct
CORE_TOOLS := 'hypothesis>=6.136' 'pandas>=2.1' 'pytest>=9.0' 'pytest-timeout>=2.3' 'pytest-xdist>=3.8' 'scipy>=1.11'
CORE_TESTS := tests/order tests/debug tests/cli/test_without_torch.py --ignore tests/debug/signals/test_extractors.py
test-lowest:
	test -x $(LOWEST)/bin/uv || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv torch
	VIRTUAL_ENV=$(LOWEST) $(UV) -e '.[dev]'
	$(LOWEST)/bin/python -m pytest -W ignore::DeprecationWarning $(EVERYDAY)
	test -x $(LOWEST_CORE)/bin/python || $(PYTHON) -m venv $(LOWEST_CORE)
	VIRTUAL_ENV=$(LOWEST_CORE) $(UV) -e . $(CORE_TOOLS)
	$(LOWEST_CORE)/bin/python -m pytest -W ignore::DeprecationWarning $(EVERYDAY) $(CORE_TESTS)

# A quick run while working: orders, metrics, states and detectors, with few examples per property.
test-fast: setup
	$(BIN)/python -m pytest -q -m "not soak and not distributed" -n 2 --hypothesis-profile fast tests/order tests/metrics tests/states tests/debug/detectors tests/test_public_names.py tests/test_errors.py

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
	$(PIP) -c constraints.txt -e '.[mutants]'
	$(BIN)/python scripts/mutants.py order coordinate checkpoint

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site

screenshots: setup
	$(BIN)/python bench/screenshots.py

clean:
	rm -rf $(VENV) $(LOWEST) $(LOWEST_CORE) site build .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
