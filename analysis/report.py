"""The report: one HTML page with claims, figures, tables and their provenance, that opens from disk and prints."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from analysis.exhibits import KINDS, arms_table, claims, committed, exhibit, left_out, markdown, records, runs_table
from analysis.metrics import markdown as metrics_table

TEMPLATE = Path(__file__).with_suffix(".html.jinja")


class Section(NamedTuple):
    """`name` is the anchor. `html` is put in as it is: what comes from records is escaped in it."""

    name: str
    title: str
    html: str


def write_report(out: Path, places: Sequence[str] = ()) -> Path:
    """Writes the page, of the committed records or of those below `places`. Returns `out`.

    Raises:
        FileNotFoundError: a place does not exist.
        OSError: `out` cannot be written; it is then as it was before.
    """
    given = records(*places) if places else None
    everything = given or committed()
    sections = [
        Section("claims", "The paper's claims, and what the records say", claims().html),
        *(Section(name, kind.question, exhibit(name, given).html) for name, kind in KINDS.items()),
        Section("arms", "The arms over their seeds", arms_table(everything).html),
        Section("runs", "Every run", runs_table(everything).html),
        Section("left-out", "What was left out, and why", left_out(everything).html),
        Section("metrics", "What each metric means", markdown(metrics_table()).html),
    ]
    template = Environment(undefined=StrictUndefined, autoescape=True).from_string(TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        sections=sections,
        command=" ".join(["python -m analysis report", *places]),
        runs=len(everything.found.runs),
        places=", ".join(places) or "results",
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8")
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return out
