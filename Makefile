# `make demo` and `make test` need Python 3.11 or later and nothing else: the first run puts
# what they use into .venv, and nothing anywhere else. `make interop` needs npm as well, and puts
# the other implementations into .interop; `make bench-dispatch` and
# `make bench-data` put Ray, Dask and joblib into .bench.

PYTHON ?= python3
# For the demo: make demo ARGS=--json; for the tests: make test ARGS=-x
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
# uv installs in a tenth of the time that pip takes. It does not read pip's configuration: where that
# names another index, or uv cannot be had, pip does it.
UV := uv==0.13.9
PIP := -m pip install --quiet --disable-pip-version-check
INSTALL = install() { bin=$$1/bin && shift && $$bin/python $(PIP) $(UV) \
	&& UV_LINK_MODE=copy UV_HTTP_TIMEOUT=20 $$bin/uv pip install --quiet --python $$bin/python "$$@" \
	|| $$bin/python $(PIP) "$$@"; }; install
# Each stamp says that an installation ran to its end, and with what.
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
COMPILED := $(VENV)/.compiled
INSTALLED_BENCH := $(VENV)/.installed-bench
INSTALLED_GATEWAY := $(VENV)/.installed-gateway
INSTALLED_DOCS := $(VENV)/.installed-docs
# What we are compared with, in an environment of its own.
PEERS := .bench
PEERS_TXT := benchmarks/peers.txt
# The version of protobuf that the generated files name, and the tools that go with it.
PROTO_VENV := $(VENV)/proto
PROTO_TOOLS := grpcio-tools==1.71.2 protobuf==5.29.6 setuptools==75.8.0
PROTOS := formation_p2p/dht/core/kad.proto formation_p2p/reach/core/autonat.proto \
	formation_p2p/reach/core/circuit.proto formation_p2p/reach/core/dcutr.proto \
	formation_p2p/records/core/envelope.proto formation_p2p/net/transport/libp2p.proto

# The tests start hundreds of processes, each of which would compile all that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo demo-services ready test test-pure test-whole interop lint format docs proto bench-dht bench-dispatch bench-data bench-placement bench-clusters bench-services chaos soak nat clean
# A recipe that fails leaves no half-made target behind.
.DELETE_ON_ERROR:

help:
	@echo "make demo    four processes, one of them killed, one real job (ARGS=--json)"
	@echo "make demo-services  a catalog of services on three workers, one of them killed, and a picture"
	@echo "make test    everything that must hold: lint, then the tests with their coverage"
	@echo "make interop the DHT against go-libp2p, js-libp2p and py-libp2p, fetched on first use"
	@echo "make bench-dht  four DHTs side by side on loopback (ARGS=--json, ARGS=--kill)"
	@echo "make bench-dispatch  small tasks beside Ray, Dask and a pool of processes (ARGS=--json)"
	@echo "make bench-data  arrays, files, packages and environments, beside Ray and joblib (ARGS=--json)"
	@echo "make bench-placement  a million profiles, and 100,000 tasks on 5,000 nodes (ARGS=--json)"
	@echo "make bench-clusters  gangs, what they divide, and streams between members (ARGS=--json)"
	@echo "make bench-services  requests through a hop, beside nginx and HAProxy, and under kills (ARGS=--json)"
	@echo "make chaos   1,000 small clusters and all that can befall them (ARGS=--json)"
	@echo "make soak    a small network under kills and attacks at once (ARGS='--minutes 5 --json')"
	@echo "make nat     real nodes behind routers of every kind; needs root and nftables (ARGS=--json)"
	@echo "make docs    the site, into site/: strictly, without a network"
	@echo "make lint    ruff, mypy and the import contracts"
	@echo "make format  have ruff rewrite the files"
	@echo "make proto   generate the protobuf modules again"
	@echo "make clean   remove all that the others made"

demo: $(INSTALLED)
	@$(BIN)/formation demo $(ARGS)

demo-services: $(INSTALLED_GATEWAY)
	@$(BIN)/python -m examples.demo_services $(ARGS)

# Side by side, as .ci/run has them. Two quiet cores take less than this.
TEST_TARGET_S := 480
test: $(COMPILED)
	@began=$$(date +%s); $(MAKE) --no-print-directory --jobs=3 --output-sync \
		test-whole lint test-pure; status=$$?; \
		echo "make test took $$(($$(date +%s) - began)) s, target $(TEST_TARGET_S) s"; exit $$status

# All that the tests need, and none of them.
ready: $(COMPILED)

# On every core: hardly anything in it looks at a clock, so that it may run beside what does, on what
# that leaves of the processor. What takes longest comes first.
NICE ?= nice -n 19
test-pure: $(COMPILED)
	$(NICE) $(BIN)/python -m pytest tests/simulations tests/unit -n auto \
		--cov --cov-fail-under=100 --cov-report=term-missing:skip-covered $(ARGS)

# Six at a time, also on two cores: they wait more than they compute. What takes longest comes first.
test-whole: $(COMPILED)
	$(BIN)/python -m pytest tests/system tests/host -n 6 --dist worksteal $(ARGS)

interop: $(INSTALLED_DEV)
	$(BIN)/python -m tests.interop.fetch
	$(BIN)/python -m pytest tests/interop

lint: $(INSTALLED_DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	nice -n 19 $(BIN)/mypy
	nice -n 19 $(BIN)/lint-imports

format: $(INSTALLED_DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# It tells of the successor of its theme, at length, each time.
docs: $(INSTALLED_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

proto: $(PROTO_VENV)/.installed
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. $(PROTOS)

bench-dht: $(INSTALLED_BENCH)
	@$(BIN)/python -m benchmarks.dht $(ARGS)

bench-dispatch: $(INSTALLED) $(PEERS)/.installed
	@$(BIN)/python -m benchmarks.dispatch $(ARGS)

bench-data: $(INSTALLED_BENCH) $(PEERS)/.installed
	@$(BIN)/python -m benchmarks.data $(ARGS)

bench-clusters: $(INSTALLED_BENCH)
	@$(BIN)/python -m benchmarks.clusters $(ARGS)

bench-services: $(INSTALLED_DEV)
	@$(BIN)/python -m benchmarks.services $(ARGS)

bench-placement: $(INSTALLED_BENCH)
	@$(BIN)/python -m benchmarks.placement $(ARGS)

chaos: $(INSTALLED)
	@$(BIN)/python -m simulations.chaos --seeds 1..1000 $(ARGS)

soak: $(INSTALLED_DEV)
	@$(BIN)/python -m tests.soak $(ARGS)

nat: $(INSTALLED_DEV)
	@$(BIN)/python -m simulations.nat $(ARGS)

clean:
	rm -rf $(VENV) $(PEERS) .interop build dist site *.egg-info .coverage .hypothesis
	rm -rf .mutants .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; name one: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): setup.cfg pyproject.toml | $(BIN)/python
	@$(INSTALL) $(VENV) -e .
	@touch $@

$(INSTALLED_DEV): setup.cfg pyproject.toml $(INSTALLED)
	@$(INSTALL) $(VENV) -e '.[dev]'
	@touch $@

$(INSTALLED_GATEWAY): setup.cfg pyproject.toml $(INSTALLED)
	@$(INSTALL) $(VENV) -e '.[gateway]'
	@touch $@

$(INSTALLED_DOCS): setup.cfg pyproject.toml $(INSTALLED)
	@$(INSTALL) $(VENV) -e '.[docs]'
	@touch $@

# All that tests import, once: in a new environment each of their processes would compile it for
# itself. What is wrong with a test is for those to say.
$(COMPILED): $(INSTALLED_DEV)
	-@$(BIN)/python -m pytest --collect-only -qq >/dev/null 2>&1
	@touch $@

$(INSTALLED_BENCH): setup.cfg pyproject.toml $(INSTALLED)
	@$(INSTALL) $(VENV) -e '.[bench]'
	@touch $@

$(PEERS)/.installed: $(PEERS_TXT) | $(BIN)/python
	$(BIN)/python -m venv $(PEERS)
	@$(INSTALL) $(PEERS) -r $(PEERS_TXT)
	@touch $@

$(PROTO_VENV)/.installed: Makefile | $(BIN)/python
	$(BIN)/python -m venv $(PROTO_VENV)
	@$(INSTALL) $(PROTO_VENV) $(PROTO_TOOLS)
	@touch $@
