# `make ladder` is the main job, `make test` the tests that a person waits for, `make test-all` all kinds of them.
# Each makes .venv first when there is none.
# PYTHON=python3.12 chooses the interpreter; ARGS="..." goes to flashcore, pytest or JupyterLab; N=5 names a
# lesson.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Checks and tests start hundreds of processes: compiled modules are kept, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

ARGS ?=
N ?=
JOBS ?= 4
GPU_JOBS ?= 8
BIN := .venv/bin

USABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
ifdef PYTHON
PYTHONS := $(PYTHON)
else
PYTHONS := python3.13 python3.12 python3.11 python3
endif
FOUND := $(shell for p in $(BIN)/python $(PYTHONS); do "$$p" -c "$(USABLE)" 2>/dev/null && echo "$$p" && break; done)
# The CUDA packages that the NVIDIA driver can run; empty without a GPU, where tests and lessons still compile.
CUDA := $(if $(FOUND),$(shell "$(FOUND)" .ci/cuda_extra.py))
comma := ,
space := $() $()
TOOLS := $(or $(CUDA),compiler)
# What the adapters are tested with. PyTorch's packages are of CUDA 13, and CUDA 12 needs others of the same names.
FRAMEWORKS := $(if $(filter cuda12,$(CUDA)),,hf megatron)
# The tests in a browser run where there is one; BROWSER_TESTS=yes makes its absence an error.
BROWSER_TESTS ?= $(shell command -v chromium || command -v chromium-browser || command -v google-chrome)
READY := .venv/.ready$(CUDA:%=-%)
READY_TEST := .venv/.ready-$(TOOLS)-dev
READY_LAB := .venv/.ready-$(TOOLS)-notebooks
READY_SITE := .venv/.ready-site
READY_VLLM := .venv-vllm/.ready
VLLM_NEEDS := tests/integrations/vllm-requirements.txt

# $(call install,extras): the project with these extras into .venv, with a line for each large download.
define install
if ! [ -x $(BIN)/python ]; then \
	$(if $(FOUND),,echo "flashcore: none of these is Python 3.11 or newer with venv and pip: $(PYTHONS)" >&2; \
		echo "Install one (on Debian and Ubuntu: apt install python3-venv)" >&2; \
		echo "or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1;) \
	echo "flashcore: making .venv with $$("$(FOUND)" --version)"; \
	"$(FOUND)" -m venv .venv; \
fi; \
echo "flashcore: installing into .venv: base$(addprefix $(space),$(1)) ($(if $(CUDA),,no )NVIDIA GPU found)"; \
$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e $(if $(1),".[$(subst $(space),$(comma),$(1))]",.) \
	| sed -un -e 's/^ *\(Downloading .*[0-9] [MG]B)\).*/  \1/p' -e 's/^Installing collected packages.*/  Installing/p'; \
touch $@
endef

# $(call pytest,processes,markers)
pytest = $(BIN)/python -m pytest -m "$(2)" -n auto --maxprocesses $(1) --dist worksteal --durations 10 \
	$(if $(FRAMEWORKS),,--ignore tests/integrations) $(ARGS)

help:
	@echo "make ladder    run, check, count and compare every stage (the main job)"
	@echo "make test      every module, stage and command, style included: some seven minutes on two cores"
	@echo "make test-all  the same, a fifth of the matrices, random kernels and the browser: an hour more"
	@echo "make test-vllm vLLM's engine on the CPU, with FlashCore in it; vllm-env prepares it: 2 GB in .venv-vllm"
	@echo "make style     ruff and mypy alone"
	@echo "make lab       the course: JupyterLab at the next lesson, or at lesson N=5; make lab-env only prepares it"
	@echo "make lessons   write numbers into the lessons and make the notebooks; ARGS=--execute runs them"
	@echo "make site      the lessons as pages to read, without Jupyter or a network; anew it takes minutes"
	@echo "make kills     judge the lessons' wrong answers anew and write the tables of what kills them"
	@echo "make clean     remove .venv, .venv-vllm, build, dist and caches"

ladder: $(READY)
	@$(BIN)/python -m flashcore_numba compare $(ARGS)

test: $(READY_TEST)
ifeq ($(FRAMEWORKS),)
	@echo "flashcore: the adapters are not tested, because there is no PyTorch for CUDA 12 beside the CUDA packages"
endif
	@$(call pytest,$(JOBS),not gpu and not browser and not vllm)
ifneq ($(CUDA),)
	@$(call pytest,$(GPU_JOBS),gpu)
endif

test-matrices: $(READY_TEST)
ifeq ($(BROWSER_TESTS),)
	@echo "flashcore: no Chromium, so the tests in a browser do not run (on Debian: apt install chromium)"
endif
	@$(call pytest,$(JOBS),$(if $(BROWSER_TESTS),not gpu and (long or browser),not gpu and not browser and long))
ifneq ($(CUDA),)
	@$(call pytest,$(GPU_JOBS),gpu and long)
endif

test-all: test
	@$(MAKE) test-matrices

# vLLM wants other versions than the project, so it has an environment of its own, as its requirements name it.
test-vllm: $(READY_TEST) $(READY_VLLM)
	@$(BIN)/python -m pytest -m vllm tests/integrations $(ARGS)

vllm-env: $(READY_VLLM)

style: $(READY_TEST)
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

lab: $(READY_LAB)
	@$(BIN)/python -m flashcore_numba lab $(N) -- $(ARGS)

lessons: $(READY_LAB)
	@$(BIN)/python -m flashcore_numba lessons $(ARGS)
	@$(BIN)/python -m flashcore_numba lessons --check

kills: $(READY_LAB)
	@cd tests && ../$(BIN)/python -m course.kill_table $(N) && ../$(BIN)/python -m course.readme_sample

lab-env: $(READY_LAB)

site: $(READY_SITE)
	@$(BIN)/python -m sphinx -q -W -j auto -c site -d build/doctrees . build/site
	@echo "flashcore: open build/site/index.html"

clean:
	rm -rf .venv .venv-vllm .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(call install,$(strip pictures $(CUDA)))

$(READY_TEST): pyproject.toml constraints.txt
	@$(call install,$(strip $(TOOLS) dev evolve tune $(FRAMEWORKS)))

$(READY_LAB): pyproject.toml constraints.txt
	@$(call install,$(TOOLS) notebooks)

$(READY_SITE): pyproject.toml constraints.txt
	@$(call install,site)

$(READY_VLLM): $(VLLM_NEEDS) $(READY_TEST)
	@echo "flashcore: installing vLLM into .venv-vllm"
	@$(BIN)/python -m venv .venv-vllm
	@.venv-vllm/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -r $(VLLM_NEEDS)
	@touch $@

.PHONY: help ladder test test-matrices test-all test-vllm vllm-env style lab lab-env lessons kills site clean
