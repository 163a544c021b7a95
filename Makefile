# Everything lives in .venv at the repository's root; `make demo` and `make test` do all the set-up.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Bytecode is made of what is imported, when it is: of all that is installed, it would take a minute.
PIP    := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
# This version has a CPU build; a looser request would pull gigabytes of CUDA libraries onto machines
# without a GPU.
TORCH  := torch==2.13.0
# All other packages by version and checksum (requirements/lock.py writes the files).
LOCKED := $(PIP) --no-deps --require-hashes
# Then the package itself, with what the lock files lack: CUDA's libraries for a build of torch that
# needs them, or what a later Python needs. Where nothing is missing, nothing is installed.
OWN    := $(PIP) --no-build-isolation
# It is kept whatever the environment says: many tests start processes, and each would compile all it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test unit attack chromium lint style bench docs release clean
help: ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(VENV)/.base: pyproject.toml requirements/base.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "floatscope needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps $(TORCH)
	$(LOCKED) -r requirements/base.lock
	$(OWN) -e '.[gguf]'
	@touch $@

$(VENV)/.test: $(VENV)/.base requirements/test.lock
	$(LOCKED) -r requirements/test.lock
	$(OWN) -e '.[gguf,lm-eval,ray,docs,test]'
	@touch $@

demo: $(VENV)/.base ## every study on the embedded pair: demo/report.html, demo/summary.json
	$(BIN)/floatscope demo --out demo

# Types and documentation take a core for the better part of a minute: they are checked beside the tests.
# (With --quiet, mkdocs builds a page with a dead link and ends with 0.)
test: $(VENV)/.test chromium style ## lint, types, tests, documentation
	@{ $(BIN)/mypy && { NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir $(VENV)/site >$(VENV)/docs.log 2>&1 \
	  || { cat $(VENV)/docs.log; exit 1; }; }; } & beside=$$!; \
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=30; \
	tests=$$?; wait $$beside && exit $$tests

unit: $(VENV)/.test ## the fast tests alone: at most 90 s on two idle cores
	$(BIN)/python -m pytest -m unit -n 2 --dist loadfile

# SECURITY.md says what each of them shows. Full disks need root, and are left out without.
attack: $(VENV)/.test ## every attack in full, each with a table of what it came to (Linux; half an hour)
	$(BIN)/python -m tests.attacks.hostile_records --count 2000
	$(BIN)/python -m tests.attacks.hostile_checkpoints --count 300
	$(BIN)/python -m tests.attacks.hostile_directories --count 300
	$(BIN)/python -m tests.attacks.hostile_requests --count 1000
	$(BIN)/python -m tests.attacks.hostile_live --count 1000
	$(BIN)/python -m tests.attacks.working_directory
	$(BIN)/python -m tests.attacks.faults --engine local --kills 20 --stops 10 --full 5 --flips 10
	$(BIN)/python -m tests.attacks.faults --engine ray --kills 20 --stops 10 --full 5 --flips 10

# The browser that the page's tests drive: from the distribution, if it is not there and we may.
chromium:
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 \
	  || { echo "installing chromium for the browser tests …"; \
	       { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	       || { command -v sudo >/dev/null && sudo -n apt-get update -qq && sudo -n apt-get install -y -qq --no-install-recommends chromium >/dev/null; } \
	       || { echo "The browser tests need Chromium, and it could not be installed from here."; \
	            echo "Install it (Debian: apt-get install chromium) and run make test again."; exit 1; }; }

lint: style ## ruff and mypy alone
	$(BIN)/mypy

style: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/.base ## traced against plain against materialised attention
	$(BIN)/python bench/overhead.py --json bench/overhead.json
	$(BIN)/python bench/measures.py
	$(BIN)/python -m training.measure --only time

# It asks for a clean tree, a version and a changelog that agree, and no tag of that name.
release: $(VENV)/.base ## check the tree, build the wheel into dist/, tag it; upload nothing
	$(BIN)/python .ci/release.py

docs: $(VENV)/.test ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache
