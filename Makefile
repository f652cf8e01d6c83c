# Needs python3 (3.11 or newer), pip and make. Every target is incremental: a second run without changes starts at once.
# Which torch pip finds (CPU or CUDA build) is pip's configuration; the version is that of constraints.txt.

PYTHON ?= python3
CHECKOUT := $(CURDIR)
# Traces of others, which tests read where they are; without them those tests skip.
export DDPPROF_SHARED ?= $(abspath $(CHECKOUT)/../shared)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# pytest keeps the tests that it has rewritten, which takes a fifth of the time of the unit tests.
unexport PYTHONDONTWRITEBYTECODE

DEMO := .venv
TEST := .venv-test
DOCS := .venv-docs
BIN := $(CHECKOUT)/$(TEST)/bin
EXTRAS := torch,tensorboard,html,tables,metrics,otlp,stacks,cluster,test,frameworks,studies,dev
SOURCES := $(shell find ddpprof -type f -not -name '*.pyc')
STUDY ?= $(patsubst analyses/%/analyse.py,%,$(wildcard analyses/*/analyse.py))
# -P and a working directory outside the checkout: `import ddpprof` finds the installed wheel or nothing.
OUTSIDE := cd $(TEST)/outside && $(BIN)/python -P
RUN_TESTS := $(OUTSIDE) -m pytest -c $(CHECKOUT)/pyproject.toml --rootdir $(CHECKOUT)
# With -k, one half of the tests may have none of that name.
OR_NONE_CHOSEN := $(if $(PYTEST),|| test $$? = 5)

# Half of what trainings take is waiting: for processes to start, and for each other. Tests that share a fixture of
# their module stay together.
TWO_AT_ONCE := -n 2 --dist loadgroup

# The tests of the recorder.
RECORDING_IN_TRAINING := $(addprefix $(CHECKOUT)/tests/e2e/,test_pass_through.py test_steps.py test_numerics.py \
  test_harmless.py test_context_manager.py)
RECORDING := $(CHECKOUT)/tests/unit/record $(RECORDING_IN_TRAINING)

.PHONY: demo docs test test-slow test-long test-gpu test-python test-versions lint coverage fuzz soak bench pictures studies clean

demo: $(DEMO)/installed ## make an environment, install, trace a small training, print the report
	$(DEMO)/bin/ddpprof demo
	@echo 'To type ddpprof in this shell: . $(DEMO)/bin/activate'

docs: $(DOCS)/built ## build the documentation into site/, strictly and without a network
	@echo 'Look at it: open site/index.html'

test: lint docs $(TEST)/wheel ## lint, docs, unit tests, and the quick end-to-end tests, against the built wheel
	$(RUN_TESTS) -m "not long" -n auto $(CHECKOUT)/tests/unit $(CHECKOUT)/tests/test_analyses.py $(PYTEST) $(OR_NONE_CHOSEN)
	$(RUN_TESTS) -m "not long and not slow" $(TWO_AT_ONCE) $(CHECKOUT)/tests/e2e $(PYTEST) $(OR_NONE_CHOSEN)
	$(RUN_TESTS) -m "not long" --as-on-accelerator $(TWO_AT_ONCE) $(CHECKOUT)/tests/e2e/test_steps.py $(PYTEST) $(OR_NONE_CHOSEN)

test-slow: $(TEST)/wheel ## the end-to-end tests of modules that take long, which CI runs, too
	$(RUN_TESTS) -m "slow and not long" $(TWO_AT_ONCE) $(CHECKOUT)/tests/e2e $(PYTEST) $(OR_NONE_CHOSEN)

test-long: docs $(TEST)/wheel ## all other tests, which take an hour: before a release, and every night
	$(RUN_TESTS) -m long $(TWO_AT_ONCE) $(CHECKOUT)/tests $(PYTEST)
	$(RUN_TESTS) -m "not long" --as-on-accelerator $(TWO_AT_ONCE) $(RECORDING_IN_TRAINING) $(PYTEST) $(OR_NONE_CHOSEN)
	$(RUN_TESTS) --on-cpu $(CHECKOUT)/tests/gpu/test_counts.py $(CHECKOUT)/tests/gpu/test_endings.py $(PYTEST) $(OR_NONE_CHOSEN)

test-gpu: $(TEST)/wheel ## the recording tests, `ddpprof doctor`, and what only a GPU can tell, where torch sees one
	@if ( $(OUTSIDE) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ); then \
	  ( $(RUN_TESTS) $(CHECKOUT)/tests/gpu $(RECORDING) $(PYTEST) ) && ( $(OUTSIDE) -m ddpprof doctor ); \
	else echo 'Skipped: torch.cuda.is_available() is false here.'; fi

# What is promised beside the versions of constraints.txt: the oldest torch that pyproject.toml allows, one between, newer
# ones, and newer Pythons. On 3.12 every thread of the recorder must exist before the interpreter exits.
VERSIONS ?= 3.11-torch-2.6.0 3.11-torch-2.10.0 3.11-torch-2.14.1 3.12-torch-2.13.0 3.13-torch-2.13.0 3.14-torch-2.13.0

test-versions: $(VERSIONS:%=.venv-python-%/tested) ## the recording tests with other versions of Python and torch, each in an environment of its own

test-python: .venv-python-3.12-torch-2.13.0/tested ## the recording tests with Python 3.12, as in CI

lint: $(TEST)/linted

fuzz: $(TEST)/wheel ## damage what ddpprof reads at random, and read it: MINUTES=10
	$(OUTSIDE) $(CHECKOUT)/tests/support/fuzz.py $(or $(MINUTES),10)

coverage: $(TEST)/wheel ## which lines `make test` runs, children included: COVERAGE=long adds the long ones
	$(RUN_TESTS) $(if $(filter long,$(COVERAGE)),,-m "not long") $(TWO_AT_ONCE) --cov --cov-config=$(CHECKOUT)/pyproject.toml \
	  --cov-report=term-missing --cov-report=html:$(CHECKOUT)/coverage $(CHECKOUT)/tests $(PYTEST)

soak: $(TEST)/wheel ## kill commands at random moments, 200 times each; test-long does so 4 times
	export DDPPROF_SOAK_KILLS=200; $(RUN_TESTS) -s $(CHECKOUT)/tests/e2e/test_soak.py $(PYTEST)

pictures: $(TEST)/wheel ## the pictures of README and docs, of the sample runs; needs chromium
	$(OUTSIDE) $(CHECKOUT)/sample_traces/take_pictures.py

bench: $(TEST)/wheel ## what recording and starting cost
	$(OUTSIDE) $(CHECKOUT)/analyses/recording_cost/collect.py --rounds 40 --out $(CHECKOUT)/bench-results $(BENCH)
	$(OUTSIDE) $(CHECKOUT)/analyses/recording_cost/analyse.py $(CHECKOUT)/bench-results

studies: $(TEST)/wheel ## numbers and pictures of analyses/ from its recordings. COLLECT=1: record anew; STUDY=NAME: one
	@set -e; for study in $(STUDY); do \
	  $(if $(COLLECT),( $(OUTSIDE) $(CHECKOUT)/analyses/$$study/collect.py );) \
	  ( $(OUTSIDE) $(CHECKOUT)/analyses/$$study/analyse.py ); \
	done

clean:
	rm -rf coverage site $(DEMO) $(TEST) $(DOCS) .venv-python-* build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# An environment of its own, without torch, that takes seconds. It runs the checkout itself, like the demo's.
$(DOCS)/tools: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ddpprof needs Python 3.11 or newer; say which: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

$(DOCS)/built: $(DOCS)/tools mkdocs.yml $(SOURCES) $(wildcard *.md) $(shell find docs analyses sample_traces/pictures -type f -not -name '*.pyc')
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet --strict
	@touch $@

# The demo runs the checkout itself, so that a change shows at once.
$(DEMO)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ddpprof needs Python 3.11 or newer; say which: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/pip install --quiet -c constraints.txt -e '.[torch,html]'
	@touch $@

$(TEST)/tools: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ddpprof needs Python 3.11 or newer; say which: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(TEST)
	$(BIN)/pip install --quiet -c constraints.txt '.[$(EXTRAS)]'
	$(BIN)/pip uninstall --quiet --yes ddpprof
	@mkdir -p $(TEST)/outside
	@touch $@

.PRECIOUS: .venv-python-%/tools

# $* is VERSION-torch-VERSION. The interpreter is the one on PATH, or pyenv's; without it the recipe says so and goes on.
.venv-python-%/tools: pyproject.toml constraints.txt
	@for python in python$(word 1,$(subst -torch-, ,$*)) $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$(word 1,$(subst -torch-, ,$*)).*/bin/python; do \
	  if $$python -m venv .venv-python-$* 2>/dev/null; then break; fi; \
	done
	@mkdir -p .venv-python-$*/outside
	@if [ -x .venv-python-$*/bin/pip ]; then \
	  grep -v '^\(torch\|sympy\|triton\)==' constraints.txt >.venv-python-$*/constraints.txt; \
	  .venv-python-$*/bin/pip install --quiet torch==$(word 2,$(subst -torch-, ,$*)) && \
	  .venv-python-$*/bin/pip install --quiet -c .venv-python-$*/constraints.txt . pytest pytest-xdist hypothesis jsonschema; \
	fi
	@touch $@

.venv-python-%/tested: .venv-python-%/tools $(TEST)/wheel $(shell find tests -name "*.py")
	@if [ ! -x .venv-python-$*/bin/pip ]; then echo 'Skipped: there is no Python $(word 1,$(subst -torch-, ,$*)) here.'; else \
	  .venv-python-$*/bin/pip install --quiet --no-deps --force-reinstall dist/*.whl && cd .venv-python-$*/outside && \
	  ../bin/python -P -m pytest -c $(CHECKOUT)/pyproject.toml --rootdir $(CHECKOUT) -m "not long" $(TWO_AT_ONCE) $(RECORDING) $(PYTEST); \
	fi
	@touch $@

$(TEST)/wheel: $(TEST)/tools $(SOURCES) LICENSE skills/ddpprof/SKILL.md docs/reference/findings.md
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >$(TEST)/build.log || { cat $(TEST)/build.log; false; }
	$(BIN)/pip install --quiet --no-deps --force-reinstall dist/*.whl
	@$(OUTSIDE) -c 'import ddpprof; assert "site-packages" in ddpprof.__file__, ddpprof.__file__'
	@touch $@

$(TEST)/linted: $(TEST)/tools $(SOURCES) $(shell find tests analyses docs -name '*.py' 2>/dev/null)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@touch $@
