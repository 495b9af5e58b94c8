# Everything on a bare machine with python3 (3.11 or newer), pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.ready-to-run
READY := $(VENV)/.ready-to-test
TRAINERS := $(VENV)/.ready-to-test-trainers
SITE := $(VENV)/.ready-to-make-the-site

.PHONY: demo test test-slow lint docs bench clean help

help:
	@echo "make demo       two minutes: AdamW, LoRA and SparseAdamW on a small GPT; SVRG; Algorithm 1; with a report"
	@echo "make test       the quick tests (a few minutes on two cores)"
	@echo "make test-slow  the others: long statistics, several processes, Triton's interpreter, the browser, trainers"
	@echo "make lint       ruff and pyright"
	@echo "make docs       the site, in build/site/index.html; any warning is an error"
	@echo "make bench      a published benchmark: an optimizer step without its gradients, on one thread"
	@echo "make clean      remove .venv and what the tools left behind"
	@echo "Set SPIDERSILK_DATA to the folder of the data sets; tests that need it are skipped without it."

$(RUNS): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab]'
	touch $@

$(READY): $(RUNS)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,dev]'
	touch $@

$(TRAINERS): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,dev,integrations]'
	touch $@

$(SITE): $(RUNS)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[lab,docs]'
	touch $@

demo: $(RUNS)
	$(BIN)/spidersilk demo

test: $(READY)
	$(BIN)/python -m pytest -n auto -m "not slow"

test-slow: $(TRAINERS)
	$(BIN)/python -m pytest -n auto --dist loadgroup -m slow

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(SITE)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "the site is in build/site/index.html"

bench: $(RUNS)
	$(BIN)/python benchmarks/step.py --sizes 62006 308310 11173962

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
