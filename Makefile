# Every target sets up what it needs (dev/envs.py): minutes the first time, nothing afterwards.
# ARGS goes to the test runner, the linter's tests aside: make test ARGS="-k sampling -x"

PYTHON ?= $(shell command -v python3.11 || command -v python3)
ENVS := $(PYTHON) dev/envs.py
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test test-engines faults matrix check bench docs dist clean

help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo:  ## Run a real verl rollout on this CPU, traced into .demo/store
	@$(ENVS) build verl
	@dev/demo.sh

test:  ## Run all tests but those of the engines
	@$(ENVS) build dev verl weave-server alongside
	@status=0; \
	dev/run_tests.sh .venv tests/unit tests/e2e -- $(ARGS) || status=1; \
	dev/run_tests.sh .venv-verl tests/verl tests/versions -- $(ARGS) || status=1; \
	dev/run_tests.sh .venv-alongside tests/alongside -- $(ARGS) || status=1; \
	exit $$status

test-engines:  ## Run the tests against the real vLLM and the real SGLang (5 GB more)
	@status=0; \
	for engine in vllm sglang; do \
		if dev/run_tests.sh --any tests/engines/$$engine; then \
			$(ENVS) build dev $$engine weave-server || exit 1; \
			dev/run_tests.sh .venv-$$engine tests/engines/$$engine -- $(ARGS) || status=1; \
		fi; \
	done; \
	exit $$status

check:  ## Lint, types and the fast tests
	@$(ENVS) build dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	@dev/run_tests.sh .venv tests/unit -- $(ARGS)

faults:  ## Run every end of a process in every state of the server (an hour)
	@$(ENVS) build dev verl weave-server
	@mkdir -p build && rm -f build/faults.jsonl
	@OTEL_ROLLOUT_FAULT_REPORT=$(CURDIR)/build/faults.jsonl TEST_TIMEOUT=1800 \
		dev/run_tests.sh .venv tests/faults -- $(ARGS)
	.venv/bin/python -m tests.faults.report build/faults.jsonl

matrix:  ## Run this package beside the versions that people have (20 minutes)
	@$(ENVS) build dev verl weave-server
	@mkdir -p build/matrix
	@status=0; \
	"$$($(ENVS) python matrix)" -m nox --report build/matrix.json $(ARGS) || status=1; \
	"$$($(ENVS) python matrix)" dev/matrix_table.py build/matrix.json build/matrix; \
	exit $$status

bench:  ## Measure what tracing costs, beside other ways to trace (15 minutes; BENCH_QUICK=1: 2)
	@$(ENVS) build dev bench vllm
	@dev/bench.sh $(ARGS)

docs:  ## Build the documentation into build/site; a warning is an error
	@$(ENVS) build dev
	.venv/bin/python dev/reference.py --write
	NO_MKDOCS_2_WARNING=1 $$($(ENVS) python docs) -m mkdocs build --strict --quiet

dist:  ## Build wheel and sdist into dist/, and try each in a bare environment
	@dev/release/dist.sh $$($(ENVS) python release)

clean:  ## Remove what was made in this clone; the cached environments stay
	rm -rf .venv .venv-verl .venv-vllm .venv-sglang .venv-alongside .venv-bench .nox .demo build dist
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
