"""The ledger of the paper's claims (analysis/claims.yaml), with the verdicts that the records under results/ allow.

A claim has a status at the paper's own scale, and beside it what smaller records say, if any bear on it:

    supported      every criterion is
    contradicted   at least one criterion is, and none is supported
    partly         anything between: some criteria supported, others contradicted, undecided or not run; or all undecided
    not run        no criterion has records enough for a verdict
"""

from pathlib import Path
from typing import NamedTuple

import pandas
from ruamel.yaml import YAML

from analysis.criteria import CONTRADICTED, NOT_RUN, SUPPORTED, Finding, judge, matches
from analysis.runs import Runs
from analysis.tables import markdown

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "analysis" / "claims.yaml"
PARTLY = "partly"
SCALES = ("paper", "small")
MARKS = ("<!-- claims -->\n", "\n<!-- /claims -->")


class Verdict(NamedTuple):
    """A claim at one scale. `headline` is the number to set beside the paper's, a dash without; `hardware` and `collections`
    are of the runs that the findings are from."""

    status: str
    findings: list[Finding]
    headline: str
    hardware: str
    collections: list[str]

    def text(self) -> str:
        """The status, and where nothing is decided, that."""
        decided = {SUPPORTED, CONTRADICTED} & {finding.verdict for finding in self.findings}
        return self.status if decided or self.status == NOT_RUN else f"{self.status} (undecided)"


class Claim(NamedTuple):
    """`measured` says what the headline's number is; `paper` and `small` are verdicts, `small` None where no smaller records
    bear on the claim."""

    id: str
    says: str
    published: str
    measured: str
    paper: Verdict
    small: Verdict | None


def ledger() -> dict:
    """The claims as the file has them."""
    return YAML(typ="safe").load(LEDGER.read_text(encoding="utf-8"))


def claims(found: Runs) -> list[Claim]:
    """Every claim with its verdicts.

    Raises:
        ValueError: a criterion cannot be computed at all: an unknown metric or condition.
    """
    result, runs = [], found.runs[found.runs["lora_r"].isna()]  # the paper trained all weights
    for name, entry in ledger().items():
        measured = next(item["says"] for item in entry["criteria"] if item.get("headline"))
        verdicts = {scale: _verdict(entry, scale, runs) if scale in entry else None for scale in SCALES}
        result.append(Claim(name, entry["says"], str(entry.get("figure") or "-"), measured, **verdicts))
    return result


def _verdict(entry: dict, scale: str, runs: pandas.DataFrame) -> Verdict:
    runs = runs[matches(runs, entry[scale])]
    asked = [item for item in entry["criteria"] if scale in item.get("scales", SCALES)]
    findings = [judge(criterion, runs) for criterion in asked]
    used = runs[runs["path"].isin({path for finding in findings for path in finding.paths})]
    machines = sorted({f"{devices:.0f} x {gpu}" if devices > 0 else str(gpu) for devices, gpu in
                       zip(used["devices"].astype(float), used["gpu"], strict=True)})  # fmt: skip
    headline = findings[next(n for n, item in enumerate(asked) if item.get("headline"))]
    reached = status(findings)
    if reached == SUPPORTED and len(asked) < len(entry["criteria"]):
        reached = PARTLY  # what is not asked at this scale is open
    return Verdict(reached, findings, headline.figure(), ", ".join(machines), sorted(set(used["collection"])))


def status(findings: list[Finding]) -> str:
    """The status that criteria together give a claim."""
    verdicts = [finding.verdict for finding in findings]
    if all(verdict == NOT_RUN for verdict in verdicts):
        return NOT_RUN
    if all(verdict == SUPPORTED for verdict in verdicts):
        return SUPPORTED
    if CONTRADICTED in verdicts and SUPPORTED not in verdicts:
        return CONTRADICTED
    return PARTLY


def table(result: list[Claim]) -> str:
    """One line a claim: what the paper says, its figure, ours at its scale and the status; then what smaller records say."""
    head = ("claim", "what it says", "measured", "paper", "ours", "status", "in small: ours", "in small", "on")
    rows = []
    for claim in result:
        small = (
            (claim.small.headline, claim.small.text(), claim.small.hardware or "-") if claim.small else ("-", "-", "-")
        )
        where = f" ({claim.paper.hardware})" if claim.paper.hardware else ""
        rows.append(
            (
                claim.id,
                claim.says,
                claim.measured,
                claim.published,
                claim.paper.headline,
                f"**{claim.paper.text()}**{where}",
                *small,
            )
        )
    return markdown(head, rows)


def details(result: list[Claim]) -> str:
    """Every criterion with its verdict, its figure and the records it is from, as text."""
    lines = []
    for claim in result:
        lines.append(f"\n{claim.id}  {claim.says}  (paper: {claim.published})")
        for scale, verdict in (("at the paper's scale", claim.paper), ("in small", claim.small)):
            if verdict is None:
                lines.append(f"  {scale}: no smaller records bear on it")
                continue
            on = f" on {verdict.hardware}; records: {', '.join(verdict.collections)}" if verdict.hardware else ""
            lines.append(f"  {scale}: {verdict.text()}{on}")
            lines += [f"    {_word(finding):13}{finding.figure():34}{finding.says}" for finding in verdict.findings]
    return "\n".join(lines).lstrip("\n")


def _word(finding: Finding) -> str:
    return "too few" if finding.verdict == NOT_RUN and finding.estimate else finding.verdict


def write(text: str, readme: Path) -> None:
    """Puts the table between its marks in a README.

    Raises:
        ValueError: the marks are not there.
    """
    content = readme.read_text(encoding="utf-8")
    before, mark, rest = content.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not mark or not end:
        raise ValueError(f"{readme}: the marks {MARKS[0].strip()} and {MARKS[1].strip()} are not there")
    readme.write_text(before + mark + text + end + after, encoding="utf-8")
