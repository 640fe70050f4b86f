"""The repository's own promises: the README's tree, who imports whom, how fast `check` and `show` are."""

import ast
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.results import load_results, markdown_table
from launch.recipe import ROOT
from tests.readme_tree import tracked_files, tree

RECIPE = "recipes/tiny_colocate.yaml"


def tree_paths() -> list[str]:
    """The paths of the README's tree: two spaces of indent a level, a folder ends with a slash."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"<!-- tree -->\n```\n(.*?)```", text, re.DOTALL).group(1)
    paths, parents = [], []
    for line in block.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents = [*parents[:depth], name]
        paths.append("".join(parents))
        assert len(line.split()) > 1, f"no word on {name}"
    return paths


def test_the_readme_tree_lists_what_is_there():
    files, listed = tracked_files(), tree_paths()
    for path in listed:
        assert any(file == path or (path.endswith("/") and file.startswith(path)) for file in files), (
            f"{path} is not there"
        )
    # a folder without entries of its own stands for all that is in it
    whole = [
        path for path in listed if path.endswith("/") and not any(p != path and p.startswith(path) for p in listed)
    ]
    missing = [file for file in files if file not in listed and not file.startswith(tuple(whole))]
    assert missing == [], "not in the README's tree"


def test_the_readme_tree_says_what_the_files_say():
    assert tree() in (ROOT / "README.md").read_text(), "run: python -m tests.readme_tree --write"


def test_the_readmes_results_are_those_of_the_committed_records():
    assert markdown_table(load_results(ROOT / "results" / "tiny")) in (ROOT / "README.md").read_text()


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize(
    ("folder", "refused"),
    [
        ("record", ("launch", "training", "analysis", "rewards", "torch", "tiny")),
        ("rewards", ("launch", "training", "analysis", "torch", "transformers", "trl", "tiny")),
        ("launch", ("training", "analysis", "torch", "transformers", "trl", "vllm", "accelerate", "tiny")),
        ("analysis", ("launch", "training", "torch", "transformers", "trl", "vllm", "tiny")),
        ("training", ("launch", "analysis", "tiny")),
    ],
)
def test_data_flows_one_way(folder, refused):
    for path in (ROOT / folder).rglob("*.py"):
        for module in imports_of(path):
            allowed = module.startswith("rewards.registry")  # a table of names, which `check` needs
            assert allowed or module.split(".")[0] not in refused, f"{path.relative_to(ROOT)} imports {module}"
    if folder in ("launch", "analysis"):
        imported = {module for path in (ROOT / folder).rglob("*.py") for module in imports_of(path)}
        assert {m for m in imported if m.startswith("rewards")} <= {"rewards.registry"}


@pytest.mark.parametrize("verb", ["check", "show"])
def test_check_and_show_load_no_torch_and_take_under_a_second(verb):
    program = (
        f"import sys; sys.argv = ['launch', {verb!r}, {RECIPE!r}]\n"
        "from launch.__main__ import main\n"
        "assert main() == 0\n"
        "heavy = {'torch', 'transformers', 'trl', 'vllm', 'sympy', 'math_verify'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    seconds = []
    for _ in range(5):  # the machine may be busy: the best of five says what the command takes
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        seconds.append(time.perf_counter() - start)
        assert done.returncode == 0, done.stderr
    assert min(seconds) < 1.0, seconds


def test_every_python_file_can_be_read_in_one_sitting():
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / file for file in tracked_files() if file.endswith(".py"))
        if (lines := len(path.read_text().splitlines())) > 450
    }
    assert long == {}
