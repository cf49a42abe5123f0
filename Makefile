# `make help` lists the targets. Only Python 3.11 or later and pip are needed.

PYTHON ?= python3
BIN := .venv/bin
TORCH := 2.13.0

# Tests run side by side, a process for each core; "make test JOBS=0" runs them one after the other.
JOBS ?= auto
MEASURED := tests/memory tests/reading/test_memory.py # the memory of processes, with nothing beside them
PAGES_AND_LAWS := tests/test_layers.py tests/test_face.py tests/test_docs.py tests/test_semantics.py \
    tests/test_reference.py tests/test_site.py tests/plugins/test_guides.py
SIDE_BY_SIDE := -n $(JOBS) --maxprocesses 8 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo docs docs-serve changelog release test drills mutate soak check quick fuzz bench bench-peers compat golden compat-versions compat-peers integration clean

help: ## list the targets
	@awk -F ':.*## ' '/^[.a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.venv: .venv/stamp ## the environment that everything else runs in

# What a user installs, which is all that the demonstration needs.
.venv/demo: pyproject.toml setup.py constraints.txt $(wildcard src/shoal/*/*.[ch] src/shoal/*/*/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[report]'
	touch $@

# torch has a line of its own, before the rest: a requirement like "torch>=2" of another package would bring a build of
# several GB. Nothing in the core needs it, so a machine that cannot have it goes on without it.
.venv/stamp: .venv/demo
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==$(TORCH) \
	    || echo "note: no torch $(TORCH) for this Python; tests that need it are skipped"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/demo ## make data, stream it shuffled, stop, resume elsewhere, and show what happened
	$(BIN)/shoal demo

docs: .venv/stamp ## build the documentation site into site/, with every warning an error
	$(BIN)/python docs/make_site.py

docs-serve: .venv/stamp ## build the documentation site and show it at http://127.0.0.1:8000
	$(BIN)/python docs/make_site.py --serve

test: .venv/stamp ## every law and every example in a docstring, in five minutes
	$(BIN)/python -m compileall -q src # many tests start interpreters, which may not be allowed to keep what they compile
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --doctest-modules \
	    $(addprefix --ignore=,$(MEASURED) $(PAGES_AND_LAWS) tests/integration) tests src/shoal
	$(BIN)/python -m pytest $(MEASURED)

drills: .venv/stamp ## processes killed at any moment, timeouts waited for, and laws with many examples
	$(BIN)/python -m compileall -q src
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m drill $(addprefix --ignore=,tests/integration) tests

mutate: .venv/stamp ## break the core in many ways, one at a time: a test must notice each; MUTATIONS="weight gap" for some
	$(BIN)/python -m tests.mutations $(MUTATIONS)

soak: .venv/stamp ## tests that take minutes, and those that only many times would show
	SHOAL_SHORT_PROCESSES=200 $(BIN)/python -m pytest tests/storage/test_processes.py -k end_well --timeout 3000
	$(BIN)/python -m pytest -m soak tests --timeout 3000
	SHOAL_NUM_KILLS=20 $(BIN)/python -m pytest -m integration tests/integration/test_pack_with_spark.py

quick: .venv/stamp ## lint, types, layers, and the tests of what changed since main, in less than a minute
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet tests/test_layers.py
	$(BIN)/python -m tests.quick

check: .venv/stamp ## lint, format, types, layers, and the code in the documentation
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --quiet $(PAGES_AND_LAWS)

fuzz: .venv/stamp ## damaged shards for every parser, and for the compiled module under sanitizers; FUZZ="--each 100000" for more, FUZZ="tar mds" for some
	$(BIN)/python -m tests.formats.fuzz $(FUZZ)
	$(BIN)/python -m tests.formats.sanitized

bench: .venv/stamp ## the measurements of bench/; write what they say into bench/LOG.md
	set -e; for script in bench/*.py; do test ! -e "$$script" || $(BIN)/python "$$script"; done

bench-peers: .venv/stamp ## shoal beside other loaders, in turn: prints goals met or short, and writes docs/benchmarks.md
	$(BIN)/python bench/peers/compare.py

STREAMS = 2000 # configurations for each release of datasets

compat: .venv/stamp ## the golden digests on every Python and numpy at hand, and what other packages wrote and read
	$(MAKE) --no-print-directory -j 2 compat-versions compat-peers

compat-versions: golden
	$(BIN)/python tests/compat/packages.py
	$(BIN)/python tests/compat/installs.py

golden: .venv/stamp ## the golden digests of orders and splits on every Python and numpy at hand
	$(BIN)/python tests/compat/run.py

compat-peers: .venv/stamp
	$(BIN)/python tests/compat/peers/run.py
	$(BIN)/python tests/compat/lance/run.py
	$(BIN)/python -m tests.compat.peers.packed
	$(BIN)/python -m tests.compat.peers.joined
	$(BIN)/python -m tests.compat.lerobot.robots
	$(BIN)/python -m tests.compat.arrays.run
	$(BIN)/python -m tests.compat.orders.mixtures_in_peers
	$(BIN)/python -m tests.compat.orders.torch_samplers
	$(BIN)/python tests/compat/orders/run.py
	$(BIN)/python -m tests.compat.tables.run
	$(BIN)/python tests/compat/sequences/run.py
	$(BIN)/python -m tests.compat.sequences.chats
	$(BIN)/python -m tests.compat.sequences.with_transformers
	$(BIN)/python -m tests.compat.sequences.with_trl
	$(BIN)/python -m tests.compat.sequences.with_axolotl
	$(BIN)/python -m tests.compat.orders.huggingface_streams --num $(STREAMS)

integration: .venv/stamp ## streams from real servers, and examples in real frameworks; CHOSEN="-m 'integration and not drill'" for less
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m integration $(CHOSEN) tests/integration tests/integrations

changelog: .venv/stamp ## move the fragments of changes/ into CHANGELOG.md; DATE=today dates the section
	$(BIN)/python -m tests.release.changelog $(if $(DATE),--date $(DATE))

QUICK = # "make release QUICK=--quick" installs into two environments of each Python, not seven

release: .venv/stamp ## build and check the files of a release in dist/
	$(BIN)/python -m tests.release dist $(QUICK)

clean: ## remove what the other targets made
	rm -rf .venv .compat .integration .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist .site .cache site
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
