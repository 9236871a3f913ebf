# Everything rests on `make setup`: a virtual environment with the project and its tools in it.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help setup demo test test-fast test-times test-soak test-engines test-long fuzz simulate chaos overload check format docs image sbom pythons wheel lock mutation evaluation clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make the virtual environment and install the project

# requirements/*.txt says what is installed, every file by its hash.  pip installs uv, which installs the rest in a tenth of the
# time.  What has to be built (nkeys has no wheel) is built with the setuptools that is locked too.  uv compiles only when asked,
# and where PYTHONDONTWRITEBYTECODE is set (container images often do that) each start of `dorm` would compile 500 modules again.
UV := UV_SYSTEM_CERTS=1 $(BIN)/uv
INSTALL := $(UV) pip install --quiet --compile-bytecode --python $(BIN)/python
LOCKED := --build-constraints requirements/dev.txt --require-hashes --requirement

$(STAMP): pyproject.toml lab/pyproject.toml requirements/uv.txt requirements/dev.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements/uv.txt
	$(INSTALL) $(LOCKED) requirements/dev.txt
	$(INSTALL) --no-deps --no-build-isolation --editable . --editable ./lab
	@touch $@

demo: setup ## three agents, contending training apps, a replay of what happened
	@$(BIN)/dorm demo

# Half of the tests wait for servers and containers most of their time, so there are two processes for each core.
WORKERS ?= $(shell expr 2 \* $$(nproc))

# Each of these processes would compile all modules and tests after a checkout, because all begin at once, and container images
# often forbid keeping what was compiled.  So one process does it before them.
unexport PYTHONDONTWRITEBYTECODE

.venv/.compiled: $(STAMP)
	@$(BIN)/python -m pytest -qq --collect-only >/dev/null || true
	@touch $@

test: .venv/.compiled ## all tests but the soak: real NATS, real processes, real Docker
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not soak"

test-times: .venv/.compiled ## `make test`, and the CPU time of the 100 most expensive tests, of all files and of all folders
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not soak" --cpu-times 100

test-soak: .venv/.compiled ## the rest: searches for what breaks each protection, comparisons of answers, faults on three machines
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m soak
	DORM_TESTS=soak $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "search and not soak"

test-fast: .venv/.compiled ## the part without servers, Docker and processes: under two minutes
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not nats and not docker and not cluster and not slow and not soak"

# PyTorch is large, and which build an index offers differs between machines, so it is neither locked nor part of `make setup`.
# pip installs it, because pip's configuration is where a machine says which index has the build for it; uv does not read that.
test-engines: setup ## the engines' sample apps on a real cluster: installs PyTorch, Lightning and transformers; Open MPI comes from the system
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[torch,lightning,transformers]'
	$(BIN)/python -m pytest -q -n 2 tests/agents/engines tests/e2e/engines tests/elastic tests/samples/test_trained.py

test-long: .venv/.compiled ## all of both, with many times the seeds and examples
	DORM_TESTS=long $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --timeout 1800

check: setup ## lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## format and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

N ?= 1000000
JOBS ?= 2
SEED ?= 0

fuzz: setup ## malformed input for all that reads any: N=inputs JOBS=processes SEED=number
	$(BIN)/python -m tests.fuzz --inputs $(N) --jobs $(JOBS) --seed $(SEED)

SEEDS ?= 500
FROM ?= 0

simulate: setup ## masters, agents and clients under attack in virtual time: SEEDS=number FROM=first JOBS=processes
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --from $(FROM) --jobs $(JOBS)

.venv/.docs-installed: $(STAMP) requirements/docs.txt
	$(INSTALL) $(LOCKED) requirements/docs.txt
	@touch $@

docs: .venv/.docs-installed ## the documentation as a site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

image: setup ## the container image in build/image, and with a Docker engine at hand: BASE=image TAG=name; PYTHON as BASE has it
	.ci/image "$(PYTHON)" $(if $(BASE),"$(BASE)" "$(or $(TAG),dorm)")

sbom: setup ## what a release is made of: dist/dorm-VERSION.cdx.json (CycloneDX) and dist/NOTICES.txt, with all licences
	.ci/sbom $(PYTHON)

pythons: setup ## the wheel and the fast tests with each supported Python that is found here
	.ci/pythons

wheel: setup ## build the wheel and the sdist in dist/, and try the wheel in an environment of its own
	.ci/wheel $(PYTHON)

LOCK := UV_CUSTOM_COMPILE_COMMAND='make lock' $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links $(if $(UPGRADE),--upgrade)

lock: setup ## write requirements/*.txt after a change in pyproject.toml; UPGRADE=1 takes the newest versions
	$(LOCK) requirements/uv.in --output-file requirements/uv.txt
	$(LOCK) --extra dev pyproject.toml --output-file requirements/dev.txt
	$(LOCK) --constraints requirements/dev.txt pyproject.toml --output-file requirements/runtime.txt
	$(LOCK) --extra release --constraints requirements/dev.txt pyproject.toml --output-file requirements/release.txt
	$(LOCK) --extra docs --constraints requirements/dev.txt pyproject.toml --output-file requirements/docs.txt
	$(LOCK) --extra samples --constraints requirements/dev.txt pyproject.toml --output-file requirements/samples.txt
	$(LOCK) --extra mutation --constraints requirements/dev.txt pyproject.toml --output-file requirements/mutation.txt

mutation: setup ## change a sample of the code in small ways and count what the tests notice: takes a quarter of an hour
	$(INSTALL) $(LOCKED) requirements/mutation.txt
	rm -rf mutants
	nice $(BIN)/mutmut run --max-children 1
	@$(BIN)/python -m tests.mutation

FOR ?= 120

chaos: setup ## real faults on three machines, as root: FOR=seconds SEED=number
	@$(BIN)/python -m tests.lab.chaos --for $(FOR) --seed $(SEED)

overload: setup ## a thousand agents on one log, and floods
	@$(BIN)/python -m tests.lab.overload

TO ?= build/evaluation

evaluation: setup ## Dorm against the others, simulated: a report in TO=FOLDER, with real traces from TRACES=DIR
	@$(BIN)/dorm bench evaluation --to "$(TO)" $(if $(TRACES),--traces "$(TRACES)")

clean: ## remove the virtual environment and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist mutants *.egg-info
