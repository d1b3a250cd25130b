# The few verbs. Each sets up .venv if it has to.
#   make book TORCH_INDEX=https://download.pytorch.org/whl/cpu    a laptop without CUDA: saves gigabytes
PYTHON ?= python3
TORCH_INDEX ?=
BIN := .venv/bin
CHAPTERS := $(basename $(notdir $(wildcard notebooks/*.py)))

.PHONY: book test verdicts lab lint clean
.DEFAULT_GOAL := book

.venv/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and \
		'$(PYTHON) is Python %d.%d: this book needs 3.11 or newer, as in make PYTHON=python3.11' % sys.version_info[:2])"
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(BIN)/pip install --quiet --index-url $(TORCH_INDEX) $(shell grep '^torch==' requirements.txt))
	$(BIN)/pip install --quiet -r requirements.txt
	$(BIN)/pip install --quiet --no-deps -e .
	@touch $@

book: .venv/.ready  ## execute what has changed at smoke scale, build strictly, say which page to open
	$(BIN)/capslib execute $(CHAPTERS)
	$(BIN)/jupyter-book build . --nitpick --warningiserror --keep-going --quiet
	@$(BIN)/python -c "import pathlib; print('Open', pathlib.Path('_build/html/index.html').resolve().as_uri())"

test: book  ## all tests, the executed notebooks and the built book included
	$(BIN)/python -m pytest -n 2 --dist loadgroup

verdicts: .venv/.ready  ## after new records: the tables of verdicts in the tests and in the README
	$(BIN)/python -m tests.papers.test_verdicts

lab: .venv/.ready  ## JupyterLab on the notebooks, below jupytext.toml; a .py opens as a notebook by "Open With → Notebook"
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/notebooks \
		--FileContentsManager.pre_save_hook=capslib.lab.notebooks.keep_kernelspec

lint: .venv/.ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

clean:
	rm -rf _build book/*.ipynb book/papers/*.ipynb
