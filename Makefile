# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test fuzz bench clean

demo: $(VENV)/.demo ## train the methods on embedded data, print one table, write a report
	$(RUN) -m selfsame compare --data digits

test: $(VENV)/.test ## lint, types and the whole test suite
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(RUN) -m pytest -n 2

fuzz: $(VENV)/.test ## the property tests again and again, each time on new cases
	for round in $$(seq $${ROUNDS:-20}); do \
	  echo "round $$round"; SELFSAME_CASES=fuzz $(RUN) -m pytest -n 2 -m hypothesis || exit 1; done

bench: $(VENV)/.demo ## the benchmarks that run on this machine
	$(RUN) bench/engines.py
	$(RUN) bench/growth.py
	$(RUN) bench/around.py

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "selfsame needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

PIP := $(RUN) -m pip install --quiet --disable-pip-version-check

$(VENV)/.demo: requirements.lock requirements-torch.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) -r requirements-torch.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

$(VENV)/.test: requirements-dev.lock $(VENV)/.demo
	$(PIP) --require-hashes --no-deps -r requirements-dev.lock
	touch $@

clean: ## remove the virtual environment and caches, keep the runs
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
