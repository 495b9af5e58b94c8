# Everything on a bare machine with python3 (3.11 or newer), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.ready-to-run
READY := $(VENV)/.ready-to-test

.PHONY: demo test lint bench clean help

help:
	@echo "make demo   five optimizers on embedded data at equal queries: a table and a report (two minutes)"
	@echo "make test   run the test suite"
	@echo "make lint   ruff and pyright"
	@echo "make bench  the published benchmarks; set SPIDERSILK_DATA to the folder that holds w8a/w8a.gz"

$(RUNS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab]'
	touch $@

$(READY): $(RUNS)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,dev]'
	touch $@

demo: $(RUNS)
	$(BIN)/spidersilk demo

test: $(READY)
	$(BIN)/python -m pytest -n auto

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(RUNS)
	$(BIN)/python benchmarks/loader.py
	$(BIN)/python benchmarks/logistic.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
