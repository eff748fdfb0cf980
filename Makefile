# `make` alone lists the targets. Each makes .venv first where it is missing or older than the locks.

SHELL := /bin/sh
.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BIN := .venv/bin
SETUP := tests/support/setup
LOCK := $(BIN)/uv --quiet pip compile --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-emit-find-links --no-header --no-annotate
# Every file that a shell would run: those whose first line says so.
SCRIPTS = $$(git ls-files --cached --others --exclude-standard | xargs grep -lszP '\A\#!\s?\S*/(env )?(ba|da)?sh\b')

# The environment changes for the locks; the project's own entry points only for pyproject.toml, and that is quick.
.venv/locked: locks/dev.txt $(SETUP)/make-venv
	@PYTHON='$(PYTHON)' $(SETUP)/make-venv .venv locks/dev.txt
	@touch $@

.venv/installed: .venv/locked pyproject.toml
	@$(BIN)/uv --quiet --offline pip install --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q toolkit_installer  # the hosts of make e2e see it read-only, and start it often
	@touch $@

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "make %-13s %s\n", $$1, $$2 }'

.PHONY: demo
demo: .venv/installed ## the whole job on a made-up node: install, do nothing the second time, take everything back
	@$(BIN)/python tests/demo/demo.py

.PHONY: check
check: .venv/installed ## the linters: ruff, mypy, import-linter, shellcheck, no registry named, the manifests and the chart
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@command -v shellcheck >/dev/null || { echo 'make check: shellcheck is missing: install your package of that name' >&2; exit 1; }
	shellcheck $(SCRIPTS)
	$(SETUP)/no-registry-hosts
	$(BIN)/python -m tests.support.manifests
	$(BIN)/python -m tests.support.chart

# call PYTEST,N,HOW: with N workers more than there are processors, as those of a short run wait now and then; HOW they
# share the tests: worksteal, or loadgroup where what costs much is made once for a group.
# Each reads the tests as another has compiled them, whatever the environment says of that, and keeps its files in memory:
# where no disk has to be waited for, and none has to remove them afterwards.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --dist $(2) \
	--tx "$$(($$(nproc) + $(1)))*popen//python=$(CURDIR)/$(SETUP)/worker --in-memory $(CURDIR)/$(BIN)/python"

# At first no worker finds the tests compiled, nor what they import, and each would do it. Two share it here, and what
# cannot be collected is told by the run itself.
.cache/tests-compiled: .venv/installed
	@mkdir -p .cache
	@for tests in tests/unit tests/meta tests/node; do \
		env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest --collect-only -q $$tests >/dev/null 2>&1 & \
	done; wait
	@touch $@

.PHONY: test
test: .cache/tests-compiled ## the tests that need no engine and no root, in two to five minutes; of each sweep a part
	@$(call PYTEST,2,worksteal) --quick $(ARGS)

.PHONY: test-changed
test-changed: .venv/installed ## the tests nearest to what was changed since SINCE, which is HEAD: in seconds
	@tests=$$($(BIN)/python -m tests.support.changed $(or $(SINCE),HEAD)); \
	[ -n "$$tests" ] || { echo 'make test-changed: no module was changed since $(or $(SINCE),HEAD)'; exit 0; }; \
	$(call PYTEST,2,worksteal) $$tests $(ARGS)

.cache/mutants-venv/locked: locks/mutants.txt $(SETUP)/make-venv
	@mkdir -p .cache
	@PYTHON='$(PYTHON)' $(SETUP)/make-venv .cache/mutants-venv locks/mutants.txt
	@touch $@

.PHONY: mutants
mutants: .venv/installed .cache/mutants-venv/locked ## COUNT mutants of the program, 100, chosen by SEED: whether make test notices
	@$(BIN)/python -m tests.mutants.run $(or $(SEED),1) $(or $(COUNT),100)

.cache/audit-venv/locked: locks/audit.txt $(SETUP)/make-venv
	@mkdir -p .cache
	@PYTHON='$(PYTHON)' $(SETUP)/make-venv .cache/audit-venv locks/audit.txt
	@touch $@

.PHONY: audit
audit: .venv/installed .cache/audit-venv/locked ## known vulnerabilities of the packages in the image, as far as OSV can be reached
	@$(BIN)/python -m tests.support.audit .cache/audit-venv/bin/pip-audit

.PHONY: test-all
test-all: .cache/tests-compiled ## the same tests whole: each sweep at every instant, error and edit
	@$(call PYTEST,1,loadgroup) $(ARGS)

.PHONY: test-versions
test-versions: .venv/installed ## the unit tests on Python 3.11 to 3.14, as far as they can be had, and with the lowest versions allowed
	@$(SETUP)/test-versions $(ARGS)

.PHONY: e2e
e2e: .venv/installed ## the tests against real engines, or PARTS of them: root, Go, and the packages that .ci/run names
	@$(SETUP)/run-e2e $(CURDIR)/$(BIN)/python '$(or $(PARTS),beside alone cluster)' $(ARGS)

.PHONY: e2e-cluster
e2e-cluster: .venv/installed ## of these, those on a real Kubernetes with a node of each engine
	@$(SETUP)/run-e2e $(CURDIR)/$(BIN)/python cluster $(ARGS)

.PHONY: e2e-gpu
e2e-gpu: .venv/installed ## nvidia-smi in a container, on a machine with a GPU and its driver: root; Go and gcc the first time
	@$(BIN)/pytest tests/gpu --capture=no $(ARGS)

.PHONY: compatibility
compatibility: .cache/tests-compiled ## docs/compatibility.md anew by the matrix of make e2e, and the tests that nothing else runs
	@$(BIN)/pytest tests/e2e/test_matrix.py --compatibility docs/compatibility.md $(ARGS)
	@$(call PYTEST,1,loadgroup) --rare
	@$(SETUP)/run-e2e $(CURDIR)/$(BIN)/python 'rare rare-alone' $(ARGS)

.PHONY: demo-picture
demo-picture: .venv/installed ## docs/demo.svg anew: what make demo shows, for the README
	@$(BIN)/python -m tests.demo.picture

.PHONY: man
man: .venv/installed ## docs/toolkit-installer.8 anew: the manual page, from the table of options
	@$(BIN)/python -m tests.support.man_page

.PHONY: layers
layers: .venv/installed ## docs/layers.svg anew: the layers of the package, from the import contract
	@$(BIN)/python -m tests.support.layers

.PHONY: stubs
stubs: .venv/installed ## the classes of the messages of CRI and NRI anew, from our own protos
	@$(BIN)/python -m tests.support.stubs

.PHONY: bench
bench: .venv/installed ## the measurements, beside NVIDIA's own installer; writes docs/performance.md. ARGS=--short counts alone
	@$(BIN)/python -m tests.bench $(ARGS)

.PHONY: image
image: ## the container image; images/build says what can be given to it
	@images/build

.PHONY: chart
chart: .venv/installed ## the Helm chart, linted, as an archive in dist/: helm install takes it, and helm push
	@mkdir -p dist
	@$(BIN)/python -m tests.support.chart package dist

.PHONY: wheels
wheels: .venv/installed ## what the image is built of, in .cache/wheels: make image WHEELS=.cache/wheels downloads nothing
	@PYTHON=$(BIN)/python images/wheels

.PHONY: version
version: .venv/installed ## VERSION wherever the version stands: the program, the manifests, the documents
	@$(BIN)/python -m tests.support.release set $(VERSION)

.PHONY: release-check
release-check: .venv/installed ## whether this commit can be published: one version everywhere, tagged, dated, the wheel whole
	@$(BIN)/python -m tests.support.release check

.PHONY: release
release: .venv/installed ## what is published, in dist/release: the image for both machines, what is stated of it, the manifests
	@mkdir -p dist
	@$(BIN)/python -m images.release dist/release

.PHONY: lock
lock: .venv/locked ## the locks anew, with the newest versions that pyproject.toml allows
	@grep -q '^ *"uv\b' pyproject.toml || { echo 'make lock: uv is not in the dev group, and every target needs it' >&2; exit 1; }
	@$(LOCK) --upgrade pyproject.toml --output-file locks/runtime.txt
	@$(LOCK) --upgrade --group image --output-file locks/build.txt
	@$(LOCK) --upgrade pyproject.toml --group dev --output-file locks/dev.txt
	@$(LOCK) --upgrade --group mutants --output-file locks/mutants.txt
	@$(LOCK) --upgrade --group audit --output-file locks/audit.txt
	@$(LOCK) --resolution lowest-direct pyproject.toml --output-file locks/lowest.txt
	@rm -f .venv/locked

.PHONY: clean
clean: ## everything made here, .venv too
	rm -rf .venv .cache build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -path ./.git -prune -o -name __pycache__ -type d -print | xargs rm -rf
