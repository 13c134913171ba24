# make demo      the OFC 2022 experiment, end to end, on this machine, with a dashboard to look at
# make lab-demo  servers with an sshd each: deploy to them, train, regroup, take it all away
# make first-hour  the README's commands for a lab of your own, one after the other, timed
# make slurm-demo  jobs of a real Slurm on static circuits, then on circuits that they claim
# make test      every check that needs no virtual machine and no other engine
# make test-vm   what needs another kernel than this one (netem, VLANs, RDMA), in a virtual machine
# make vm-servers  labs whose servers are virtual machines
# make os-ken    the OpenFlow tests and a lab where Ryu is not installed
# make core      the core's tests in a copy without the wings
# make histories SEEDS=1-100  a lab's days on a simulated clock, with faults, each from one seed
# make history SEED=7  replays one of them; its log goes to build/history.txt
# make mutants  plants faults in the source, one at a time: histories must find each
# make coverage  the tests that need no root, and which lines they ran
# make pictures  takes the pictures of the dashboard in docs/images
# make bench     the benchmarks; writes benchmarks.json
# make house     size and structure of the source, beside their limits
# make audit     known vulnerabilities of the packages in deploy/lock.txt, where a database can be reached
# make release   the wheel, man pages, and an SBOM of what it runs on (CycloneDX), in dist
# make lint      format, lint, types and a strict build of the documentation
# make docs      the documentation, in build/site
# make clean     removes what the others made here

BIN := .venv/bin
# Network namespaces need root; everything else runs as who called make.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=CI,DOCKER_HOST)
# As root, leave no root-owned bytecode in a user's checkout.
ROOT_RUN := $(SUDO) env PYTHONDONTWRITEBYTECODE=1
DEMO_ARGS ?=
BENCH_ARGS ?=
LAB_DEMO_ARGS ?=
SLURM_DEMO_ARGS ?=
# The variable silences a notice about a successor of mkdocs.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

.PHONY: demo lab-demo slurm-demo first-hour test parts suite test-vm vm-servers core os-ken bytecode coverage pictures bench house \
    no-worse audit release lint style types pages server-bases docs clean histories history mutants

demo:
	@bash deploy/bootstrap.sh
	@$(ROOT_RUN) deploy/with-docker-engine.sh $(BIN)/patchlight experiment ofc2022 --dashboard $(DEMO_ARGS)

lab-demo:
	@bash deploy/bootstrap.sh
	@$(ROOT_RUN) deploy/lab-demo.sh $(LAB_DEMO_ARGS)

slurm-demo:
	@bash deploy/bootstrap.sh --slurm
	@$(ROOT_RUN) $(BIN)/python examples/slurm/slurm_demo.py $(SLURM_DEMO_ARGS)

first-hour:
	@bash deploy/bootstrap.sh
	@$(ROOT_RUN) tests/first-hour.sh

# Threads that wait for each other in a loop take the cores from what runs beside them.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# The parts of `make test`, one after the other; with commas, at the same time.
PARTS := style,types,pages,bytecode,server-bases no-worse suite
# What CI runs before them. Virtual machines mostly keep one core each: with +, parts at the same time.
MORE_PARTS := core os-ken test-vm+vm-servers

test:
	@bash deploy/bootstrap.sh --test
	@$(BIN)/python tests/run_parts.py $(PARTS)

parts:
	@echo $(MORE_PARTS) $(PARTS)

# Five processes: whole labs, agents, servers, what else needs root, and the rest, which all of them
# share in the end. The first four wait most of the time. test-vm runs what is marked kernel,
# vm-servers what is marked vm.
suite:
	$(ROOT_RUN) $(ONE_THREAD) deploy/with-docker-engine.sh $(BIN)/python -m pytest -p no:cacheprovider \
	    $(or $(PYTEST_ARGS),--numprocesses=5 -m "not kernel and not vm")

test-vm:
	@bash deploy/bootstrap.sh --test
	@$(ROOT_RUN) tests/in-vm.sh $(PYTEST_ARGS)

vm-servers:
	@bash deploy/bootstrap.sh --test
	$(ROOT_RUN) $(ONE_THREAD) $(BIN)/python -m pytest -p no:cacheprovider \
	    $(or $(PYTEST_ARGS),-m vm tests/emulation/servers)

core:
	@bash deploy/bootstrap.sh --test
	@$(ONE_THREAD) tests/core.sh $(PYTEST_ARGS)

OS_KEN_ARGS := --numprocesses=4 tests/controller/packet_switches/openflow \
    tests/emulation/lab/test_operations.py::test_light_and_jobs_from_python_and_what_lab_show_says
os-ken:
	@bash deploy/bootstrap.sh --test
	$(ROOT_RUN) $(ONE_THREAD) PYTHONPATH="$$PWD/tests/support/without_ryu" $(BIN)/python -m pytest \
	    -p no:cacheprovider $(or $(PYTEST_ARGS),$(OS_KEN_ARGS))

SEEDS ?= 1-20
histories:
	@bash deploy/bootstrap.sh --test
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS)

history:
	@bash deploy/bootstrap.sh --test
	@$(BIN)/python -m tests.simulation --seed $(SEED) --shrink

mutants:
	@bash deploy/bootstrap.sh --test
	@$(BIN)/python -m tests.simulation.mutants

# What the tests import, and the loops that Numba makes machine code of, compiled once and as who
# called make: hundreds of processes that do not write bytecode then read it.
bytecode:
	@$(BIN)/python -m compileall -q agents controller deploy emulation patchlight testbed
	-@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -p no:cacheprovider --collect-only \
	    --quiet >/dev/null
	-@$(BIN)/python -m tests.support.compiled_loops

# Tests that need root, Open vSwitch or Docker run most of it in processes of their own.
coverage:
	@bash deploy/bootstrap.sh --test
	$(BIN)/python -m pytest -p no:cacheprovider -m "not root and not ovs and not docker" \
	    --cov --cov-report=term $(PYTEST_ARGS)

pictures:
	@bash deploy/bootstrap.sh --test
	$(ROOT_RUN) PATCHLIGHT_PICTURES=docs/images $(BIN)/python -m pytest -p no:cacheprovider -m browser

lint:
	@bash deploy/bootstrap.sh --test
	@$(MAKE) --no-print-directory --jobs=2 style types pages

style:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types:
	$(BIN)/mypy

pages:
	$(MKDOCS)

# What rehearsal servers share; their tests try again where it cannot be made.
server-bases:
	@for kind in "" --docker --vm; do $(ROOT_RUN) deploy/server-base.sh $$kind >/dev/null || \
	    echo "make test: the tests of rehearsal servers try again" >&2; done

house:
	$(BIN)/python -m benchmarks.house

# What is over its limit today must not grow.
no-worse:
	@$(ROOT_RUN) $(BIN)/python -m benchmarks.house --no-worse

docs:
	@bash deploy/bootstrap.sh --docs
	$(MKDOCS)
	@echo "open build/site/index.html, or for the search: $(BIN)/python -m http.server -d build/site"

bench:
	@bash deploy/bootstrap.sh --bench
	$(ROOT_RUN) $(BIN)/python -m benchmarks --output benchmarks.json $(BENCH_ARGS)

audit:
	@bash deploy/bootstrap.sh --release
	@deploy/audit.sh

# The SBOM lists what deploy/lock.txt has for those who run Patchlight: nothing of the tests.
release: VERSION := $(shell sed -n 's/^version = //p' setup.cfg)
release:
	@bash deploy/bootstrap.sh --release
	@mkdir -p build dist
	@rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@printf '[project]\nname = "patchlight"\nversion = "$(VERSION)"\n' >build/pyproject.toml
	@sed '1,/^# --- dashboard$$/d; /^# --- ryu$$/,$$d' deploy/lock.txt >build/runs-on.txt
	$(BIN)/cyclonedx-py requirements --pyproject build/pyproject.toml --output-reproducible \
	    --output-file dist/patchlight-$(VERSION).cdx.json build/runs-on.txt
	$(BIN)/python docs/man_pages.py dist/man

clean:
	$(SUDO) rm -rf build dist results benchmarks.json .coverage *.egg-info \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis .venv
	find . -name __pycache__ -type d -prune -exec $(SUDO) rm -rf {} +
