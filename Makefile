# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python

.PHONY: demo test docs fuzz bench web-demo web-test clean

demo: $(VENV)/.demo ## train the methods on embedded data, print one table, write a report
	$(RUN) -m selfsame compare --data digits

# What Python and pytest make of each source is kept, also where the environment says otherwise: tests start Python often.
PYTEST := PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest

test: $(VENV)/.test ## lint, types and the whole test suite
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@echo "$(VENV)/bin/mypy, beside the tests; what it says comes last"
	@said=$$(mktemp); $(VENV)/bin/mypy >$$said 2>&1 & types=$$!; \
	  $(PYTEST) -n 2 --dist worksteal; tests=$$?; wait $$types; types=$$?; \
	  cat $$said; rm -f $$said; exit $$((tests ? tests : types))

docs: $(VENV)/.docs ## the manual in build/site; a broken link, a missing anchor or an orphan is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "$(RUN) -m http.server --bind 127.0.0.1 --directory build/site  # then open http://localhost:8000/"

fuzz: $(VENV)/.test ## the property tests again and again, each time on new cases
	for round in $$(seq $${ROUNDS:-20}); do \
	  echo "round $$round"; SELFSAME_CASES=fuzz $(PYTEST) -n 2 -m hypothesis || exit 1; done

bench: $(VENV)/.demo ## the benchmarks that run on this machine
	$(RUN) bench/engines.py
	$(RUN) bench/growth.py
	$(RUN) bench/around.py

# The page that recognises you, in build/web: npm brings onnxruntime-web, and for its test playwright-core.
WEB := build/web
PORT ?= 8000
NPM := npm install --prefix $(WEB) --no-save --no-audit --no-fund --ignore-scripts --loglevel error \
  --fetch-retries 1 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 2000
ORT := onnxruntime-web@1.30.0

web-demo: $(VENV)/.test $(WEB)/.demo ## a page where you write digits and are recognised by them
	test -f runs/web-demo/report.html || $(RUN) -m selfsame train fedcrowd --data digits --quiet --out runs/web-demo
	$(RUN) -m selfsame export runs/web-demo --web $(WEB)/page --runtime $(WEB)/node_modules/onnxruntime-web
	@echo "open http://localhost:$(PORT)/ (Ctrl-C ends it)"
	$(RUN) -m http.server $(PORT) --bind 127.0.0.1 --directory $(WEB)/page

web-test: $(VENV)/.test $(WEB)/.test ## the page and the reports in headless Chromium
	SELFSAME_WEB_PACKAGES=$(WEB) $(PYTEST) -n 2 --dist loadfile tests/export/test_page_browser.py tests/report/test_pages_browser.py

$(WEB)/.demo:
	mkdir -p $(WEB)
	$(NPM) $(ORT)
	touch $@

$(WEB)/.test:
	mkdir -p $(WEB)
	$(NPM) $(ORT) playwright-core@1.65.0
	touch $@ $(WEB)/.demo

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

$(VENV)/.docs: requirements-docs.lock $(VENV)/.test
	$(PIP) --require-hashes --no-deps -r requirements-docs.lock
	touch $@

clean: ## remove the virtual environment and caches, keep the runs
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
