# Thin names for the commands; everything they need is installed into .venv from pyproject.toml and constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: help install run demo-snapshot test check coverage verify-pages verify-install console verify-console fuzz soak verify-deploy verify-hosts verify-gpu docs screens bench clean
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

run: .venv/.serving  ## serve the demo model on port 8000 (SGF_PORT), or your model if SGF_STORE or SGF_MODEL is set
	$(BIN)/sgf-serve $(if $(SGF_STORE)$(SGF_MODEL),,--demo)

demo-snapshot: .venv/.installed  ## train the demo again and pack it as model_store/demo.zip
	rm -rf build/demo
	OMP_NUM_THREADS=1 $(BIN)/python -m training --recipe digits --store build/demo --no-checkpoint --quiet
	$(BIN)/sgf-models demo --pack build/demo/digits/1

# A test that hangs fails after this time, and the others run.
TEST_SECONDS := 900

test: check  ## lint, type-check, run every test
	$(BIN)/pytest --timeout $(TEST_SECONDS) -n 3 --dist loadfile --no-loadscope-reorder

check: .venv/.installed  ## lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

coverage: .venv/.installed  ## every test, and which lines it runs: build/coverage/index.html
	$(BIN)/pytest --timeout $(TEST_SECONDS) -n 3 --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered --cov-report=html

verify-pages: .venv/.installed  ## run every command of the documentation, each page in a clone of its own
	VERIFY_PAGES=1 $(BIN)/pytest --timeout $(TEST_SECONDS) -n 2 tests/test_commands.py -k test_every_command_of_a_page

verify-install: .venv/.installed  ## install into an empty environment per Python on this machine, and use every command there
	VERIFY_INSTALL=1 $(BIN)/pytest tests/test_installation.py

console:  ## build the console from service/console/src into service/console/dist; needs Node 20.19 or later
	cd service/console && npm ci && npm run build

verify-console: .venv/.installed  ## build the console in a folder of its own, and compare it with the files that are committed; needs Node
	VERIFY_CONSOLE=1 $(BIN)/pytest tests/service/console/test_assets.py

fuzz: .venv/.installed  ## the exactness properties on 5,000 fresh random cases each
	HYPOTHESIS_PROFILE=fuzz $(BIN)/pytest -n 2 tests/sgformer/request_time/test_exactness.py tests/sgformer/live/test_changing_graph.py tests/model_store/graph_log/test_model.py

soak: .venv/.installed  ## 10 kills of a training, 200 of publishers, 1,000 of writers of the graph log, a minute of readers and publishers at once, 200 swaps under load, 12,000 attacks on the API, cancels within 2 s, 100,000 changes of a live graph, 1,000 kills of workers that commit
	SGF_OPERATIONS=100000 $(BIN)/pytest tests/sgformer/live/test_changing_graph.py tests/service/live/test_many_changes.py -k "thousands or many_operations"
	SGF_WORKER_KILLS=1000 $(BIN)/pytest tests/service/live/test_replicas.py -k killed
	SGF_TRAINING_KILLS=10 $(BIN)/pytest tests/training/fit/test_loop.py -k kills
	SGF_KILLS=200 SGF_CROWD_SECONDS=60 $(BIN)/pytest -n 2 tests/model_store/versions/test_crashes.py tests/model_store/versions/test_crowd.py
	SGF_LOG_KILLS=1000 $(BIN)/pytest tests/model_store/graph_log/test_kills.py
	SGF_CANCEL_SECONDS=2 $(BIN)/pytest tests/service/jobs -k "one_key or everybody_sees"
	SGF_SWAPS=200 SGF_CASES=1500 SGF_REAL=all $(BIN)/pytest -n 2 tests/service/rollout/test_rollout.py tests/service/http/test_schema.py tests/service/predict/test_real_graphs.py

verify-deploy: .venv/.installed  ## build the images, run docker compose up, retrain, kill and restart, scrape; starts a Docker engine if none runs, as root
	deploy/install-verify-tools
	VERIFY_DEPLOY=1 $(BIN)/pytest tests/deploy

verify-hosts: .venv/.installed  ## train on two and three hosts (network namespaces), cut hosts off, kill processes; needs root and iproute2, 15 minutes
	VERIFY_HOSTS=1 $(BIN)/pytest tests/training/test_hosts.py tests/deploy/test_training_hosts.py

verify-gpu: .venv/.installed  ## compare a GPU with the CPU: training, the full forward, refresh, serving, two processes by nccl; needs a GPU
	$(BIN)/python -m tests.gpu

docs: .venv/.installed  ## the documentation site, into build/site; a broken link is an error
	$(BIN)/mkdocs build --strict

screens: .venv/.installed  ## take the pictures in docs/screens again; needs Chromium and Pillow
	PYTHONPATH=. $(BIN)/python docs/screens/make.py

bench: .venv/.installed  ## measure, compared with other libraries and minimal implementations: docs/benchmarks.md and .json (GROUP=model_store: only this group)
	$(BIN)/python -m benchmarks $(GROUP)

clean:  ## remove the environment and everything generated
	rm -rf .venv var build .coverage *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
