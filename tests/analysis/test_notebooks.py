"""The notebooks: committed without outputs, and running in a fresh kernel from the root and from analysis/."""

import nbformat
import pytest
from nbclient import NotebookClient

from launch.recipe import ROOT

NOTEBOOKS = sorted((ROOT / "analysis").glob("*.ipynb"))
LOGIC = ("def ", "for ", "while ", "import pandas", "import numpy", "import matplotlib")


def test_there_are_four_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["learning", "memory", "throughput", "your_own_runs"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_stripped_and_there_is_no_logic(path):
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown", "it opens with the question that it answers"
    for cell in notebook.cells:
        assert cell.metadata == {}
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), "stripped"
            lines = [line for line in cell.source.splitlines() if not line.startswith("sys.path")]
            assert not [line for line in lines if line.lstrip().startswith(LOGIC)], "what computes is in analysis/"


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_all_find_the_modules_in_one_way():
    assert len({code(nbformat.read(path, nbformat.NO_CONVERT))[0].source for path in NOTEBOOKS}) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "folder"),
    [*((path, ".") for path in NOTEBOOKS), (NOTEBOOKS[1], "analysis")],  # the first cell is the same in all
    ids=lambda value: getattr(value, "stem", value),
)
def test_it_runs_in_a_fresh_kernel(path, folder):
    notebook = nbformat.read(path, nbformat.NO_CONVERT)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT / folder)}}).execute()
    for cell in code(notebook)[2:]:
        assert all(output.get("name") != "stderr" for output in cell.outputs), "no warning"
        (shown,) = [output.data["text/html"] for output in cell.outputs if output.output_type == "execute_result"]
        assert any(mark in shown for mark in ("<img ", "<table", "Not measured yet.", "<li>")), cell.source
