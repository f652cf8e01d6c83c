# Needs python3 (3.11 or newer), pip and make. Every target is incremental: a second run without changes starts at once.
# Which torch pip finds (CPU or CUDA build) is pip's configuration; the version is that of constraints.txt.

PYTHON ?= python3
CHECKOUT := $(CURDIR)
# Traces of others, which tests read where they are; without them those tests skip.
export DDPPROF_SHARED ?= $(abspath $(CHECKOUT)/../shared)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

DEMO := .venv
TEST := .venv-test
BIN := $(CHECKOUT)/$(TEST)/bin
EXTRAS := torch,tensorboard,html,plot,cluster,test,frameworks,dev
SOURCES := $(shell find ddpprof -type f -not -name '*.pyc')
STUDY ?= $(patsubst analyses/%/analyse.py,%,$(wildcard analyses/*/analyse.py))
# -P and a working directory outside the checkout: `import ddpprof` finds the installed wheel or nothing.
OUTSIDE := cd $(TEST)/outside && $(BIN)/python -P
RUN_TESTS := $(OUTSIDE) -m pytest -c $(CHECKOUT)/pyproject.toml --rootdir $(CHECKOUT)
# With -k, one half of the tests may have none of that name.
OR_NONE_CHOSEN := $(if $(PYTEST),|| test $$? = 5)

.PHONY: demo test test-slow test-gpu lint fuzz bench studies clean

demo: $(DEMO)/installed ## make an environment, install, trace a small training, print the report
	$(DEMO)/bin/ddpprof demo

test: lint $(TEST)/wheel ## lint, then the tests that take seconds, against the built wheel
	$(RUN_TESTS) -m "not slow" -n auto $(CHECKOUT)/tests/unit $(CHECKOUT)/tests/test_analyses.py $(PYTEST) $(OR_NONE_CHOSEN)
	$(RUN_TESTS) -m "not slow" $(CHECKOUT)/tests/e2e $(PYTEST) $(OR_NONE_CHOSEN)

test-slow: $(TEST)/wheel ## the tests that take minutes
	$(RUN_TESTS) -m slow $(CHECKOUT)/tests $(PYTEST)
	$(RUN_TESTS) -m "not slow" --as-on-accelerator -k "exit_code or exception or signal" \
	  $(CHECKOUT)/tests/e2e/test_pass_through.py $(OR_NONE_CHOSEN)

# What records: the tests of the recorder, and the doctor on one GPU or all of them.
RECORDING := $(addprefix $(CHECKOUT)/tests/,unit/record e2e/test_pass_through.py e2e/test_steps.py e2e/test_numerics.py \
  e2e/test_harmless.py e2e/test_context_manager.py)

test-gpu: $(TEST)/wheel ## the recording tests and `ddpprof doctor`, where torch sees a GPU
	@if ( $(OUTSIDE) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ); then \
	  ( $(RUN_TESTS) $(RECORDING) $(PYTEST) ) && ( $(OUTSIDE) -m ddpprof doctor ); \
	else echo 'Skipped: torch.cuda.is_available() is false here.'; fi

lint: $(TEST)/linted

fuzz: $(TEST)/wheel ## damage what ddpprof reads at random, and read it: MINUTES=10
	$(OUTSIDE) $(CHECKOUT)/tests/fuzz.py $(or $(MINUTES),10)

bench: $(TEST)/wheel ## what recording and starting cost
	$(OUTSIDE) $(CHECKOUT)/analyses/recording_cost/collect.py --rounds 40 --out $(CHECKOUT)/bench-results $(BENCH)
	$(OUTSIDE) $(CHECKOUT)/analyses/recording_cost/analyse.py $(CHECKOUT)/bench-results

studies: $(TEST)/wheel ## numbers and pictures of analyses/ from its recordings. COLLECT=1: record anew; STUDY=NAME: one
	@set -e; for study in $(STUDY); do \
	  $(if $(COLLECT),( $(OUTSIDE) $(CHECKOUT)/analyses/$$study/collect.py );) \
	  ( $(OUTSIDE) $(CHECKOUT)/analyses/$$study/analyse.py ); \
	done

clean:
	rm -rf $(DEMO) $(TEST) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

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

$(TEST)/wheel: $(TEST)/tools $(SOURCES) LICENSE
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation --outdir dist . >$(TEST)/build.log || { cat $(TEST)/build.log; false; }
	$(BIN)/pip install --quiet --no-deps --force-reinstall dist/*.whl
	@$(OUTSIDE) -c 'import ddpprof; assert "site-packages" in ddpprof.__file__, ddpprof.__file__'
	@touch $@

$(TEST)/linted: $(TEST)/tools $(SOURCES) $(shell find tests analyses -name '*.py' 2>/dev/null)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@touch $@
