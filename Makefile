# Everything that is done by hand in this project, by name. `make` alone prints the list.
# PYTHON makes the environment, nothing else: all other targets use what is in .venv.
PYTHON ?= python3
BIN := .venv/bin

# One thread per process: two OpenMP threads beside other load can make a step ten times slower.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

.PHONY: help env demo test slow-test lint types kills slurm-up slurm-down slurm-test bench clean

help:  ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

env: .venv/.ready  ## make .venv with everything needed (again only when the requirements change)

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: env  ## the ffn_ablation question at laptop scale, from nothing to its report
	$(BIN)/lab sweep ffn_ablation --scale laptop --yes

test: env lint types  ## lint, types and tests, but those that take minutes (what needs SLURM skips where there is none)
	$(PYTEST) -m "not slow"

slow-test: env  ## the tests that take minutes: faults, kills, simulations
	$(PYTEST) -m slow --ignore tests/slurm

kills: env  ## 200 random kill -9 over workers, launcher and ingester during a sweep; prints the counts
	LAB_KILLS=200 $(BIN)/pytest -s tests/faults/test_kills.py

lint: env  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: env  ## mypy, strict
	$(BIN)/mypy

slurm-up:  ## start a private one-node SLURM (root; needs slurm-wlm and munge)
	$(PYTHON) tests/slurm/cluster.py start

slurm-down:  ## stop it
	$(PYTHON) tests/slurm/cluster.py stop

slurm-test: env slurm-up  ## the tests that need SLURM, against that cluster
	LAB_REQUIRE_SLURM=1 $(PYTEST) tests/slurm

bench: env  ## the benchmarks
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks

clean:  ## remove what was built; results in lab-home stay
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
