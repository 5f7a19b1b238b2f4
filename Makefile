# Needs Python 3.11 or newer; everything else goes into .venv. `make help` lists the targets.
# ARGS is handed on: make serve ARGS="--port 9000", make test ARGS="-k wire -x".

SHELL := /bin/sh
BIN := .venv/bin
STAMP := .venv/.installed
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: FORCE help setup serve test lint check format bench lock clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile

setup: $(STAMP) ## Install Pomona and its tools into .venv
	@echo "pomona: .venv is ready; next: make serve, or make test"

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh
	@touch $(STAMP)

# An environment whose Python is gone, after an upgrade of it, is made anew.
ifneq ($(shell $(BIN)/python -c 'print("usable")' 2>/dev/null),usable)
$(STAMP): FORCE
endif
FORCE:

serve: $(STAMP) ## Set up and serve at http://127.0.0.1:8420
	@$(BIN)/pomona serve $(ARGS)

# Two processes, each with whole files, so that what a file sets up is set up once.
test: $(STAMP) ## Set up and run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMP) ## Style, types and import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test ## All that a change must pass: lint and test

format: $(STAMP) ## Put the code into its canonical form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## Compare Pomona with mlx_lm.server on this machine
	@$(BIN)/pomona bench compare $(ARGS)

lock: $(STAMP) ## Renew constraints.txt from the newest releases
	@sh scripts/lock.sh

clean: ## Remove caches and build output; .venv, models and stored KV stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage htmlcov
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
