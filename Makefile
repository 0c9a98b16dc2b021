# Both `make demo` and `make test` create .venv when it is missing; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

DATA ?=
JOBS ?= -1
.PHONY: test lint demo demo-training reproduce train bench clean

test: $(VENV)/dev lint
	$(BIN)/python -m pytest -q -n 2

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Clusters 1,000 of the carried images; offline.
demo: $(VENV)/dev
	$(BIN)/python -m experiments.features
	$(BIN)/python -m experiments.solve -m experiment=demo
	$(BIN)/python -m experiments.gather outputs/demo

demo-training: $(VENV)/dev
	$(BIN)/python -m experiments.demo_training

# The paper on the complete data, on all cores; DATA=FOLDER for a local copy, else they are downloaded.
# A second call goes on where the first was stopped.
RUNS := outputs/reproduce
IMAGES = data.root=$(if $(DATA),$(DATA),outputs/data) data.download=$(if $(DATA),false,true)
SOLVE = $(BIN)/python -m experiments.solve -m hydra/launcher=joblib hydra.launcher.n_jobs=$(JOBS) \
	progress=false output=$(RUNS)
reproduce: $(VENV)/dev
	$(BIN)/python -m experiments.features -m dataset=mnist,fashion_mnist $(IMAGES)
	$(SOLVE) experiment=gevp
	$(SOLVE) experiment=gevp nu=0.1,0.3,0.5,0.7,0.9 seed=0
	$(SOLVE) experiment=qp_triple
	$(SOLVE) experiment=qp_double
	$(SOLVE) experiment=clustering_mnist $(IMAGES)
	$(SOLVE) experiment=clustering_fashion $(IMAGES)
	$(SOLVE) experiment=beyond
	$(SOLVE) experiment=beyond problem=clustering_mnist,clustering_fashion seed=0 $(IMAGES)
	$(SOLVE) experiment=qp_double 'seed=range(10,100)'
	$(BIN)/python -m experiments.gather $(RUNS) --keep experiments/results/runs
	$(BIN)/python -m experiments.gather experiments/results/runs --output experiments/results \
		--report experiments/REPRODUCTION.md

# Constrained trainings beside what one would do instead; DATA as above. Goes on where it was stopped.
TRAININGS := experiments/results/training
train: $(VENV)/benchmarks
	for experiment in neyman_pearson orthonormal; do \
		$(BIN)/python -m experiments.train -m hydra/launcher=joblib hydra.launcher.n_jobs=$(JOBS) \
			experiment=$$experiment output=$(TRAININGS) $(IMAGES) || exit 1; done
	$(BIN)/python -m experiments.benchmarks.training_cost
	$(BIN)/python -m experiments.train_report $(TRAININGS) --output experiments/results \
		--report experiments/TRAINING.md

# Side by side with the peers, and experiments/BENCHMARKS.md from the results; DATA as above, else the
# carried images. Some three hours: failures of peers run until their time is up.
BENCHMARKS := OMP_NUM_THREADS=1 $(BIN)/python -m experiments.benchmarks
bench: $(VENV)/benchmarks
	-$(BIN)/uv pip install --quiet --python $(BIN)/python cyipopt
	$(BENCHMARKS).overhead
	$(BENCHMARKS).deterministic $(if $(DATA),--root $(DATA))
	$(BENCHMARKS).robust
	$(BENCHMARKS).scaling
	$(BENCHMARKS).report

# uv installs several times faster than pip; the stamp files are renewed when the dependencies change.
$(VENV)/dev $(VENV)/benchmarks: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$(if $(filter benchmarks,$(@F)),benchmarks,dev)]'
	touch $@

clean:
	rm -rf $(VENV) outputs .mypy_cache .ruff_cache .pytest_cache
