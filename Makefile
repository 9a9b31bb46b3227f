# Every target starts from nothing installed but Python 3.11; `make` alone lists them.

AIRFLOW_BIN := .venv/bin
UV := $(CURDIR)/.uv/bin/uv
COMPILE := pip compile --quiet --no-emit-index-url --no-header $(if $(UPGRADE),--upgrade)

# Everything below starts Python often: let it keep its bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup ui demo demo-images test lint bench docs requirements clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make both environments, .venv and .venv-runtime, from their pins
	@for python in $(PYTHON) python3.11 python3; do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then \
			exec "$$python" scripts/set_up.py; \
		fi; \
	done; \
	echo "Python 3.11 is needed, and neither python3.11 nor python3 is one (Debian 12: apt-get install python3)" >&2; \
	exit 1

ui: ## build the pages of the web UI (Node.js 20.19 or newer)
	@python3 scripts/build_ui.py

demo: setup ## run the flights pipeline in a real Airflow, and leave the web UI open
	@$(AIRFLOW_BIN)/python -m demo

demo-images: setup ## learn to tell clothes apart from 70,000 pictures, and serve it
	@$(AIRFLOW_BIN)/python -m demo.images

test: lint docs ## check style, types, import walls and documentation, then run all tests
	$(AIRFLOW_BIN)/python -m pytest

lint: setup ## check style, types and import walls
	$(AIRFLOW_BIN)/ruff check
	$(AIRFLOW_BIN)/ruff format --check
	$(AIRFLOW_BIN)/mypy
	$(AIRFLOW_BIN)/lint-imports
	$(AIRFLOW_BIN)/python scripts/build_ui.py check

bench: setup ## run every benchmark; each prints a table, and a line of JSON last
	@set -e; for benchmark in benchmarks/[a-z]*.py; do $(AIRFLOW_BIN)/python "$$benchmark"; done

docs: setup ## build the documentation into docs/_build, warnings as errors
	$(AIRFLOW_BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html

requirements: setup ## compile the pins from pyproject.toml (UPGRADE=1 for the newest that fit)
	$(UV) $(COMPILE) --extra s3 --group dev --output-file requirements/airflow.txt pyproject.toml >/dev/null
	$(UV) $(COMPILE) --config-file requirements/uv.toml --group runtime --output-file requirements/runtime.txt >/dev/null

clean: ## remove both environments and all that was built
	rm -rf .uv .venv .venv-runtime .hops ui/node_modules airflow_hops/api/static docs/_build dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
