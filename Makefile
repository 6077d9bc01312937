# The front door: every task is a target, 'make help' lists them. The build itself is CMakeLists.txt.
PRESET ?= release
build := build/$(PRESET)

.DEFAULT_GOAL := all
.PHONY: all test clean help

all: ## build the library, its tests and the examples (PRESET=debug, asan, tsan, clang for other builds)
	@[ -f $(build)/build.ninja ] || cmake --preset $(PRESET)
	@cmake --build $(build)

test: all ## build and run all tests
	@$(build)/unit_tests

clean: ## remove everything that was built
	rm -rf build

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
