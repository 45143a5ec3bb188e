# `make demo` and `make test` need nothing but python3 and make: they create .venv and install the lock.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test test-avx2 lint docs speed bench grid-demo methods results wheel lock clean

demo: $(READY)
	$(BIN)/mlcil demo

# Two processes of one thread each: two of several threads would stall one another.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

# The tests that compare bits, computed as on a CPU without AVX-512: there equal numbers in another layout may differ.
test-avx2: $(READY)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/models tests/methods tests/training tests/experiments tests/test_testing.py

lint: $(READY)
	$(BIN)/ruff check src tests speed examples docs/generate.py docs/images docs/measurements
	$(BIN)/ruff format --check src tests speed examples docs/generate.py docs/images docs/measurements
	$(BIN)/mypy

# Renew the tables of docs/ that come from the code; a test says when they are out of date.
docs: $(READY)
	$(BIN)/python docs/generate.py

# What costs what, as ratios within each run: tables here, and JSON in runs/speed. Half an hour on two idle cores.
speed: $(READY)
	$(BIN)/python speed/step.py
	$(BIN)/python speed/parts.py
	$(BIN)/python speed/session.py
	$(BIN)/python speed/inputs.py
	$(BIN)/python speed/scores.py
	$(BIN)/python speed/sessions.py
	$(BIN)/python speed/runtimes.py
	$(BIN)/python speed/features.py
	$(BIN)/python speed/shards.py
	$(BIN)/python speed/memory.py
	$(BIN)/python speed/scaling.py

bench: speed

# Seven methods by three seeds on handwritten digits, and their page. Interrupt it and call it again: it goes on.
grid-demo: $(READY)
	$(BIN)/mlcil grid grids/digits.yaml --seeds 0,1,2 --jobs 2 --out runs/grid-demo

# Every method through all sessions of the digits: twenty-one runs, for a night.
methods: $(READY)
	$(BIN)/mlcil grid grids/digits-methods.yaml --jobs 2 --out runs/digits-methods

# The tables of docs/results.md and a page, on an MS-COCO folder: make results DATA=coco2014-subset WEIGHTS=FILE. Hours on
# two cores; interrupt it and call it again: it goes on. OUT is where the runs go, MORE is passed on to every grid.
OUT ?= runs/results
SEEDED := ft,lwf,krt,joint,probes,analytic,podnet-20,krt-r-20
GRID = $(BIN)/mlcil grid $(1) --data coco:$(DATA) --weights $(WEIGHTS) --set threads=1 --jobs 2 --no-report $(MORE)
results: $(READY)
	$(call GRID,grids/coco-methods.yaml) --out $(OUT)/b0
	$(call GRID,grids/coco-methods.yaml) --set protocol=B40-C10 --out $(OUT)/b40
	$(call GRID,grids/coco-adaptive.yaml) --seeds 0,1,2 --out $(OUT)/adaptive
	$(call GRID,grids/coco-methods.yaml) --only $(SEEDED) --seeds 0,1,2 --out $(OUT)/b0
	$(call GRID,grids/coco-methods.yaml) --only $(SEEDED) --seeds 0,1,2 --set protocol=B40-C10 --out $(OUT)/b40
	$(BIN)/python docs/measurements/paper_order.py $(OUT)/b0 coco-b0-c10
	$(BIN)/python docs/measurements/paper_order.py $(OUT)/b40 coco-b40-c10
	$(BIN)/mlcil report $(OUT) --out $(OUT)/report

# Build a wheel and try it in a clean environment, away from the repository.
wheel: $(READY)
	.ci/wheel

# uv installs the lock as it is; plain pip may pick another build of torch. Compiled once, torch starts in a third of
# the time where Python may not write its bytecode.
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $(READY)

# Renew the exact versions from pyproject.toml.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.lock

clean:
	rm -rf .venv build dist src/*.egg-info
