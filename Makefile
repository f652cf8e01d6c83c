# Needs python3 (3.11 or newer), pip and make. Every target is incremental: a second run without changes starts at once.
# Which torch pip finds (CPU or CUDA build) is pip's configuration; the version is that of constraints.txt.

PYTHON ?= python3
CHECKOUT := $(CURDIR)
# Traces of others, which tests read where they are; without them those tests skip.
export DDPPROF_SHARED ?= $(abspath $(CHECKOUT)/../shared)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

DEMO := .venv
TEST := .venv-test
DOCS := .venv-docs
BIN := $(CHECKOUT)/$(TEST)/bin
EXTRAS := torch,tensorboard,html,plot,tables,metrics,otlp,stacks,cluster,test,frameworks,dev
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

.PHONY: demo docs test test-slow test-long test-gpu test-versions lint coverage fuzz soak doctor-faults bench pictures studies clean

demo: $(DEMO)/installed ## make an environment, install, trace a small training, print the report
	$(DEMO)/bin/ddpprof demo
	@echo 'To type ddpprof in this shell: . $(DEMO)/bin/activate'

docs: $(DOCS)/built ## build the documentation into site/, strictly and without a network
	@echo 'Look at it: open site/index.html'

test: lint docs $(TEST)/wheel ## lint, docs, then the tests that take seconds, against the built wheel
	$(RUN_TESTS) -m "not slow" -n auto $(CHECKOUT)/tests/unit $(CHECKOUT)/tests/test_analyses.py $(PYTEST) $(OR_NONE_CHOSEN)
	$(RUN_TESTS) -m "not slow" $(TWO_AT_ONCE) $(CHECKOUT)/tests/e2e $(PYTEST) $(OR_NONE_CHOSEN)

test-slow: docs $(TEST)/wheel ## the tests that take minutes
	$(RUN_TESTS) -m "slow and not long" $(TWO_AT_ONCE) $(CHECKOUT)/tests $(PYTEST)
	$(RUN_TESTS) -m "not slow" --as-on-accelerator $(TWO_AT_ONCE) $(RECORDING_IN_TRAINING) $(PYTEST) $(OR_NONE_CHOSEN)

test-long: $(TEST)/wheel ## further cases of what the slow tests try, which take an hour: before a release, and every night
	$(RUN_TESTS) -m long $(TWO_AT_ONCE) $(CHECKOUT)/tests $(PYTEST)

test-gpu: $(TEST)/wheel ## the recording tests and `ddpprof doctor`, where torch sees a GPU
	@if ( $(OUTSIDE) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ); then \
	  ( $(RUN_TESTS) $(RECORDING) $(PYTEST) ) && ( $(OUTSIDE) -m ddpprof doctor ); \
	else echo 'Skipped: torch.cuda.is_available() is false here.'; fi

# What is promised: the oldest torch that pyproject.toml allows, and two between it and that of constraints.txt.
TORCHES ?= 2.6.0 2.8.0 2.10.0

test-versions: $(TORCHES:%=.venv-torch-%/tested) ## the recording tests with older versions of torch, each in an environment of its own

lint: $(TEST)/linted

fuzz: $(TEST)/wheel ## damage what ddpprof reads at random, and read it: MINUTES=10
	$(OUTSIDE) $(CHECKOUT)/tests/support/fuzz.py $(or $(MINUTES),10)

coverage: $(TEST)/wheel ## which lines the quick tests run, children included: COVERAGE=slow adds the slow ones
	$(RUN_TESTS) $(if $(filter slow,$(COVERAGE)),,-m "not slow") $(TWO_AT_ONCE) --cov --cov-config=$(CHECKOUT)/pyproject.toml \
	  --cov-report=term-missing --cov-report=html:$(CHECKOUT)/coverage $(CHECKOUT)/tests $(PYTEST)

soak: $(TEST)/wheel ## kill commands at random moments, 200 times each; test-slow does so 4 times
	export DDPPROF_SOAK_KILLS=200; $(RUN_TESTS) -s $(CHECKOUT)/tests/e2e/test_soak.py $(PYTEST)

doctor-faults: $(TEST)/wheel ## plant every fault that `ddpprof doctor` must find; test-slow plants one of eleven
	export DDPPROF_ALL_FAULTS=1; $(RUN_TESTS) $(CHECKOUT)/tests/e2e/test_doctor.py $(PYTEST)

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
	rm -rf coverage site $(DEMO) $(TEST) $(DOCS) .venv-torch-* build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

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

.venv-torch-%/tools: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-torch-$*
	.venv-torch-$*/bin/pip install --quiet torch==$*
	grep -v '^\(torch\|sympy\)==' constraints.txt >.venv-torch-$*/constraints.txt # sympy is of torch's choice
	.venv-torch-$*/bin/pip install --quiet -c .venv-torch-$*/constraints.txt . pytest hypothesis jsonschema
	@mkdir -p .venv-torch-$*/outside
	@touch $@

.venv-torch-%/tested: .venv-torch-%/tools $(TEST)/wheel $(shell find tests -name "*.py")
	.venv-torch-$*/bin/pip install --quiet --no-deps --force-reinstall dist/*.whl
	cd .venv-torch-$*/outside && ../bin/python -P -m pytest -c $(CHECKOUT)/pyproject.toml --rootdir $(CHECKOUT) \
	  -m "not slow" $(RECORDING) $(PYTEST)
	@touch $@

$(TEST)/wheel: $(TEST)/tools $(SOURCES) LICENSE
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
