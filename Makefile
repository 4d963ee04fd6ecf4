# Needs Python >= 3.10, Node.js >= 20 and make; everything else goes into .venv and node_modules.
PYTHON ?= python3
# Parallel test processes, and what else pytest is to be told: make test PYTEST="tests/unit -k spec"
WORKERS ?= logical
PYTEST ?=
# pytest's status where it has selected no test: the pages are tested one after the other, and apart from the rest
NONE := 5
BENCHMARKS ?= load_ext launch lines idle eventfiles view_lines view_page view_open

BIN := .venv/bin
STAMP := .venv/.kfnb-installed
SOURCES := pyproject.toml hatch_build.py install.json package.json package-lock.json tsconfig.json \
           $(shell find labextension/src labextension/style labextension/schema labextension/build.mjs -type f)

.PHONY: demo test lint bench clean

# A notebook cell trained by 2 nodes x 2 processes on this machine, and what the notebook shows of it
demo: $(STAMP)
	@mkdir -p out
	$(BIN)/papermill -k python3 notebooks/quickstart.ipynb out/quickstart.ipynb
	@$(BIN)/jupyter nbconvert --log-level ERROR --to markdown --stdout --no-input \
	    --TemplateExporter.exclude_markdown True --NbConvertBase.display_data_priority text/plain \
	    out/quickstart.ipynb | cat -s
	@echo "The notebook as it ran is out/quickstart.ipynb. To open it in JupyterLab:"
	@echo "    $(BIN)/jupyter lab out/quickstart.ipynb"

test: $(STAMP) node_modules/.package-lock.json
	npm run --silent test
	$(BIN)/python -m pytest -n $(WORKERS) -m "not browser" $(PYTEST) || [ $$? -eq $(NONE) ]
	$(BIN)/python -m pytest -m browser $(PYTEST) || [ $$? -eq $(NONE) ]

lint: $(STAMP) node_modules/.package-lock.json
	$(BIN)/ruff check .
	$(BIN)/mypy
	npm run --silent lint:check

bench: $(STAMP)
	@for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python -m benchmarks.$$name || exit 1; done

clean:
	rm -rf .venv node_modules kfnb/labextension labextension/lib out build dist \
	    .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find kfnb kfnb_worker tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# In place: the Python sources are used as they are, the extension is built where it is stale (hatch_build.py).
$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -e '.[local,dev]'
	@touch $@

node_modules/.package-lock.json: package-lock.json
	npm ci
	@touch $@
