# `make demo` and `make test` do all the set-up they need: Python 3.11 or newer and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
HTTP := .venv-http
SBOM := .venv-sbom
# Optional parts of the package whose requirements get hashes, and whose installation is listed by `make sbom`.
EXTRAS ?=
ENVIRONMENT ?= $(VENV)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# Small models gain nothing from many threads, and numpy's and torch's pools spin against each other.
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
# Tests start many processes; each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo lint format test test-slow test-gpu test-federation test-deploy test-deploy-http test-soak hashes sbom clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

install: $(STAMP)  ## make .venv and install the tested versions into it

# Building without isolation lets a second run finish without network: all it needs is in .venv already.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null || echo missing); \
	  echo "make: Python 3.11 or newer is needed; $(PYTHON) is $$found. Name one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	@echo "setting up $(VENV) (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt hatchling
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[simulation,vision,torchjd,dev]'
	@touch $@

$(HTTP)/.installed: pyproject.toml constraints-http.txt | $(STAMP)
	@test -x $(HTTP)/bin/python || $(BIN)/python -m venv $(HTTP)
	@$(HTTP)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints-http.txt hatchling
	@$(HTTP)/bin/python -m pip --disable-pip-version-check --quiet install -c constraints-http.txt \
	  --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## train ten clients with DQN-Fed and with FedAvg, side by side
	@$(BIN)/dqnfed demo

lint: $(STAMP)  ## style and types
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary

format: $(STAMP)  ## repair style where it can be done by itself
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test: lint  ## style, types and every test that is not slow
	@$(BIN)/pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not slow and not deploy"

test-slow: $(STAMP)  ## the long tests that `make test` leaves out
	@$(BIN)/pytest -q -m "slow and not deploy"

test-gpu: $(STAMP)  ## what only a CUDA device can show; skipped without one
	@$(BIN)/pytest -q -m gpu tests/gpu

test-federation: $(STAMP)  ## a federation of real processes on loopback, and who gets into it: minutes; CI runs it too
	@$(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "deploy and not soak and not slow" $(addprefix tests/deploy/test_,federation.py federation_faults.py doors.py fleet_flood.py)

test-deploy: $(STAMP)  ## real SuperLinks and SuperNodes on loopback: tens of minutes
	@$(BIN)/pytest -q -m "deploy and not soak"

test-deploy-http: $(HTTP)/.installed  ## the same with the first Flower that speaks HTTP, in an environment of its own
	@$(HTTP)/bin/pytest -q -m "deploy and not soak" tests/deploy --ignore tests/deploy/test_compose.py

test-soak: $(STAMP)  ## kill every process of a federation twenty times: hours
	@$(BIN)/pytest -q -s -m soak

hashes: $(STAMP)  ## write requirements-hashed*.txt anew: the pinned versions with the SHA-256 of their files
	@for lane in "" -http; do \
	  echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
	    --custom-compile-command "make hashes" -c constraints$$lane.txt $(EXTRAS:%=--extra %) \
	    -o requirements-hashed$$lane.txt pyproject.toml - || exit 1; \
	done

$(SBOM)/.installed: Makefile | $(STAMP)
	@test -x $(SBOM)/bin/python || $(BIN)/python -m venv $(SBOM)
	@$(SBOM)/bin/python -m pip --disable-pip-version-check --quiet install cyclonedx-bom==7.5.0
	@touch $@

sbom: $(SBOM)/.installed  ## write sbom.json, CycloneDX, of what is installed in .venv, or in ENVIRONMENT=/opt/dqnfed
	@$(SBOM)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o sbom.json $(ENVIRONMENT)

clean:  ## remove what is made here, .venv too
	rm -rf $(VENV) $(HTTP) $(SBOM) sbom.json build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
