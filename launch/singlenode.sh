#!/usr/bin/env bash
# Checks a recipe and runs it on this machine. All arguments go to `python -m launch run`.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: bash launch/singlenode.sh RECIPE [--set KEY=VALUE ...] [--shrink] [--runs FOLDER] [--fresh] [--dry-run]

  bash launch/singlenode.sh recipes/tiny_colocate.yaml
  bash launch/singlenode.sh recipes/tiny_colocate.yaml --set grpo.seed=1 --dry-run
  bash launch/singlenode.sh recipes/qwen7b_colocate.yaml --shrink

PYTHON names the interpreter (default: .venv/bin/python where it exists, else python3).
A run that was stopped or died is resumed by the same command; --fresh starts anew.
Exit code: 0 finished, 1 failed, 2 the recipe was refused, 75 stopped so that the same command resumes, 130 interrupted.
TEXT
}

case "${1:-}" in
  -h | --help)
    usage
    exit 0
    ;;
  "")
    usage >&2
    exit 2
    ;;
esac

cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ -z "${PYTHON:-}" ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=.venv/bin/python
fi
exec "$PYTHON" -m launch run "$@"
