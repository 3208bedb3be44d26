# make install   .venv with everything that the demo and the tests need
# make demo      the whole path: synthesis, warm start, training, evaluation, report
# make test      all tests
# make lint      style, types and the direction of imports
#
# PYTHON3   the interpreter that .venv is made with (3.11 or later).
# TORCH     the PyTorch requirement. On Linux the default index serves the CUDA build; to get the smaller CPU build, name
#           PyTorch's CPU index in PIP_EXTRA_INDEX_URL, which pip reads by itself.
# JOBS      processes for the fast tests.
# ARGS      settings of the demo, for example: make demo ARGS="seed=2 out=runs/second"

PYTHON3 ?= $(shell command -v python3.11 || command -v python3)
TORCH ?= torch==2.13.0
JOBS ?= 2

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)

# The stamp is written last, so an interrupted installation starts again.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON3)" || { echo "error: no python3 found; install Python 3.11 or name one with PYTHON3=..." >&2; exit 2; }
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON3) is older than Python 3.11; name a newer one with PYTHON3=..." >&2; exit 2; }
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip
	$(PYTHON) -m pip install --quiet "$(TORCH)"
	$(PYTHON) -m pip install --quiet -e ".[cpu,dev]"
	@touch $@

demo: install
	$(PYTHON) -m eval.demo $(ARGS)

test: install
	$(PYTHON) -m pytest -n $(JOBS) -m "not slow"
	$(PYTHON) -m pytest -m slow

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
