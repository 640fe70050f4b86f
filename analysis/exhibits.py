"""What notebooks and report show: for each question the figures and tables that answer it, with where they come from.

    exhibit("timeline")                          from the records under results/
    exhibit("timeline", records("runs"))         from records of your own

Each draws itself in a notebook. Where there are no records for it yet, it says so, and which command makes them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from analysis import claims as ledger
from analysis import pictures, tables
from analysis.evaluation import RESULT, load_evaluations
from analysis.pictures import ROOT, Picture, Records
from analysis.runs import join, load
from analysis.wandb_runs import from_api

WANDB = "wandb:"


def records(*places: str | Path) -> Records:
    """All records below folders, of which a relative one counts from the repository's root, and the runs of wandb projects
    ("wandb:ENTITY/PROJECT").

    Raises:
        FileNotFoundError: a folder does not exist.
        ValueError: a project cannot be read.
    """
    projects = [str(place).removeprefix(WANDB) for place in places if str(place).startswith(WANDB)]
    folders = [ROOT / place for place in places if not str(place).startswith(WANDB)]
    found, evaluations = join(load(folders), *map(from_api, projects)), []
    for folder in dict.fromkeys(file.parent.parent for place in folders for file in sorted(place.rglob(RESULT))):
        some, warnings = load_evaluations(folder)
        evaluations += [item | {"path": str(folder / item["name"] / RESULT)} for item in some]
        found.problems.extend(warnings)
    return Records(found, evaluations)


@cache
def committed(*paths: str) -> Records:
    """The committed records below those of the paths that are there, read once in a process."""
    return records(*(path for path in paths or ("results",) if (ROOT / path).exists()))


def own_records(place: str = "runs") -> Records:
    """The records of a folder or project; where runs/ holds none yet, the committed ones, and a line that says so.

    Raises:
        FileNotFoundError, ValueError: as `records` does.
    """
    if place != "runs" or any((ROOT / place).glob("*/*/manifest.json")):
        return records(place)
    print("runs/ holds no records yet: what follows is of the committed ones under results/")
    return committed()


class Html(NamedTuple):
    """A piece of a page; a notebook shows it as it is. What comes from records is escaped in it."""

    html: str

    def _repr_html_(self) -> str:
        return self.html


@dataclass(frozen=True)
class Exhibit:
    """Its pictures, or the sentence that says why there are none."""

    name: str
    question: str
    pictures: list[Picture]
    missing: str

    @property
    def html(self) -> str:
        if not self.pictures:
            said = MarkdownIt("commonmark", {"html": False}).renderInline(self.missing)
            return f'<p class="missing"><strong>Not measured yet.</strong> {said}</p>'
        return "\n".join(picture.html() for picture in self.pictures)

    def _repr_html_(self) -> str:
        return self.html


class Kind(NamedTuple):
    """`paths` are where the committed records are that it is about, none for all; `missing` says what makes them."""

    question: str
    draw: Callable[[Records], Iterator[Picture]]
    paths: tuple[str, ...]
    missing: str


KINDS = {
    "throughput_by_batch": Kind(
        "How does throughput grow with the batch, and how far ahead is colocate?",
        pictures.throughput_by_batch,
        (),
        "There are no finished runs that differ in the batch alone. `python -m launch sweep recipes/sweeps/exp1.yaml` (1.5B), "
        "`exp3.yaml` (7B) and `exp11.yaml` (continuous batching) make them, on GPUs.",
    ),
    "throughput_by_tp": Kind(
        "What does tensor parallelism cost, or bring?",
        pictures.throughput_by_tp,
        (),
        "There are no finished runs that differ in the tensor-parallel size alone. "
        "`python -m launch sweep recipes/sweeps/exp2.yaml` (1.5B) and `exp4.yaml` (7B) make them, on GPUs.",
    ),
    "timeline": Kind(
        "Who works, and who waits?",
        pictures.phase_timeline,
        ("results/timeline",),
        "There is no finished run with phases of three steps. "
        "`python -m launch compare recipes/tiny_colocate.yaml recipes/tiny_server.yaml` makes a pair.",
    ),
    "reward_curves": Kind(
        "Do the arms learn alike?",
        pictures.reward_curves,
        ("results/arms/learning",),
        "There are no finished runs with a reward. `make tiny` makes one.",
    ),
    "outcomes": Kind(
        "What did training bring on held-out problems?",
        pictures.outcomes,
        ("results/arms/learning",),
        "There are no finished runs of a recipe with held-out problems. `make tiny` makes one.",
    ),
    "evaluations": Kind(
        "How do trained models compare with their base?",
        pictures.evaluations,
        (),
        "There are no evaluations. `python -m training.evaluate MODEL --bench heldout` makes one.",
    ),
    "memory_by_phase": Kind(
        "Which phase takes the memory, and what does sleep give back?",
        pictures.memory_by_phase,
        ("results/memory_h200",),
        "There are no finished runs on a GPU. `make bench-memory` measures on one.",
    ),
}


def exhibit(name: str, given: Records | None = None) -> Exhibit:
    """One of KINDS, from `given`, or else from the committed records that it is about.

    Raises:
        ValueError: no such exhibit.
    """
    if name not in KINDS:
        raise ValueError(f"no exhibit {name!r}; there are {', '.join(KINDS)}")
    kind = KINDS[name]
    return Exhibit(name, kind.question, list(kind.draw(given or committed(*kind.paths))), kind.missing)


def gallery(given: Records | None = None) -> Html:
    """All exhibits, one below the other."""
    shown = (exhibit(name, given) for name in KINDS)
    return Html("\n".join(f"<h3>{escape(one.question)}</h3>\n{one.html}" for one in shown))


def claims(*names: str) -> Html:
    """The paper's claims of these names, or all, with the verdicts that the records under results/ allow."""
    judged = ledger.claims(committed().found)
    return markdown(ledger.table([claim for claim in judged if not names or claim.id in names]))


def runs_table(given: Records) -> Html:
    """A row a run, failed ones too, and then the causes of those that did not finish."""
    runs = given.found.runs
    if runs.empty:
        return Html('<p class="missing">There are no runs.</p>')
    failed = runs[runs["status"] != "finished"]
    causes = "".join(
        f"<li><strong>{escape(Path(row['path']).name)}</strong>, {escape(row['status'])}: {escape(str(row['cause']))}</li>"
        for row in failed.to_dict("records")
    )
    return Html(markdown(tables.runs(runs)).html + (f'<ul class="provenance">{causes}</ul>' if causes else ""))


def arms_table(given: Records) -> Html:
    """Each arm over its seeds, with intervals, and the ratios of runs that did the same work; memory measurements are none."""
    runs = given.found.runs[given.found.runs["source"] != "memory"]
    return markdown(tables.arms(runs).replace(f"{ROOT}/", "")) if len(runs) else runs_table(given)


def left_out(given: Records) -> Html:
    """What could not be read, or lacks a metric, and why."""
    problems = given.found.problems + given.found.lacking
    if not problems:
        return Html("<p>Nothing: every record was read whole, and has what its metrics need.</p>")
    items = "".join(f"<li>{escape(problem.replace(f'{ROOT}/', ''))}</li>" for problem in problems)
    return Html(f'<ul class="provenance">{items}</ul>')


def markdown(text: str) -> Html:
    """Markdown with tables; raw HTML in it is shown, not obeyed."""
    return Html(f'<div class="wide">{MarkdownIt("commonmark", {"html": False}).enable("table").render(text)}</div>')
