# The two commands a newcomer types: `make demo` and `make test`. Each installs what it needs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install demo test test-emulated test-scale test-gpu check package docs docs-serve bench clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: install
	$(BIN)/onlinecde demo

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not scale and not emulated"

# The GPU's kernels on a CPU: Triton's in its interpreter, CUDA's in an emulator (needs g++).
test-emulated: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m emulated

# Spark and Ray: clusters of several processes, started and killed. Skipped where Java is missing.
test-scale: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m scale

# On a machine with a CUDA device; PYTHON may be any that has torch, triton, pytest and hypothesis.
# PARTS=8 shares the tests out among eight processes. (Exit status 5: a part without tests.)
PARTS ?= 1
test-gpu:
	seq $(PARTS) | xargs -P $(PARTS) -I{} sh -c 'PYTHONPATH="src:$$PYTHONPATH" $(PYTHON) -m pytest -m gpu \
		-p no:cacheprovider --part {}/$(PARTS) tests/kernels tests/solvers/test_gpu_choice.py \
		tests/models/test_gpu_models.py tests/models/test_gpu_recurrent.py tests/series/test_series_batches.py \
		tests/streaming/test_gpu_engine.py || [ $$? = 5 ]'

# The sdist and the wheel, built, installed into empty environments and used there.
package: install
	$(BIN)/python .ci/package.py

# The site in docs/_build/html; a warning is an error, and links between pages are checked.
docs: install
	$(BIN)/python -m sphinx -q -W --keep-going -b html -d docs/_build/cache docs docs/_build/html

docs-serve: docs
	@echo "http://127.0.0.1:8001/"
	$(BIN)/python -m http.server 8001 --bind 127.0.0.1 --directory docs/_build/html

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

bench: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[bench]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps pypots==1.5
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) out build dist docs/_build .pytest_cache .ruff_cache .hypothesis
