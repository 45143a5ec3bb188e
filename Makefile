# `make demo` and `make test` need nothing but python3 and make: they create .venv and install the lock.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

TRIALS := trust-fuzzing trust-crashes trust-long_life trust-damage trust-leaks trust-repeats

.PHONY: demo test test-avx2 lint docs speed bench trust trust-full $(TRIALS) grid-demo methods results wheel lock clean

demo: $(READY)
	$(BIN)/mlcil demo

# Processes of one thread each, as several threads would stall one another; three on two cores, as many tests wait.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

# The tests that compare bits, computed as on a CPU without AVX-512: there equal numbers in another layout may differ.
test-avx2: $(READY)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder tests/models tests/methods tests/training tests/experiments tests/test_testing.py

lint: $(READY)
	$(BIN)/ruff check src tests speed trust examples docs/generate.py docs/licences.py docs/images docs/measurements
	$(BIN)/ruff format --check src tests speed trust examples docs/generate.py docs/licences.py docs/images docs/measurements
	$(BIN)/mypy
	$(BIN)/mypy --strict trust

# Renew the tables of docs/ that come from the code, and the list of licences; a test says when they are out of date.
docs: $(READY)
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/licences.py

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

# What happens to people in practice: kills, damage, hostile input, leaks, a long life. Tables here, JSON in runs/trust.
# Three minutes on two idle cores; `make trust-full` tries about ten times as much.
trust: $(READY)
	$(MAKE) --jobs=2 $(TRIALS)

trust-full: $(READY)
	$(MAKE) --jobs=2 SIZE=--full $(TRIALS)

$(TRIALS): trust-%: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python trust/$*.py $(SIZE)

# Seven methods by three seeds on handwritten digits, and their page. Interrupt it and call it again: it goes on.
grid-demo: $(READY)
	$(BIN)/mlcil grid grids/digits.yaml --seeds 0,1,2 --jobs 2 --out runs/grid-demo

# Every method through all sessions of the digits: twenty-one runs, for a night.
methods: $(READY)
	$(BIN)/mlcil grid grids/digits-methods.yaml --jobs 2 --out runs/digits-methods

# The tables of docs/results.md and a page, on an MS-COCO folder: make results DATA=coco2014-subset WEIGHTS=FILE VIT=FILE.
# WEIGHTS are EfficientNet-Lite0's, VIT those of DeiT-Ti for L2P, which is left out without them. Hours on two cores;
# interrupt it and call it again: it goes on. OUT is where the runs go, MORE is passed on to every grid.
OUT ?= runs/results
SEEDED := ft,lwf,krt,joint,probes,analytic,podnet-20,krt-r-20
GRID = $(BIN)/mlcil grid $(1) --data coco:$(DATA) --weights $(or $(2),$(WEIGHTS)) --set threads=1 --jobs 2 --no-report $(MORE)
ROWS = $(BIN)/python docs/measurements/coco_rows.py --into $(OUT)/rows.csv
results: $(READY)
	$(call GRID,grids/coco-methods.yaml) --out $(OUT)/b0
	$(call GRID,grids/coco-methods.yaml) --set protocol=B40-C10 --out $(OUT)/b40
	$(call GRID,grids/coco-adaptive.yaml) --seeds 0,1,2 --out $(OUT)/adaptive
	$(call GRID,grids/coco-methods.yaml) --only $(SEEDED) --seeds 0,1,2 --out $(OUT)/b0
	$(call GRID,grids/coco-methods.yaml) --only $(SEEDED) --seeds 0,1,2 --set protocol=B40-C10 --out $(OUT)/b40
	$(ROWS) $(OUT)/b0 $(notdir $(DATA)) B0-C10
	$(ROWS) $(OUT)/b40 $(notdir $(DATA)) B40-C10
ifdef VIT
	$(call GRID,grids/coco-prompts.yaml,$(VIT)) --out $(OUT)/prompts
	$(ROWS) $(OUT)/prompts $(notdir $(DATA))-vit B40-C10 --joint $(OUT)/prompts/joint-vit
endif
	$(BIN)/mlcil report $(OUT) --out $(OUT)/report

# Build a wheel and try it in a clean environment, away from the repository.
wheel: $(READY)
	.ci/wheel

# Every file that is installed has a hash in the lock: those of uv are picked out of it, for pip, and uv checks the rest.
# The package itself is built by the setuptools of the lock. Compiled once, torch starts in a third of the time where
# Python may not write its bytecode.
$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	sed -n '/^uv==/,/[^\\]$$/p' requirements.lock > .venv/uv.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $(READY)

# Renew the lock from pyproject.toml: exact versions, which stay unless they have to change, and the hashes of their files.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.lock

clean:
	rm -rf .venv build dist src/*.egg-info
