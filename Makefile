# The two commands that a newcomer needs: `make demo` and `make test`. Every target installs what it needs into .venv.
# The embedded Triton runs models in CPython 3.11 or 3.12 (docs/how-to/embedded-triton.md); PYTHON=... overrides the choice.
# Compiled modules are kept even where the machine says not to: the tests start hundreds of Pythons.
export PYTHONDONTWRITEBYTECODE =
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3,$(shell command -v $(name) >/dev/null 2>&1 && $(name) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' >/dev/null 2>&1 && echo $(name))))
MEMBERS = core[sim] proxy[embedded,nvml,tracing] plugins/baselines plugins/symphony[planner] plugins/ppipe[planner] plugins/orloj plugins/paris_elsa[planner] plugins/inss[planner] repo_generator triton_models loadtest[locust]
BIN = .venv/bin
SOURCES = core/src proxy/src plugins/baselines/src plugins/symphony/src plugins/ppipe/src plugins/orloj/src plugins/paris_elsa/src plugins/inss/src plugins/template repo_generator/src triton_models/src loadtest/src

.PHONY: help demo test test-all explore test-frontends test-shards test-training test-machines test-pythons lint dist site release bench fuzz soak loadtest install clean
help:  ## This list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/'

demo: .venv/installed  ## The main job: real models through Tidegate, then why deferred batching pays (under 3 minutes)
	$(BIN)/python -m demo

# Much of the time goes into waiting for servers, so there are more processes than cores. How they share the tests out: tests/sharing.py
WORKERS ?= 4
HASH_SEED = 0
COMMA = ,
TESTS_OF_PYTHONS = tests/core/api tests/core/engine tests/plugins tests/proxy/configuration tests/proxy/messages tests/proxy/transport
# The same every time: the order of sets, too. `make explore` draws.
PYTEST = PYTHONHASHSEED=$(HASH_SEED) $(BIN)/pytest --numprocesses $(WORKERS) --dist loadgroup --no-loadscope-reorder

test: .venv/installed  ## All that can break, the real tritonserver included (four and a half minutes on two quiet cores; WORKERS=...)
	$(PYTEST) -m "not slow"

test-all: .venv/installed  ## What takes long, too: more models, more examples
	$(PYTEST) --hypothesis-profile thorough

explore: HASH_SEED = random
explore: .venv/installed  ## Try a thousand new examples of every property (failures say how to see them again)
	$(PYTEST) --hypothesis-profile explore -m hypothesis

test-frontends: .venv/installed  ## The same tests with clients connected to frontends (`frontends: 2`)
	$(PYTEST) -m "not slow" --transport frontends

test-shards: .venv/installed  ## The same tests with two shards behind two frontends
	$(PYTEST) -m "not slow" --transport shards

test-training: .venv-training/installed  ## The tests of `tidegate train-inss`, which skip elsewhere: with torch, in .venv-training (2 minutes)
	OMP_NUM_THREADS=1 .venv-training/bin/pytest tests/plugins/inss/training tests/plugins/inss/learned

test-machines: .venv-machines/installed  ## The tests on real clusters of Ray, which skip elsewhere, in .venv-machines (5 minutes)
	.venv-machines/bin/pytest tests/core/sim/test_clusters.py tests/machines

# Without the embedded Triton, which has no wheel for them, and with numpy 2. Looked for as pythonX.Y, then among pyenv's.
PYTHONS ?= 3.13 3.14
test-pythons: .venv/installed  ## The tests that need no Triton, on later CPythons: PYTHONS="3.13 3.14", each as far as it is installed
	@grep -v '^numpy==' constraints.txt > .venv/constraints-numpy2.txt
	@set -e; for version in $(PYTHONS); do \
		python=$$(command -v python$$version || true); \
		"$${python:-false}" -c '' 2>/dev/null || python=$$(ls -d "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/$$version.*/bin/python$$version 2>/dev/null | tail -n 1); \
		if [ -z "$$python" ]; then echo "make: no CPython $$version here: skipped"; continue; fi; \
		echo "$$python: $(TESTS_OF_PYTHONS)"; \
		$(BIN)/uv venv --quiet --clear --python "$$python" .venv-pythons; \
		$(BIN)/uv pip install --quiet --python .venv-pythons/bin/python -c .venv/constraints-numpy2.txt cloudpickle cryptography hypothesis jsonschema pytest pytest-timeout pytest-xdist requests trustme $(foreach member,$(subst [early-exit],,$(subst embedded$(COMMA),,$(MEMBERS))),-e ./$(member)); \
		PYTHONHASHSEED=$(HASH_SEED) .venv-pythons/bin/pytest -n 2 -m "not slow" $(TESTS_OF_PYTHONS); \
	done

lint: .venv/installed  ## ruff, strict mypy, import contracts, subjects of commits, banned words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(SOURCES) checks demo bench docsite release tests
	PYTHONPATH=plugins/template/src $(BIN)/lint-imports
	$(BIN)/python -m checks.commits
	$(BIN)/python -m checks.vocabulary

site: .venv/installed  ## The documents as pages with a search, into build/site, to be read without a network (broken links fail)
	$(BIN)/python -m docsite
	@echo "build/site/index.html"

release: site dist  ## All files of a release into dist/: archives, chart, pages, notes, SBOM, checksums; nothing is published

dist: .venv/installed  ## Wheels and source distributions into dist/, checked and tried in a clean environment; chart, notes, SBOM
	$(BIN)/python -m release

# Half an hour and more, or in need of the papers' data, so not among them: python -m bench.papers.synthetic_workloads, bench.no_regret, bench.faults,
# bench.papers.ppipe_planner, bench.papers.ppipe_simulated, bench.papers.orloj, bench.papers.paris_elsa, bench.dynamic_models
bench: .venv/installed  ## Benchmarks: Tidegate beside Triton in one run (run nothing else meanwhile)
	$(BIN)/python -m bench

fuzz: .venv/installed  ## 100,000 malformed inputs against the proxy (some minutes)
	$(BIN)/python -m bench.fuzz

MINUTES ?= 30
soak: .venv/installed  ## Half an hour of everything at once: does the proxy keep memory? (MINUTES=...)
	$(BIN)/python -m bench.soak --minutes $(MINUTES)

loadtest: .venv/installed  ## A scenario live: SCENARIO=file [TARGET=HOST:PORT] [ARGS=...]
	@test -n "$(SCENARIO)" || { echo "make loadtest SCENARIO=scenarios/resnet50.yaml [TARGET=HOST:PORT] [ARGS=...]"; exit 1; }
	$(BIN)/tidegate loadtest $(SCENARIO) $(if $(TARGET),--target $(TARGET)) $(ARGS)

install: .venv/installed  ## Only set up .venv

clean:  ## Remove .venv and every cache
	rm -rf .venv .venv-training .venv-machines .venv-pythons dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/installed: VERSION constraints.txt overrides.txt requirements-dev.txt $(wildcard */pyproject.toml plugins/*/pyproject.toml)
	@test -n "$(PYTHON)" || { echo "make: found no CPython 3.11 or 3.12 (python3.11, python3.12 or python3): install one, or name it with PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv || { rm -rf .venv; echo "make: $(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --override overrides.txt -r requirements-dev.txt $(foreach member,$(MEMBERS),-e ./$(member))
	@touch $@

.venv-training/installed: .venv/installed plugins/inss/pyproject.toml
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-training
	$(BIN)/uv pip install --quiet --python .venv-training/bin/python -c constraints.txt hypothesis pytest pytest-timeout pytest-xdist -e ./core[sim] -e ./proxy -e ./plugins/inss[planner,train]
	@touch $@

.venv-machines/installed: .venv/installed core/pyproject.toml
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-machines
	$(BIN)/uv pip install --quiet --python .venv-machines/bin/python -c constraints.txt hypothesis onnxruntime pytest pytest-timeout pytest-xdist -e ./core[sim,ray] -e ./proxy[embedded] -e ./plugins/baselines
	@touch $@
