# Everything a developer types. `make demo` and `make test` need only Python and pip.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 8000
# Many tests wait for servers, so that a process more than two cores have is none too many.
WORKERS ?= 3

.PHONY: help demo test live lint coverage matrix bench build clean

help:
	@echo "make demo    run the demo site with Daphne and print the address to open"
	@echo "make test    run the tests, on real ASGI servers where it matters"
	@echo "make live    run the tests that need nginx, PostgreSQL, Redis or Chromium, and install these as root on Debian"
	@echo "make lint    check style and types"
	@echo "make coverage run the tests and list the lines that they miss"
	@echo "make matrix  run the tests on every supported pair of Python and Django that is at hand"
	@echo "make bench   measure what chunks, idle streams, switches and messages cost, beside the alternatives"
	@echo "make build   build the wheel and try it in an empty environment"

$(VENV)/.installed: requirements.txt pyproject.toml sse_keepalive/__init__.py
	@echo "Installing into $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.installed-live: $(VENV)/.installed requirements-live.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-live.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-live requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python manage.py demo --port $(PORT)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not peers" -n $(WORKERS)

live: $(VENV)/.installed-live
	.ci/peers
	$(BIN)/python -m pytest -m peers

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

coverage: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not peers and not wheel" --cov --cov-report=term-missing

matrix: $(VENV)/.installed-dev
	$(BIN)/nox --no-error-on-missing-interpreters $(NOX_OPTIONS)

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.server
	$(BIN)/python -m benchmarks.switches
	$(BIN)/python -m benchmarks.fanout

build: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m wheel

clean:
	rm -rf $(VENV) .nox build dist *.egg-info .coverage* .mypy_cache .ruff_cache .hypothesis db.sqlite3
