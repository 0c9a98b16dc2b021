# Both `make demo` and `make test` create .venv when it is missing; nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The many processes of the tests read compiled modules; some shells forbid Python to keep them, and
# then each process compiles torch and Lightning anew (import of Lightning: 13 s instead of 6).
export PYTHONDONTWRITEBYTECODE :=

DATA ?=
JOBS ?= -1
.PHONY: test lint mutants attack matrix docs docs-pages package demo demo-training reproduce train bench constraint-bench clean

test: $(VENV)/dev lint
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Mutation testing of the formulas, the dual state and the certificate; ten minutes on one core.
# tests/MUTANTS.md lists the survivors.
mutants: $(VENV)/dev
	$(BIN)/python -m tests.mutants

# Trainings against a loop written by hand, mutated states, damaged files, wild functions, Ctrl-C, and ranks
# that disagree: at most three minutes for each kind; seeds are printed. experiments/ATTACKS.md.
attack: $(VENV)/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.attacks.run_attacks
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.attacks.rank_disagreements

# The tests on the oldest and newest Python and torch, without and with the engines: an environment for
# each in outputs/matrix. CORNERS="core-oldest core-newest" runs some. docs/limits.md has the outcome.
matrix: $(VENV)/dev
	UV=$(abspath $(BIN)/uv) .ci/matrix $(CORNERS)

# The site in docs/_build/html: warnings are errors, internal links are checked, nothing is downloaded.
# FAST=1 shortens the runs of the gallery.
docs: $(VENV)/docs
	$(if $(FAST),POWALM_GALLERY_FAST=1) $(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

# Looks at the built pages in headless Chromium: axe on every page at two widths, light and dark, pictures
# of six of them in outputs/pages, a search. Needs node and Chromium (CHROMIUM=PATH).
PAGES := outputs/pages
docs-pages:
	mkdir -p $(PAGES)
	npm install --silent --no-save --prefix $(PAGES) axe-core@4 puppeteer-core@24
	NODE_PATH=$(PAGES)/node_modules $(if $(CHROMIUM),CHROMIUM=$(CHROMIUM)) node docs/check_pages.cjs docs/_build/html $(PAGES)

# Wheel and sdist in dist/, checked. POWALM_REPOSITORY=URL makes the links of the README absolute; in the
# release workflow and in a clone with a remote the address is known.
package: $(VENV)/dev
	rm -rf dist
	$(BIN)/uv build --quiet --sdist --wheel --out-dir dist .
	$(BIN)/python -m twine check --strict dist/*.whl dist/*.tar.gz
	$(BIN)/check-wheel-contents dist/*.whl

# Trains a classifier under ten constraints, and clusters 1,000 images of the sample; works offline.
demo: demo-training
	$(BIN)/python -m experiments.features
	$(BIN)/python -m experiments.solve -m experiment=demo
	$(BIN)/python -m experiments.gather outputs/demo

demo-training: $(VENV)/dev
	$(BIN)/python -m experiments.demo_training

# The paper's experiments on the complete data, on all cores; DATA=FOLDER uses a local copy, else the
# data are downloaded. A second call continues where the first one stopped. Some hours on two cores:
# the GEVP takes about one, the clusterings most of the rest.
RUNS := outputs/reproduce
IMAGES = data.root=$(if $(DATA),$(DATA),outputs/data) data.download=$(if $(DATA),false,true)
SOLVE = $(BIN)/python -m experiments.solve -m hydra/launcher=joblib hydra.launcher.n_jobs=$(JOBS) \
	progress=false output=$(RUNS)
reproduce: $(VENV)/dev
	$(BIN)/python -m experiments.features -m dataset=mnist,fashion_mnist features.seed=0,1,2 $(IMAGES)
	$(SOLVE) experiment=gevp
	$(SOLVE) experiment=gevp nu=0.1,0.3,0.5,0.7,0.9 seed=0
	$(SOLVE) experiment=gevp alm=paper_text
	$(SOLVE) experiment=qp_triple
	$(SOLVE) experiment=qp_triple alm=paper_text
	$(SOLVE) experiment=qp_double
	$(SOLVE) experiment=qp_double alm=paper_text
	$(SOLVE) experiment=clustering_mnist $(IMAGES)
	$(SOLVE) experiment=clustering_fashion $(IMAGES)
	$(SOLVE) experiment=clustering_mnist alm=paper_text $(IMAGES)
	$(SOLVE) experiment=clustering_fashion alm=paper_text $(IMAGES)
	$(SOLVE) experiment=clustering_mnist alm=paper_all_iterations nu=0.7,0.8,1.0 seed=0 $(IMAGES)
	$(SOLVE) experiment=beyond
	$(SOLVE) experiment=beyond problem=clustering_mnist,clustering_fashion seed=0 $(IMAGES)
	$(SOLVE) experiment=qp_double 'seed=range(10,100)'
	$(BIN)/python -m experiments.gather $(RUNS) --keep experiments/results
	$(BIN)/python -m experiments.gather experiments/results --report experiments/REPRODUCTION.md

# Constrained trainings, ours and the alternatives; DATA as above. Continues where it stopped.
TRAININGS := outputs/train
TRAIN = $(BIN)/python -m experiments.train -m hydra/launcher=joblib hydra.launcher.n_jobs=$(JOBS) \
	output=$(TRAININGS) $(IMAGES)
train: $(VENV)/benchmarks
	for experiment in neyman_pearson orthonormal; do \
		$(TRAIN) experiment=$$experiment method=unconstrained,penalty,cooper,nothing_set || exit 1; \
		$(TRAIN) experiment=$$experiment method=powalm method.nu=0.5,0.7,0.8,1.0 || exit 1; done
	$(BIN)/python -m experiments.benchmarks.training_cost
	$(BIN)/python -m experiments.gather $(TRAININGS) --keep experiments/results
	$(BIN)/python -m experiments.training_report experiments/results --report experiments/TRAINING.md

# Comparison with the peers and experiments/BENCHMARKS.md; DATA as above, else the sample of the images
# in the repository. Takes about three hours, since peers that fail run until their time is up.
BENCHMARKS := OMP_NUM_THREADS=1 $(BIN)/python -m experiments.benchmarks
bench: $(VENV)/benchmarks
	-$(BIN)/uv pip install --quiet --python $(BIN)/python cyipopt
	$(BENCHMARKS).overhead
	$(BENCHMARKS).solver_comparison $(if $(DATA),--root $(DATA))
	$(BENCHMARKS).robust
	$(BENCHMARKS).cutest
	$(BENCHMARKS).cutest_report
	$(BENCHMARKS).scaling
	$(BENCHMARKS).benchmark_report

# Constrained trainings of many kinds and in many units, ours and the peers; experiments/CONSTRAINTS.md.
# Some hours on one core; continues where it stopped.
CONSTRAINTS := OMP_NUM_THREADS=1 $(BIN)/python -m experiments.constraint_bench
constraint-bench: $(VENV)/benchmarks
	$(CONSTRAINTS).run_bench jobs=$(JOBS) base=adam
	$(CONSTRAINTS).run_bench jobs=$(JOBS) base=sgd
	$(CONSTRAINTS).constraints_report --keep outputs/constraint_bench/runs.csv

# uv installs several times faster than pip; the stamp files are renewed when the dependencies change.
$(VENV)/dev $(VENV)/docs $(VENV)/benchmarks: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[$(@F)]'
	touch $@

clean:
	rm -rf $(VENV) outputs dist docs/_build docs/auto_gallery docs/generated .mypy_cache .ruff_cache .pytest_cache
