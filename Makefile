# The commands of README.md. Everything that they make lies in .venv/ and .forgewatch/.
PYTHON ?= python3
BIN := .venv/bin
# On two processors three processes: that of tests/system, which has all of it, waits half of its time. Each has a
# file at a time and one thread: on a test's small tensors two take twice the processor's time.
# They keep what they compile: else each process, and each that a test starts, compiles every module anew.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/pytest -n 3 --dist loadscope \
	--no-loadscope-reorder

.PHONY: demo up down check fast test tests chaos lint chart-check chart-e2e simulations gpu-check images lock readme dashboards screenshots default-release clean

demo: .venv/installed ## the whole loop, from training to hot swap, with a table of counts at the end
	$(BIN)/forgewatch demo

up: .venv/installed ## the same stack, left running
	$(BIN)/forgewatch up

down: .venv/installed ## stop it; PURGE=1 deletes what it holds, too, once it has asked
	$(BIN)/forgewatch down $(if $(PURGE),--purge)

test: .venv/installed ## lint, types and every test; those marked system start a real broker and TorchServe
	$(MAKE) -j2 lint tests

tests: .venv/installed
	$(PYTEST) tests --durations=30 --durations-min=5

chaos: .venv/installed ## the faults of the promises, caused for hours, and a table; BAR=B2,S3 for some of them, SOAK=MINUTES
	$(BIN)/pytest tests --chaos --bar "$(BAR)" --soak-minutes $(or $(SOAK),120)

check: .venv/installed ## lint, types and the tests that are fast, side by side: before each commit
	$(MAKE) -j2 --output-sync lint fast

fast: .venv/installed
	$(PYTEST) -q -m "not slow and not system"

simulations: .venv/installed ## alarms, drift, estimates and rollouts by simulation, and the memory's costs; an hour
	for each in shift estimate rollout memory; do $(BIN)/python tests/simulations/simulate.py $$each || exit 1; done

gpu-check: .venv/installed ## what only a GPU shows; each line passed, failed, or was skipped and why. All skipped: 0
	$(BIN)/pytest tests/gpu -v -rA --tb=short --no-header

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

chart-check: .venv/installed ## the chart alone, with kube-score and every schema; makes the tools that it needs
	tests/helm/check.sh

chart-e2e: .venv/installed ## the chart on a real one-node Kubernetes; as root, and an hour at most the first time
	tests/cluster/e2e.sh

# For a machine with NVIDIA's GPUs: make LOCK=requirements-gpu.lock, before anything else.
LOCK := requirements.lock

# --no-deps: the lock names everything, and pip takes an extra that a dependency asks for (pydantic[email]) for unpinned.
.venv/installed: $(LOCK) pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --progress-bar on --no-deps --require-hashes -r $(LOCK)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	touch $@

readme: .venv/installed ## the settings and the tree in each room's README.md, the chart's schema and values, from the code
	@# -P: tests/ holds folders with the packages' names.
	$(BIN)/python -P tests/test_readme.py

dashboards: .venv/installed ## the JSON of helm/forgewatch/dashboards, from helm/dashboards
	$(BIN)/python -m helm.dashboards

screenshots: .venv/installed ## the pictures of deploy/page/README.md, by Chromium, of a stack of their own; about ten minutes
	$(BIN)/python -P tests/deploy/page/browser/screenshots.py

PIN := uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --quiet \
	--custom-compile-command "make lock"
IN_EVERY_IMAGE := --extra otel --extra postgres --extra s3
# faiss-gpu and onnxruntime-gpu in the place of the CPU's
ON_GPU := --override helm/images/gpu.override helm/images/gpu.in

lock: ## pins and hashes of everything in pyproject.toml, and of what each image has; needs uv
	$(PIN) --extra local --extra dev $(IN_EVERY_IMAGE) pyproject.toml -o requirements.lock
	$(PIN) -c requirements.lock $(IN_EVERY_IMAGE) pyproject.toml -o helm/images/worker.lock
	$(PIN) -c requirements.lock $(IN_EVERY_IMAGE) --extra torchserve pyproject.toml -o helm/images/torchserve.lock
	$(PIN) -c requirements.lock $(IN_EVERY_IMAGE) --extra updater pyproject.toml -o helm/images/updater.lock
	$(PIN) helm/images/build.in -o helm/images/build.lock
	$(PIN) -c requirements.lock .ci/audit.in -o .ci/audit.lock
	$(PIN) -c requirements.lock $(ON_GPU) --extra local --extra dev $(IN_EVERY_IMAGE) pyproject.toml -o requirements-gpu.lock
	$(PIN) -c requirements-gpu.lock $(ON_GPU) $(IN_EVERY_IMAGE) pyproject.toml -o helm/images/worker-gpu.lock
	$(PIN) -c requirements-gpu.lock $(ON_GPU) $(IN_EVERY_IMAGE) --extra torchserve pyproject.toml -o helm/images/torchserve-gpu.lock
	$(PIN) -c requirements-gpu.lock $(ON_GPU) $(IN_EVERY_IMAGE) --extra updater pyproject.toml -o helm/images/updater-gpu.lock

images: ## the container images; GPU=1 for NVIDIA's GPUs, BASE=IMAGE for another base, INDEX=URL of torch for the CPU
	BASE="$(BASE)" INDEX="$(INDEX)" TAG="$(TAG)" GPU="$(GPU)" helm/images/build.sh $(TARGETS)

default-release: .venv/installed ## the release that ships, of DATA=DIR (manifest.tsv and its files); prints the digest for release_zero.py
	OMP_NUM_THREADS=1 $(BIN)/python -m updater.benchmark.default_release "$(DATA)" deploy/demo/release-0

clean: ## all but the source
	rm -rf .venv .forgewatch
