# Short names for the usual work. CMakePresets.json serves those who prefer CMake itself.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

JOBS ?= $(shell nproc)
# One more than cores: tests of ranks mostly wait for each other.
TESTS_AT_ONCE = $(shell expr $(JOBS) + 1)
FUZZ_SECONDS ?= 5
FUZZ_TARGET ?=
FUZZ_SEED ?= 0
NETWORKS ?= 300
SEED ?= 1
# ON: warnings are errors in trees that are made. Those of a newer compiler must not keep anybody from testing.
WERROR ?= OFF
# Another libtorch than the system's: make build TORCH=/path/to/libtorch
TORCH ?=

# Tests try everything instead of samples (windlass/base/test_effort.h).
WINDLASS_THOROUGH ?=
ifneq ($(WINDLASS_THOROUGH),)
export WINDLASS_THOROUGH
endif

# The leak checker cannot work under a tracer such as strace.
ifneq ($(shell awk '/^TracerPid:/ {print $$2}' /proc/self/status 2>/dev/null),0)
export ASAN_OPTIONS := detect_leaks=0:$(ASAN_OPTIONS)
endif

CONFIGURE = cmake $(if $(TORCH),-DCMAKE_PREFIX_PATH="$(abspath $(TORCH))") --preset
SOURCES = $(shell find windlass tests fuzz benchmarks -name '*.h' -o -name '*.cpp' 2>/dev/null | sort)
# Versions of clang-format disagree: the sources follow that of Debian 12.
FORMAT_VERSION = 14
HAS_FORMAT = clang-format --version | grep -q ' version $(FORMAT_VERSION)\.'

.PHONY: help demo build test test-slow tsan golden fuzz networks bench format tidy clean setup setup-build setup-test \
  check-format test-sample test-release test-asan test-asan-whole test-tsan test-fuzz force

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  variables: JOBS=N FUZZ_SECONDS=S FUZZ_TARGET=NAME NETWORKS=N SEED=N TORCH=PATH WERROR=ON"

demo: build ## build, then show the program at work
	@scripts/demo.sh

build: setup-build build/release/build.ninja ## build build/release/windlass
	@cmake --build --preset release --parallel $(JOBS) --target windlass

test: setup-test ## everything CI runs: format, the program, unit tests under sanitizers, fuzzing
	@$(MAKE) --no-print-directory check-format
	@$(MAKE) --no-print-directory test-sample
	@$(MAKE) --no-print-directory test-asan
	@$(MAKE) --no-print-directory test-fuzz FUZZ_SEED=1

test-slow: setup-test ## before a release: the whole of what `make test` has samples of, benchmarks, more fuzzing
	@$(MAKE) --no-print-directory check-format
	@$(MAKE) --no-print-directory test-release WINDLASS_THOROUGH=1
	@cmake --build --preset release --parallel $(JOBS) --target benchmarks
	@$(MAKE) --no-print-directory test-asan-whole WINDLASS_THOROUGH=1
	@$(MAKE) --no-print-directory test-tsan
	@$(MAKE) --no-print-directory test-fuzz FUZZ_SECONDS=60

golden: setup-build build/release/build.ninja ## write the expected outputs of tests anew, for `git diff`
	@cmake --build --preset release --parallel $(JOBS) --target windlass_report_test windlass_export_test
	@WINDLASS_REWRITE_GOLDEN=1 build/release/bin/windlass_report_test --gtest_filter='*GoldenFiles'
	@WINDLASS_REWRITE_GOLDEN=1 build/release/bin/windlass_export_test --gtest_filter='*GoldenFiles'

tsan: setup-test test-tsan ## what runs on several threads, under the thread sanitizer

fuzz: setup-test test-fuzz ## fuzz longer: FUZZ_SECONDS=60 [FUZZ_TARGET=name]

networks: setup-test build/release/build.ninja ## train generated networks as PyTorch does: NETWORKS=2000 [SEED=1]
	@cmake --build --preset release --parallel $(JOBS) --target windlass_run_training
	@/usr/bin/python3 tests/network_fuzz.py --seed $(SEED) --count $(NETWORKS) --keep build/networks

bench: setup-build build/release/build.ninja ## build and run the benchmarks
	@cmake --build --preset release --parallel $(JOBS) --target benchmarks
	@for program in $$(find build/release/benchmarks -maxdepth 1 -type f -executable 2>/dev/null | sort); do \
	  "$$program"; done

format: setup-test ## rewrite the sources with clang-format
	@$(HAS_FORMAT) || { echo "needs clang-format $(FORMAT_VERSION), found: $$(clang-format --version)" >&2; exit 1; }
	@clang-format -i $(SOURCES)

tidy: setup-test build/debug/build.ninja ## clang-tidy over windlass/
	@scripts/tidy.sh build/debug $(JOBS)

clean: ## remove build/
	rm -rf build

setup: setup-test ## install every package that is missing

setup-build:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh test

# A warning of a newer compiler must not keep anybody from building.
build/%/build.ninja: CMakePresets.json $(if $(TORCH),force)
	@$(CONFIGURE) $*

check-format:
	@echo "== format"
	@if $(HAS_FORMAT); then clang-format --dry-run -Werror $(SOURCES); \
	  else echo "not checked: the sources follow clang-format $(FORMAT_VERSION), here is $$(clang-format --version)"; fi

# CMake is always run here: setup may just have installed the Python the tests compare with. A tree that is
# there stays as strict as it was: all of it would be compiled again.
test-release test-asan test-asan-whole test-tsan: test-%:
	@echo "== $*"
	@$(CONFIGURE) $* $(if $(wildcard build/$*/build.ninja),,-DWINDLASS_WERROR=$(WERROR))
	@cmake --build --preset $* --parallel $(JOBS)
	@ctest --preset $* --parallel $(TESTS_AT_ONCE)

# Of the release tree what drives the program, compares with PyTorch, or has optimised code and memory as its subject.
# The other unit tests run under sanitizers.
test-sample:
	@echo "== release"
	@$(CONFIGURE) release $(if $(wildcard build/release/build.ninja),,-DWINDLASS_WERROR=$(WERROR))
	@cmake --build --preset sample --parallel $(JOBS)
	@ctest --preset sample --parallel $(TESTS_AT_ONCE)

# From the tree of the sanitizers.
test-fuzz:
	@echo "== fuzz"
	@$(CONFIGURE) asan
	@cmake --build --preset fuzz --parallel $(JOBS)
	@JOBS=$(JOBS) SEED=$(FUZZ_SEED) scripts/fuzz.sh build/asan $(FUZZ_SECONDS) $(FUZZ_TARGET)
