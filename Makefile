# Everything runs in .venv, which is made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
DIST_STAMP := $(VENV)/.installed-dist
DOCS_STAMP := $(VENV)/.installed-docs
# Exporters have an environment of their own, which needs nothing of ours.
MODELS_VENV := .venv-models
MODELS_STAMP := $(MODELS_VENV)/.installed
MODELS_CACHE ?= .models
# As many as cores: hardly any test waits, and each worker first collects all tests, which takes
# longer than what another one would gain.
TEST_WORKERS ?= 2

# Root, as in a container, has no need of sudo, and often no such program.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.DEFAULT_GOAL := help
.PHONY: help install demo test test-extended test-emulated test-all test-cuda check hooks emulators bench chart bench-check models \
    operators gradients docs dist try-dist release release-tag release-notes clean

help: ## this text
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

install: $(STAMP) ## make .venv with everything in it

# The version stands in tvm_ext/__init__.py.
$(STAMP): pyproject.toml setup.py tvm_ext/__init__.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip "setuptools>=77"
	$(BIN)/python -m pip install --quiet --editable ".[reference,test,lint]"
	@touch $(STAMP)

demo: $(STAMP) ## compile a real trained model, check it against ONNX Runtime, save, load, run
	$(BIN)/python examples/demo.py

test: $(STAMP) ## the tests to run after each change, six minutes on two cores
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal -m "not extended and not slow and not cuda and not emulated"

test-extended: $(STAMP) ## the further tests that CI runs, ten minutes on two cores
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal -m "extended and not slow and not cuda and not emulated"

test-emulated: $(STAMP) ## the tests of code for GPUs and AArch64 without either, three minutes on two cores
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal -m "emulated and not slow and not cuda"

test-all: $(STAMP) ## all tests, those marked as slow and all their cases too
	TEST_DRAWS=8 TEST_LLVM_LEVEL=3 TEST_ALL_CASES=1 $(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal

test-cuda: $(STAMP) ## the tests that need a GPU; most time goes to nvcc: TEST_WORKERS=8 (TVM_EXT_CUDA_CORPUS=folder: more models)
	$(BIN)/pytest -n $(TEST_WORKERS) -m cuda

check: $(STAMP) ## linter, formatter, type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=.:benchmarks:examples:tests/shared $(BIN)/mypy benchmarks
	MYPYPATH=.:scripts $(BIN)/mypy scripts

hooks: $(STAMP) ## the hooks of .pre-commit-config.yaml on all files; "pre-commit install" has git run them
	$(BIN)/pre-commit run --all-files

emulators: ## install what make test-emulated needs (Debian, Ubuntu)
	$(SUDO) apt-get update --quiet
	$(SUDO) apt-get install --quiet --yes qemu-user gcc-aarch64-linux-gnu

bench: $(BENCH_STAMP) ## speed beside other programs: make bench ARGS="a.onnx --input-shape x=1,3,224,224"
	$(BIN)/python benchmarks/cpu.py $(ARGS)

bench-check: $(BENCH_STAMP) ## whether a run of "make bench ARGS=... --json new.json" fell behind the last: make bench-check JSON=new.json
	$(BIN)/python benchmarks/history.py check $(JSON)

chart: $(BENCH_STAMP) ## draw the README's picture anew from docs/images/speed.json
	$(BIN)/python benchmarks/speed_chart.py docs/images/speed.json docs/images/speed.svg

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	@touch $(BENCH_STAMP)

models: $(STAMP) $(MODELS_STAMP) ## export a few hundred small models, compare each with ONNX Runtime, write docs/reference/models.md: hours
	$(BIN)/python tests/real_models/run.py $(MODELS_CACHE) --export-with $(MODELS_VENV)/bin/python \
	    --page docs/reference/models.md $(ARGS)

$(MODELS_STAMP): tests/real_models/requirements.txt
	$(PYTHON) -m venv $(MODELS_VENV)
	$(MODELS_VENV)/bin/python -m pip install --quiet --no-deps --requirement $<
	@touch $(MODELS_STAMP)

operators: $(STAMP) ## write docs/reference/operators.md anew from the table of operators
	$(BIN)/python -m tvm_ext.onnx_frontend.operator_table docs/reference/operators.md

gradients: $(STAMP) ## write docs/reference/gradients.md anew from what can be differentiated
	PYTHONPATH=tests/shared $(BIN)/python tests/onnx_backend/gradients_page.py docs/reference/gradients.md

docs: $(DOCS_STAMP) ## build the documentation into site/, which needs no network to be read
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $(DOCS_STAMP)

dist: $(DIST_STAMP) ## build the wheel and the source distribution of this tree into dist/, and check their metadata
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

try-dist: $(DIST_STAMP) ## install what is in dist/ into empty environments, compile and run a model there
	$(BIN)/python scripts/try_dist.py dist

$(DIST_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[dist]"
	@touch $(DIST_STAMP)

# The second look at the tree is for the page that "make operators" writes and nobody committed.
release: $(STAMP) ## check that this tree can be released, build it into dist/, print the commands that are left
	$(BIN)/python scripts/release.py check
	$(BIN)/pytest tests/test_packaging.py tests/scripts
	$(MAKE) operators
	$(MAKE) docs
	$(MAKE) dist
	$(MAKE) try-dist
	$(BIN)/python scripts/release.py check
	$(BIN)/python scripts/release.py next

release-tag: $(STAMP) ## check that TAG=v1.2.3 is the version here and the changelog has it
	$(BIN)/python scripts/release.py tag "$(TAG)"

release-notes: $(STAMP) ## write the changes of this version to build/release-notes.md
	mkdir -p build
	$(BIN)/python scripts/release.py notes > build/release-notes.md

clean: ## remove .venv and all that was generated
	rm -rf $(VENV) $(MODELS_VENV) $(MODELS_CACHE) build dist site .demo .mypy_cache .pytest_cache .ruff_cache *.egg-info
