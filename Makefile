# Each goal makes its own environment first; a second run finds it ready.
#   make lab     JupyterLab on the quickstart          make test    all tests, browser ones where Chromium is found
#   make demo    the quickstart as one HTML page       make fast    tests without devices, with fewer random examples
#   make check   linter, formatter, types
#   make docs    guide, course and reference as a site in build/docs/html, which opens without a network
#   make records compiles anew what adopted steps, and their tests, answer from where no compiler is
#   make speed   short benches, whose ratios go to build/speed.json
#   make gpu     one report on the GPUs or TPUs of this machine, in build/gpu; without any, a rehearsal
# PYTHON=… picks the interpreter, VENV=… the environment (an active conda one: VENV=$CONDA_PREFIX).
PYTHON ?=
VENV ?= .venv
PYTEST_ARGS ?=
BIN := $(VENV)/bin
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Another environment that happens to be active in the shell is none of ours.
unexport VIRTUAL_ENV

.PHONY: lab demo docs test fast check records speed gpu clean environment

lab: environment
	$(BIN)/jupyter lab $(AS_ROOT) notebooks/01_quickstart.ipynb

demo: environment
	@$(BIN)/python -m pathways_nb demo

# From nothing each time, so that the guide's cells are executed by the code as it is now; the notebooks are, in any case.
docs: environment
	@rm -rf build/docs
	$(BIN)/python -m sphinx -W --keep-going docs build/docs/html -d build/docs/doctrees
	@echo "the site: $(CURDIR)/build/docs/html/index.html"

# Two processes, a file in each at a time, in order: no file without a browser follows one with, whose loop stays.
IN_TWO := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

DURATIONS ?= build/durations.json
test: environment
	$(IN_TWO) --durations-to $(DURATIONS) $(PYTEST_ARGS)

fast: environment
	$(IN_TWO) tests/core --hypothesis-profile=fast $(PYTEST_ARGS)

check: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

records: environment
	$(BIN)/python -m tests.support.step_records
	$(BIN)/python -m tests.support.package_steps.records
	$(BIN)/python -m tests.support.package_steps.records

speed: environment
	@mkdir -p build
	$(BIN)/python -m pathways_nb bench dispatch overlap simulate fsdp schedules --short --json > build/speed.part
	@mv build/speed.part build/speed.json

gpu: environment
	$(BIN)/python -m pathways_nb.bench._accelerator_report --out build/gpu

environment:
	@.ci/environment make "$(VENV)" "$(PYTHON)"

clean:
	rm -rf build dist docs/course .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +
