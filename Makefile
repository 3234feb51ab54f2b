# Thin names for the commands; everything they need is installed into .venv from pyproject.toml and constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help install run demo-snapshot test check coverage verify-install fuzz soak verify-deploy docs bench clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

# What serving needs. The second stamp is for everything: training, tests and documentation.
.venv/.serving: pyproject.toml constraints.txt
	@echo "Installing what serving needs into .venv (about 30 packages, no torch) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/.installed: pyproject.toml constraints.txt
	@echo "Installing everything into .venv (torch is 200 MB or more) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,train,dev,docs]'
	@touch .venv/.serving $@

install: .venv/.installed  ## everything into .venv: serving, training, tests, documentation

run: .venv/.serving  ## serve the demo model on port 8000 (SGF_PORT); needs no training
	$(BIN)/sgf-serve --demo

demo-snapshot: .venv/.installed  ## train the demo again and pack it as model_store/demo.zip
	rm -rf build/demo
	OMP_NUM_THREADS=1 $(BIN)/python -m training --recipe digits --store build/demo --no-checkpoint --quiet
	$(BIN)/sgf-models demo --pack build/demo/digits/1

test: check  ## lint, type-check, run every test
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

check: .venv/.installed  ## lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

coverage: .venv/.installed  ## every test, and which lines it runs: build/coverage/index.html
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered --cov-report=html

verify-install: .venv/.installed  ## install into an empty environment per Python on this machine, and use every command there
	VERIFY_INSTALL=1 $(BIN)/pytest tests/test_installation.py

fuzz: .venv/.installed  ## the exactness properties on 5,000 fresh random cases each
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -n 2 tests/sgformer/request_time/test_exactness.py

soak: .venv/.installed  ## 10 kills of a training, 200 of publishers, a minute of readers and publishers at once, 200 swaps under load, 12,000 attacks on the API, cancels within 2 s
	SGF_TRAINING_KILLS=10 $(BIN)/pytest tests/training/fit/test_loop.py -k kills
	SGF_KILLS=200 SGF_CROWD_SECONDS=60 $(BIN)/pytest -n 2 tests/model_store/versions/test_crashes.py tests/model_store/versions/test_crowd.py
	SGF_CANCEL_SECONDS=2 $(BIN)/pytest tests/service/jobs -k "one_key or everybody_sees"
	SGF_SWAPS=200 SGF_CASES=1500 SGF_REAL=all $(BIN)/pytest -n 2 tests/service/rollout/test_rollout.py tests/service/http/test_schema.py tests/service/predict/test_real_graphs.py

verify-deploy: .venv/.installed  ## build the images, run docker compose up, retrain, kill and restart, scrape; starts a Docker engine if none runs, as root
	deploy/install-verify-tools
	VERIFY_DEPLOY=1 $(BIN)/pytest tests/deploy

docs: .venv/.installed  ## the documentation site, into build/site; a broken link is an error
	$(BIN)/mkdocs build --strict

bench: .venv/.installed  ## measure, compared with other libraries and minimal implementations: docs/benchmarks.md and .json (ROOM=model_store: only that)
	$(BIN)/python -m benchmarks $(ROOM)

clean:  ## remove the environment and everything generated
	rm -rf .venv var build .coverage *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
