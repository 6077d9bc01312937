# The front door: every task is a target, 'make help' lists them. The build itself is CMakeLists.txt, the tests' scripts are in
# tests/tools. PRESET names a configuration of CMakePresets.json.
PRESET ?= release
PREFIX ?= /usr/local
build := build/$(PRESET)
tools := tests/tools

# Building says nothing on standard output, which belongs to the programs: 'printf "Hello\n" | make chat' prints the chat only.
configured := $(build)/build.ninja
compile = cmake --build $(build) $(if $(1),--target $(1)) </dev/null >&2

.DEFAULT_GOAL := all
.PHONY: all chat plan test simulate bench bench-serving check format install clean help
.SUFFIXES:

all: $(configured) ## build the libraries and the examples (PRESET=debug, clang, asan or tsan for other builds)
	@$(call compile)

chat: ## talk to SmolLM2-135M-Instruct; installs, builds and fetches what is missing
	@$(tools)/setup.sh chat
	@$(MAKE) --no-print-directory --silent $(configured)
	@$(call compile,chat)
	@model=$$(examples/fetch_model.sh) && { ! [ -t 0 ] || set -m; $(build)/chat "$$model"; }  # Ctrl-C is the chat's

plan: $(configured) ## plan capacity: throughput per batch, what fits (ARGS="MODEL.gguf --bandwidth 20G --flops 200G --kv-bytes 1Gi")
	@$(call compile,plan)
	@$(build)/plan $(ARGS)

test: ## run all tests; installs, builds and fetches what is missing
	@$(tools)/setup.sh test
	@$(MAKE) --no-print-directory --silent $(configured)
	@$(call compile,all tests)
	@model=$$(examples/fetch_model.sh) && $(tools)/run_tests.py $(build) --model "$$model"

simulate: ## drive the engine with a fake model through random workloads, each step checked (STEPS=1000000, SEED=1)
	@$(tools)/setup.sh test
	@$(MAKE) --no-print-directory --silent $(configured)
	@$(call compile,simulate)
	@$(build)/simulate --steps $(or $(STEPS),1000000) --seed $(or $(SEED),1)

bench: ## measure speed beside llama.cpp, against the machine; prints tables (SECTIONS=speed,kv PEER=0 THREADS=2 RUNS=5)
	@$(tools)/setup.sh test
	@$(MAKE) --no-print-directory --silent $(configured)
	@$(call compile,benches)
	@model=$$(examples/fetch_model.sh) && tests/bench/bench.py $(build) --model "$$model" \
		$(if $(SECTIONS),--sections "$(SECTIONS)") $(if $(PEER),--peer "$(PEER)") $(if $(THREADS),--threads "$(THREADS)") \
		$(if $(RUNS),--runs "$(RUNS)")

bench-serving: ## measure serving: memory, batching, latency, budgets; prints tables (ONLY=waste,budget RUNS=3 STEPS=10000 THREADS=2)
	@$(tools)/setup.sh test
	@$(MAKE) --no-print-directory --silent $(configured)
	@$(call compile,serving_bench serving_inside)
	@model=$$(examples/fetch_model.sh) && tests/bench/serving.py $(build) --model "$$model" $(if $(ONLY),--only "$(ONLY)") \
		$(if $(THREADS),--threads "$(THREADS)") $(if $(RUNS),--runs "$(RUNS)") $(if $(STEPS),--steps "$(STEPS)")

check: ## everything that can be checked: text, format, tidy, symbols, other compilers, sanitizers, valgrind
	@$(tools)/setup.sh check
	@model=$$(examples/fetch_model.sh) && $(tools)/check_all.py --model "$$model"

format: ## lay out the C and C++ sources as .clang-format says
	@$(tools)/setup.sh check
	@$(tools)/check_format.sh --write

install: all ## install into PREFIX (DESTDIR is respected)
	@DESTDIR=$(DESTDIR) cmake --install $(build) --prefix $(PREFIX)

clean: ## remove everything that was built (the fetched model stays in the user's cache folder)
	rm -rf build

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(configured):
	@$(tools)/setup.sh --check build
	@cmake --preset $(PRESET) --log-level=WARNING </dev/null >&2
