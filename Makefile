# make book   the page, from a fresh machine with Python 3.11 or newer; prints where it is
# make test   everything that is checked
# README.md and CONTRIBUTING.md say what the others are for.

VENV ?= .venv
PY = $(VENV)/bin/python
JOBS ?= 2
PORT ?= 8000
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

STAMP = $(VENV)/.installed
PAGE = _build/.page
SOURCES = _config.yml _toc.yml $(wildcard *.md book/*.* book/*/*.* book/*/*/*.* notebooks/*.ipynb annotated/*.py tools/*.py tools/web/* results/*/*.json results/*/*.jsonl results/*/*.safetensors results/*/*.model results/*/*.txt results/*/README.md results/*/runs/*.json)

# Of the 15,000 modules that are installed few are ever imported: each is compiled then, and must be kept.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: book html pdf test lint weave tangle untangle serve bench gpu gpu-test clean
.DELETE_ON_ERROR:

book: html
	@echo "The book: $(CURDIR)/_build/html/index.html"

html: $(PAGE)

# A build with a warning fails and forgets what it read: the next one must not pass by reading less. One that was stopped
# leaves its mark, and the next one forgets. The page is as old as the mark: what changed during the build is built next time.
MARK = _build/.building
$(PAGE): $(STAMP) $(SOURCES)
	@$(PY) tools/web/fetch.py
	@mkdir -p _build; [ ! -e $(MARK) ] || rm -rf _build/.doctrees; touch $(MARK)
	@$(VENV)/bin/jupyter-book build -W -n --keep-going . || { rm -rf _build/.doctrees $@ $(MARK); exit 1; }
	@mv $(MARK) $@

# The hour and the main line for paper, in _build/pdf and with the page; needs Chromium, and takes some minutes.
pdf: html
	@$(PY) tools/pdf.py

# The pages are built while lint runs.
test: $(STAMP)
	@mkdir -p _build; failed=""; \
	$(MAKE) --no-print-directory lint >_build/lint.log 2>&1 & lint=$$!; \
	$(MAKE) --no-print-directory html || failed="$$failed html"; \
	wait $$lint || failed="$$failed lint"; \
	cat _build/lint.log; \
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile --nbval tests notebooks || failed="$$failed pytest"; \
	if [ -n "$$failed" ]; then echo "failed:$$failed"; exit 1; fi

lint: $(STAMP)
	@$(PY) tools/check.py

tangle: $(STAMP)
	@$(PY) tools/tangle.py
	@$(PY) tools/collect.py

weave: tangle
	@$(PY) tools/weave.py --jobs $(JOBS)

untangle: $(STAMP)
	@$(PY) tools/untangle.py

serve: book
	@echo "http://localhost:$(PORT)"
	@$(PY) -m http.server --directory _build/html $(PORT)

# Side by side with other implementations, on this machine; the records in results/ are made one by one, as their
# README says. What needs real text is fetched on the first use.
BENCH = 10_step 10_real_lengths 11_decoding 11_real_text 21_marian

bench: $(VENV)/.bench
	@for name in $(BENCH); do echo "$$name"; PYTHONPATH=$(CURDIR) $(PY) benchmarks/$$name.py --out _build/bench/$$name || exit 1; done

$(VENV)/.bench: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -e .[bench]
	@touch $@

# On a machine with a GPU: what is there, the ladder of chapter 14, and a training that ends with a score; minutes.
# GPU="--device cpu --trial" tries the same on a CPU, at tiny size. Where nothing is installed yet, a Python that has
# torch and what the package needs will do, so that a machine without a network can run it.
GPU_PY = $(shell test ! -e $(STAMP) && $(PYTHON) -c 'import numpy, safetensors, torch, tqdm' 2>/dev/null && echo $(PYTHON))

gpu: $(if $(GPU_PY),,$(STAMP))
	@PYTHONPATH=$(CURDIR) $(or $(GPU_PY),$(PY)) benchmarks/14_gpu.py --out _build/gpu $(GPU)

# The tests that need a GPU, and every notebook run there (errors count, outputs may differ).
gpu-test: $(STAMP)
	@$(PY) -c 'import torch, sys; sys.exit(None if torch.cuda.is_available() else "make gpu-test: torch finds no CUDA device")'
	@$(PY) -m pytest -m gpu tests
	@$(PY) -m pytest --nbval-lax notebooks

$(STAMP): requirements.txt pyproject.toml
	@[ -n "$(PYTHON)" ] || { echo "make: Python 3.11 or newer is needed; PYTHON=path names one"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "make: $(PYTHON) has no venv module; on Debian or Ubuntu: apt install python3-venv"; exit 1; }
	@[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	@echo "Installing requirements.txt into $(VENV), a few minutes the first time"
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-compile -r requirements.txt
	@touch $@

clean:
	rm -rf _build .pytest_cache .ruff_cache .mypy_cache build *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
