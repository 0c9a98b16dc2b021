# Both `make demo` and `make test` create .venv when it is missing; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: test lint demo bench clean

test: $(VENV)/dev lint
	$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(VENV)/dev
	$(BIN)/python -m experiments.demo

bench: $(VENV)/benchmarks
	$(BIN)/python -m experiments.benchmarks.overhead

# uv installs several times faster than pip; the stamp files are renewed when the dependencies change.
$(VENV)/dev $(VENV)/benchmarks: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$(if $(filter benchmarks,$(@F)),benchmarks,dev)]'
	touch $@

clean:
	rm -rf $(VENV) outputs .mypy_cache .ruff_cache .pytest_cache
