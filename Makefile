# Every target works from a clean clone; Python 3.11 or newer, git and make are all it needs.
#
#   make port    the main job on vLLM 0.29.0: the patch series, its proof and a page to review
#                it by, in out/0.29.0
#   make test    the whole test suite, with the real vLLM engine on the CPU
#   make test-ipex  provider ipex with the real intel-extension-for-pytorch, on the CPU
#   make smoke   GSM8K on a real small Gemma 3 (downloaded), before and after the series
#   make fuzz    2,000 generated model files and 5,000 mutated ones through the command
#
# PYTHON names another interpreter; PIP_ARGS goes to pip install, e.g. for another index.

# Many containers set it. Without compiled modules every start of the command takes twice as long,
# and so does every start of the engine, of which the tests need dozens.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
PIP_ARGS ?=
RELEASE ?= 0.29.0
RELEASES := 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
PYTEST_ARGS ?=
FUZZ_ARGS ?=
SMOKE_ARGS ?=

# PyTorch's index of CPU builds, asked only where pip's configured places lack the build.
TORCH := torch==2.13.0
TORCH_INDEX := https://download.pytorch.org/whl/cpu

PORT_ENV := .venv
TEST_ENV := .venv-test
PIP := $(PORT_ENV)/bin/python -m pip install --quiet --no-input --disable-pip-version-check $(PIP_ARGS)
NORMPORT := $(PORT_ENV)/bin/normport
TYPECHECK := build/typecheck

.DEFAULT_GOAL := port
.PHONY: port test test-ipex test-env lint format bench bench-engine fuzz smoke patches check-patches census check-census clean

# The stamp comes last: an environment whose making was interrupted is made anew.
$(PORT_ENV)/stamp: pyproject.toml
	@echo "making $(PORT_ENV) (once, about a minute)"
	@rm -rf $(PORT_ENV)
	@$(PYTHON) -m venv $(PORT_ENV)
	@$(PIP) '$(TORCH)+cpu' 2>$(PORT_ENV)/pip.log \
	  || $(PIP) --extra-index-url $(TORCH_INDEX) '$(TORCH)+cpu' 2>>$(PORT_ENV)/pip.log \
	  || { echo "no CPU build of torch was found; taking pip's default, which is larger" \
	         "(PIP_ARGS='--extra-index-url URL' names an index that has one)" >&2; $(PIP) '$(TORCH)'; } \
	  || { cat $(PORT_ENV)/pip.log >&2; exit 1; }
	@$(PIP) -e '.[proof]' 2>$(PORT_ENV)/pip.log || { cat $(PORT_ENV)/pip.log >&2; exit 1; }
	@touch $@

port: $(PORT_ENV)/stamp
	@$(NORMPORT) port vllm==$(RELEASE) --out out/$(RELEASE)
	@$(NORMPORT) review out/$(RELEASE) --html out/$(RELEASE)/review.html

test-env:
	@$(PYTHON) -P tools/engine_env.py $(TEST_ENV) $(PIP_ARGS)

# Two workers, each with whole files: what the engine tests set up is shared within theirs. The
# tests of checkouts give up root in a child, which cannot enter a worker's folder: they go first.
test: test-env
	$(TEST_ENV)/bin/python -m pytest tests/test_workspace.py
	$(TEST_ENV)/bin/python -m pytest -n 2 --dist loadfile --ignore=tests/test_workspace.py $(PYTEST_ARGS)

# intel-extension-for-pytorch 2.8.0 wants torch 2.8, which vLLM 0.29.0 does not.
IPEX_ENV := .venv-ipex
IPEX_TORCH := torch==2.8.0
IPEX_PIP := $(IPEX_ENV)/bin/python -m pip install --quiet --no-input --disable-pip-version-check $(PIP_ARGS)
$(IPEX_ENV)/stamp: pyproject.toml
	@echo "making $(IPEX_ENV) (once; 2 GB, or 8 where only the CUDA build of torch is to be had)"
	@rm -rf $(IPEX_ENV)
	@$(PYTHON) -m venv $(IPEX_ENV)
	@$(IPEX_PIP) '$(IPEX_TORCH)+cpu' 2>$(IPEX_ENV)/pip.log \
	  || $(IPEX_PIP) --extra-index-url $(TORCH_INDEX) '$(IPEX_TORCH)+cpu' 2>>$(IPEX_ENV)/pip.log \
	  || $(IPEX_PIP) '$(IPEX_TORCH)' || { cat $(IPEX_ENV)/pip.log >&2; exit 1; }
	@$(IPEX_PIP) -e '.[ipex]' numpy pytest 2>$(IPEX_ENV)/pip.log || { cat $(IPEX_ENV)/pip.log >&2; exit 1; }
	@touch $@

# The extension warns at import about its own operators, and pytest would make that an error.
test-ipex: $(IPEX_ENV)/stamp
	$(IPEX_ENV)/bin/python -m pytest -W default tests/ipex/check_ipex.py $(PYTEST_ARGS)

# mypy wants to see the folders as the one package that they are installed as.
lint: test-env
	$(TEST_ENV)/bin/ruff check .
	$(TEST_ENV)/bin/ruff format --check .
	@mkdir -p $(TYPECHECK)/normport
	@for folder in codemods layers kernels tools; do \
	  ln -sfn ../../../$$folder $(TYPECHECK)/normport/$$folder; done
	cd $(TYPECHECK) && MYPYPATH=. $(abspath $(TEST_ENV))/bin/python -m mypy \
	  --config-file ../../pyproject.toml -p normport.codemods -p normport.layers \
	  -p normport.kernels -p normport.tools

format: test-env
	$(TEST_ENV)/bin/ruff check --fix .
	$(TEST_ENV)/bin/ruff format .

# All parts are run, whatever they find; docs/performance.md has the tables. The part about scans
# compares with tools that it can do without. (pip before 25.1 has no --group.)
BENCH_TOOLS := import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["bench"])
bench: $(PORT_ENV)/stamp test-env
	@$(PORT_ENV)/bin/python -c '$(BENCH_TOOLS)' | xargs $(PIP) 2>$(PORT_ENV)/pip.log \
	  || echo "not all tools to compare with could be installed; see $(PORT_ENV)/pip.log" >&2
	@$(PORT_ENV)/bin/python bench/suite.py --engine-python $(TEST_ENV)/bin/python \
	  --page docs/performance.md

# A whole model in the real engine, unported, ported and with the norm-add-norm patch.
bench-engine: test-env
	@$(TEST_ENV)/bin/python bench/suite.py engine --page docs/performance.md

# A failing case is kept in out/fuzz with its seed; FUZZ_ARGS="--help" tells the options.
fuzz: $(PORT_ENV)/stamp
	@cd tests && $(abspath $(PORT_ENV))/bin/python -m fuzz $(FUZZ_ARGS)

# What came of it is in out/smoke; SMOKE_ARGS are options of `normport gsm8k`, e.g. --data FILE.
smoke: test-env
	@$(TEST_ENV)/bin/python tests/engine/gemma3_smoke.py out/smoke $(SMOKE_ARGS)

patches: $(PORT_ENV)/stamp
	@for release in $(RELEASES); do \
	  $(NORMPORT) port vllm==$$release --with-norm-add-norm --out patches/$$release || exit 2; done

# The committed series is what the code writes today, byte for byte.
check-patches: $(PORT_ENV)/stamp
	@rm -rf build/patches/$(RELEASE)
	@$(NORMPORT) port vllm==$(RELEASE) --with-norm-add-norm --out build/patches/$(RELEASE)
	diff -r patches/$(RELEASE) build/patches/$(RELEASE)
	@echo "patches/$(RELEASE) is up to date"

# Every local norm of these releases, what it computes, the verdict and the proof.
census: $(PORT_ENV)/stamp
	@$(PORT_ENV)/bin/python -m normport.tools.census docs/census.md

check-census: $(PORT_ENV)/stamp
	@$(PORT_ENV)/bin/python -m normport.tools.census docs/census.md --check $(RELEASE)

clean:
	rm -rf $(PORT_ENV) $(TEST_ENV) $(IPEX_ENV) build dist out *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .mypy_cache .pytest_cache .ruff_cache
