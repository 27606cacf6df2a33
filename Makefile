# make demo   install, train a small capsule model on the synthetic pair, translate       (a few minutes)
# make test   install, lint, type-check, run the whole test suite                         (a few minutes)
# make upstream   run Transformers' own model tests on our family and on stock Marian, and compare

PYTHON ?= python3
VENV ?= .venv
SENTENCE ?= The doctors have shown the square to the colleague.
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Nothing here needs a network besides the package index. One thread a test process: tiny models run faster so.
export HF_HUB_OFFLINE := 1
export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install demo test lint format upstream clean

install: $(STAMP)

# A stamp without a working interpreter beside it is a leftover: start again.
ifneq ($(shell $(BIN)/python -c 'import torch, transformers' >/dev/null 2>&1 && echo ok),ok)
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: install
	$(BIN)/python scripts/demo.py --output runs/demo --sentence "$(SENTENCE)"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

upstream: install
	OMP_NUM_THREADS=1 $(BIN)/python scripts/run_transformers_tests.py

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
