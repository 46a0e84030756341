# Two commands: `make lab` to read and run the course, `make test` to check all of it.
# Everything lands in .venv/ and build/; nothing outside this folder is touched.

# The first Python that runs and is new enough, e.g. python3.12 where python3 is 3.9.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# Installed packages are compiled when first imported, not all of them beforehand.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
RUN := $(VENV)/bin/python
COURSE := $(RUN) -m kernelbook.course
# Which chapters `make run` and `make notebooks` execute: CHAPTERS="00 03". All, if empty.
CHAPTERS ?=
# The folder that `make grade` grades: student/lab/lab.ipynb.
SUBMISSIONS ?= submissions

.DEFAULT_GOAL := help
.PHONY: help lab test run notebooks labs grade records format readme pages doctor clean setup setup-test

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

lab: setup ## set up, then open JupyterLab on chapter 00
	@$(COURSE).doctor
	@$(COURSE).serve

test: setup-test ## set up, then check everything (no GPU needed)
	@$(RUN) kernelbook/course/stages.py

run: setup ## execute every chapter into build/, print the ledger, write HTML pages
	@$(COURSE).run $(CHAPTERS)

notebooks: setup ## execute the chapters again in place (whole on a GPU)
	@$(COURSE).notebooks $(CHAPTERS)

labs: setup-test ## generate labs/ from solutions/
	@$(COURSE).labs

grade: setup-test ## grade a folder of submissions: make grade SUBMISSIONS=folder
	@$(COURSE).grade "$(SUBMISSIONS)"

records: setup ## measure on this GPU: benchmarks into data/records/
	@$(RUN) -m benchmarks

format: setup-test ## format code and notebooks
	@$(RUN) -m ruff check --fix --quiet . && $(RUN) -m ruff format --quiet .
	@$(COURSE).format

readme: setup ## the README's tables and chart, from chapters and records
	@$(COURSE).readme

pages: setup ## HTML pages of the committed notebooks into build/site/
	@$(COURSE).pages

doctor: setup ## what this machine has and lacks
	@$(COURSE).doctor

clean: ## remove .venv/ and build/
	rm -rf $(VENV) build

setup setup-test:
	@py="$(PYTHON)"; command -v "$${py:-none}" >/dev/null || { echo "set-up: this course needs" \
	  "Python 3.11 or newer; install it, or name one: make lab PYTHON=/path/to/python3" >&2; exit 1; }; \
	"$$py" -I kernelbook/course/setup.py $(VENV) $(if $(filter setup-test,$@),test)
