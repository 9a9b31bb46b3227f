# Every target starts from nothing installed but Python; `make` alone lists them.

AIRFLOW_BIN := .venv/bin
UV := $(CURDIR)/.uv/bin/uv
SIDE_BY_SIDE := --no-print-directory --output-sync=target --keep-going
PROFILE := current
WORKERS := --numprocesses 2 --max-worker-restart 0 --dist loadgroup --no-loadscope-reorder
# Tests that wait leave cores idle, which a third worker fills where there is memory for it.
ALL_WORKERS := $(shell awk '/^MemTotal/ { print ($$2 > 12e6 ? 3 : 2) }' /proc/meminfo)
GPU_PYTHON := $(firstword $(wildcard .venv-runtime/bin/python) python3)
# EXTENSION=streams: the tests of one extension; TRUNK=1: those of none.
TESTS := $(if $(EXTENSION),$(wildcard tests/extensions/$(EXTENSION) tests/*/extensions/test_$(EXTENSION).py),tests)
TESTS_ML := $(if $(EXTENSION),$(wildcard tests/ml/extensions/$(EXTENSION)),tests/ml)
SELECTED := $(WORKERS) $(if $(TRUNK),--ignore-glob '*/extensions')
PYTEST := $(AIRFLOW_BIN)/python -m pytest $(TESTS) $(SELECTED)
PYTEST_ML := .venv-runtime/bin/python -m pytest --confcutdir tests/ml $(TESTS_ML) $(SELECTED)
# An extension may have no tests of some kind, which pytest reports by 5.
NONE := $(if $(EXTENSION),|| [ $$? = 5 ])
QUICK := not (airflow or browser or scheduled or server or slow or spark)
# PART=kubernetes: one part of `make test-all`. A part may have no tests on one side.
SCHEDULED := scheduled$(if $(PART),(part='$(PART)'))
LONG := --numprocesses 1 -m "$(SCHEDULED)" --timeout 7200 --hypothesis-profile campaign $(CAMPAIGNS)
# The demo needs few of the tools of tests: those of HOPS_DEMO_PRODUCTION=1.
DEMO_SETUP := $(if $(filter-out 0,$(HOPS_DEMO_PRODUCTION)),setup,demo-setup)
# The oldest and the newest minor of Airflow that pyproject.toml admits; the pins have one of them.
AIRFLOW_MINORS := 3.3 3.4
AIRFLOW := $(filter-out $(shell sed -n 's/^apache-airflow==\([0-9]*\.[0-9]*\)\..*/\1/p' requirements/airflow.txt),$(AIRFLOW_MINORS))
OTHER_AIRFLOW := .venv-airflow-$(if $(LOWEST),lowest,$(AIRFLOW))
# The rest is of the day of the oldest Airflow: what came later may not work with it.
OLDEST := --exclude-newer 2026-07-07 --exclude-newer-package hdfs-native=2026-10-14
# Airflow's exporter needs an API of its own version.
OLDEST_OTLP := 'opentelemetry-exporter-otlp==1.30.*'
COMPILE := pip compile --quiet --no-emit-index-url --no-header $(if $(UPGRADE),--upgrade)

# Everything below starts Python often: let it keep its bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo-setup wheel release-check upgrade-test images ui demo demo-images check coverage test test-all test-gpu test-profile airflow test-airflow pins runtime-pins quick-tests quick-tests-ml all-tests all-tests-ml lint style types walls pages sizes bench docs links requirements count clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make both environments, .venv and .venv-runtime, from their pins
# Those who have Python write no bytecode need it from the installation; the demo's Python writes it (see above).
setup: COMPILED := $(if $(PYTHONDONTWRITEBYTECODE),UV_COMPILE_BYTECODE=1)
setup demo-setup:
	@for python in $(PYTHON) python3.11 python3 python3.13 python3.12; do \
		if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
			exec env $(COMPILED) "$$python" scripts/set_up.py $(filter demo,$(subst -, ,$@)); \
		fi; \
	done; \
	echo "Python 3.11, 3.12 or 3.13 is needed, and none was found (Debian: apt-get install python3)" >&2; \
	exit 1

wheel: setup ## build the package into dist/, the pages of the web UI included
	@rm -rf dist
	@$(UV) build --quiet --wheel --out-dir dist

release-check: setup ## build wheel and sdist into dist/, check metadata, content, licences and types, write the SBOM (network)
	@$(AIRFLOW_BIN)/python scripts/check_release.py

upgrade-test: setup ## read with this version the store, models, captured requests and monitors that the last tag v… writes
	@$(AIRFLOW_BIN)/python scripts/upgrade_test.py

images: wheel ## build the images airflow-hops and airflow-hops-runtime with buildah (root)
	@python3 scripts/build_images.py $(IMAGE_OPTIONS)

ui: ## build the pages of the web UI (Node.js 20.19 or newer)
	@python3 scripts/build_ui.py

demo: $(DEMO_SETUP) ## run the flights pipeline in a real Airflow, and leave the web UI open
	@$(AIRFLOW_BIN)/python -m demo

demo-images: $(DEMO_SETUP) ## learn to tell clothes apart from 70,000 pictures, and serve it
	@$(AIRFLOW_BIN)/python -m demo.images

check: setup ## after each change, in minutes: style, types, walls, and all tests that start no server, JVM or browser
	@$(MAKE) $(SIDE_BY_SIDE) --jobs 3 quick-tests quick-tests-ml lint

test: setup ## all that README and documentation promise: style, types, walls, documentation, all tests
	@$(MAKE) $(SIDE_BY_SIDE) --jobs 2 lint docs; looked=$$?; \
	$(MAKE) --no-print-directory --keep-going all-tests all-tests-ml && exit $$looked

test-all: setup ## what is too long for `make test`, in hours: clusters, HDFS, Kubernetes, images, campaigns (PART=hdfs; root)
	$(if $(filter-out kubernetes,$(PART)),,$(AIRFLOW_BIN)/python tests/kubernetes_cluster.py)
	@failed=0; \
	$(PYTEST) $(LONG) || [ $$? = 5 ] || failed=1; \
	$(PYTEST_ML) $(LONG) || [ $$? = 5 ] || failed=1; \
	exit $$failed

coverage: setup ## run the quick tests of both sides, and report which lines of the trunk they run
	$(AIRFLOW_BIN)/coverage erase
	$(MAKE) --no-print-directory quick-tests quick-tests-ml COVERED="--cov airflow_hops --cov-append --cov-report="
	$(AIRFLOW_BIN)/coverage report --omit 'airflow_hops/extensions/*' --skip-covered --sort cover

test-gpu: ## run trainings on this machine's NVIDIA GPU, with PyTorch or JAX of GPU_PYTHON; skipped without a GPU
	$(GPU_PYTHON) -m pytest --confcutdir tests/gpu tests/gpu

test-profile: ## run the tests in a Debian of their own (root, debootstrap): PROFILE=current or base, COMMAND="make check"
	python3 scripts/test_profile.py $(PROFILE) $(COMMAND)

quick-tests:
	$(if $(TESTS),$(PYTEST) --ignore tests/ui -m "$(QUICK)" $(COVERED) $(NONE))

quick-tests-ml:
	$(if $(TESTS_ML),$(PYTEST_ML) -m "$(QUICK)" $(COVERED) $(NONE))

all-tests:
	$(if $(TESTS),$(PYTEST) --numprocesses $(ALL_WORKERS) $(if $(filter tests,$(TESTS)),--side airflow) $(NONE))

all-tests-ml:
	$(if $(TESTS_ML),$(PYTEST_ML) --numprocesses $(ALL_WORKERS) $(if $(filter tests/ml,$(TESTS_ML)),--side ml) $(NONE))

lint: setup style types walls pages sizes ## check style, types, import walls and sizes

style:
	$(AIRFLOW_BIN)/ruff check
	$(AIRFLOW_BIN)/ruff format --check

types:
	$(AIRFLOW_BIN)/mypy

walls:
	$(AIRFLOW_BIN)/lint-imports

pages:
	$(AIRFLOW_BIN)/python scripts/build_ui.py check

sizes:
	$(AIRFLOW_BIN)/python scripts/count.py check

bench: setup ## run every benchmark; each prints a table, and a line of JSON last
	@set -e; for benchmark in benchmarks/[a-z]*.py; do $(AIRFLOW_BIN)/python "$$benchmark"; done

docs: setup ## build the documentation into docs/_build, warnings as errors
	$(AIRFLOW_BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html

links: setup ## ask every address that the documentation links to (needs the network)
	$(AIRFLOW_BIN)/sphinx-build --quiet --builder linkcheck docs docs/_build/links

requirements: setup ## compile the pins from pyproject.toml (UPGRADE=1 for the newest that fit)
	$(UV) $(COMPILE) --python-version 3.11 --universal --extra hdfs --extra kafka --extra kubernetes --extra openlineage --extra s3 --group dev --output-file requirements/airflow.txt pyproject.toml >/dev/null
	$(UV) $(COMPILE) --python-version 3.11 --universal --constraint requirements/airflow.txt --group demo --no-annotate --output-file requirements/airflow-demo.txt pyproject.toml >/dev/null
	$(MAKE) --no-print-directory runtime-pins NAME=runtime PYTHON_OF_PINS=3.11
	$(MAKE) --no-print-directory runtime-pins NAME=runtime-current PYTHON_OF_PINS=3.12

pins: setup ## write contribute/pins.md: age of each pin, newest release, what keeps it (network; AUDIT=1: vulnerabilities)
	$(AIRFLOW_BIN)/python scripts/pins.py $(if $(AUDIT),--vulnerabilities) $(if $(CURRENT),--current $(CURRENT))

airflow: setup ## make an environment with another minor of Airflow (AIRFLOW=3.4, or a pre-release), or LOWEST=1: by the lower bounds
	$(UV) venv --quiet --allow-existing --python $(AIRFLOW_BIN)/python $(OTHER_AIRFLOW)
ifdef LOWEST
	$(UV) pip install --quiet --python $(OTHER_AIRFLOW)/bin/python --resolution lowest-direct $(OLDEST) --all-extras -r pyproject.toml $(OLDEST_OTLP)
	$(UV) pip freeze --python $(OTHER_AIRFLOW)/bin/python | grep == >$(OTHER_AIRFLOW)/lowest.txt
	$(UV) pip install --quiet --python $(OTHER_AIRFLOW)/bin/python $(OLDEST) --constraint $(OTHER_AIRFLOW)/lowest.txt --group dev
else
	$(UV) pip install --quiet --python $(OTHER_AIRFLOW)/bin/python -r requirements/airflow.txt
	$(UV) pip install --quiet --python $(OTHER_AIRFLOW)/bin/python 'apache-airflow==$(AIRFLOW).*' || \
		$(UV) pip install --quiet --python $(OTHER_AIRFLOW)/bin/python --prerelease allow 'apache-airflow==$(AIRFLOW).*'
endif
	$(UV) pip install --quiet --python $(OTHER_AIRFLOW)/bin/python --no-deps --editable .

test-airflow: airflow ## run the quick tests of the Airflow side, or all with ALL=1, under another minor of Airflow, or LOWEST=1
	$(OTHER_AIRFLOW)/bin/python -m pytest $(WORKERS) $(if $(ALL),--numprocesses $(ALL_WORKERS),--ignore tests/ui -m "$(QUICK)")

runtime-pins:
	$(UV) $(COMPILE) --python-version $(PYTHON_OF_PINS) $(if $(filter runtime-current,$(NAME)),--universal) --config-file requirements/uv.toml \
		--override requirements/$(NAME)-override.txt --group $(NAME) --output-file requirements/$(NAME).txt >/dev/null
	echo 'tensorflow[and-cuda]' | $(UV) $(COMPILE) --python-version $(PYTHON_OF_PINS) --constraint requirements/$(NAME).txt \
		--no-annotate --output-file requirements/.cuda.tmp - >/dev/null
	sed -n -e '1i -r $(NAME).txt' -e '/^nvidia-/p' requirements/.cuda.tmp >requirements/$(NAME)-cuda.txt
	rm requirements/.cuda.tmp
	$(UV) $(COMPILE) --python-version $(PYTHON_OF_PINS) --constraint requirements/$(NAME).txt --group runtime-test \
		--output-file requirements/$(NAME)-test.txt >/dev/null

count: ## count the lines of the package and the tests, and those of code
	@python3 scripts/count.py

clean: ## remove both environments and all that was built
	rm -rf .uv .venv .venv-airflow-* .venv-runtime .venv-runtime-* .hops ui/node_modules airflow_hops/web/static docs/_build dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
