"""python -m analysis VERB: tables, figures, verdicts and a report page from run records; --help lists the verbs."""

import argparse
import sys
from pathlib import Path

from analysis.load import load_run
from analysis.results import export, load_results, markdown_table
from analysis.summary import draw_reward_curve, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Tables and figures from run records.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(function, name: str, text: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text)
        verb.set_defaults(verb=function)
        return verb

    verb = add(summary_verb, "summary", "a run's table, and its reward curve as a PNG in its folder")
    verb.add_argument("run", type=Path)
    verb = add(export_verb, "export", "a run's figures, curve and provenance as a JSON file to commit under results/")
    verb.add_argument("run", type=Path)
    verb.add_argument("file", type=Path)
    verb = add(table_verb, "table", "the exported runs of a folder as a table in Markdown")
    verb.add_argument("folder", type=Path)
    verb = add(compare_verb, "compare", "two arms' runs of the same work: throughput, idle shares, spread")
    verb.add_argument("runs", type=Path, nargs="+")
    verb.add_argument("--export", type=Path, metavar="FILE", help="as a JSON file to commit under results/ too")
    verb = add(learning_verb, "learning", "exported runs of several arms: did they learn the same? With figures")
    verb.add_argument("folder", type=Path)
    verb = add(runs_verb, "runs", "every run and exported record below the paths: one row each; failed ones too")
    verb.add_argument("paths", type=Path, nargs="*", help="folders or files, any number of records below each")
    verb.add_argument("--wandb", metavar="ENTITY/PROJECT", help="the runs of a project in wandb, too")
    verb.add_argument("--price", type=float, help="of a GPU-hour, in your money: adds the cost")
    verb.add_argument("--csv", type=Path, metavar="FILE", help="all settings and metrics, for other programs")
    verb = add(
        arms_verb, "arms", "over the seeds: each arm's metrics with intervals, and what the arms make of each other"
    )
    verb.add_argument("paths", type=Path, nargs="*", help="folders or files, any number of records below each")
    verb.add_argument("--wandb", metavar="ENTITY/PROJECT", help="the runs of a project in wandb, too")
    verb.add_argument(
        "--metric", action="append", metavar="NAME", help="may be repeated; default: throughput and accuracy"
    )
    verb = add(metrics_verb, "metrics", "what every metric is: name, unit, definition")
    verb.add_argument("--write", action="store_true", help="into analysis/README.md")
    verb = add(claims_verb, "claims", "the paper's claims: what the records support, contradict, or say in small")
    verb.add_argument("paths", type=Path, nargs="*", help="records (default: results)")
    verb.add_argument("--write", action="store_true", help="the table into README.md, between its marks")
    verb = add(evaluation_verb, "evaluation", "the evaluations of a folder (training.evaluate) as tables in Markdown")
    verb.add_argument("folder", type=Path)
    verb = add(figures_verb, "figures", "every figure that the records allow, as a file each")
    verb.add_argument(
        "paths", nargs="*", help="folders of records, or wandb:ENTITY/PROJECT; default: the committed ones"
    )
    verb.add_argument("--out", type=Path, default=Path("runs/figures"), metavar="FOLDER", help="default: runs/figures")
    verb.add_argument("--only", metavar="NAME", help="one of them, as the file's name has it")
    verb.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    verb = add(report_verb, "report", "one HTML page: figures, tables, claims, and where each comes from")
    verb.add_argument(
        "paths", nargs="*", help="folders of records, or wandb:ENTITY/PROJECT; default: the committed ones"
    )
    verb.add_argument(
        "--out", type=Path, default=Path("runs/report.html"), metavar="FILE", help="default: runs/report.html"
    )
    arguments = parser.parse_args()
    try:
        arguments.verb(arguments)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def summary_verb(arguments) -> None:
    run = load_run(arguments.run)
    print(table(run))
    print(f"  record        {run.path}")
    if run.train_steps():
        print(f"  reward curve  {draw_reward_curve(run, run.path / 'reward.png')}")


def export_verb(arguments) -> None:
    export(load_run(arguments.run), arguments.file)


def table_verb(arguments) -> None:
    print(markdown_table(load_results(arguments.folder)))


def compare_verb(arguments) -> None:
    from analysis import compare

    runs = [load_run(path) for path in arguments.runs]
    result = compare.compare(runs)
    print(compare.table(result))
    if arguments.export:
        arguments.export.parent.mkdir(parents=True, exist_ok=True)
        compare.export(result, runs, arguments.export)


def learning_verb(arguments) -> None:
    from analysis import learning

    result = learning.compare(load_results(arguments.folder))
    print(learning.table(result))
    for path in learning.draw(result, arguments.folder):
        print(f"  figure  {path}")


def _many(arguments):
    from analysis.runs import join, load
    from analysis.wandb_runs import from_api

    if not arguments.paths and not arguments.wandb:
        raise ValueError("nothing to read: name a folder of runs, or --wandb ENTITY/PROJECT")
    found = [load(arguments.paths)]
    if arguments.wandb:
        found.append(from_api(arguments.wandb))
    return join(*found).warn()


def runs_verb(arguments) -> None:
    from analysis import tables

    found = _many(arguments)
    print(tables.runs(found.runs, arguments.price))
    if arguments.csv:
        tables.with_cost(found.runs, arguments.price).to_csv(arguments.csv, index=False)


def arms_verb(arguments) -> None:
    from analysis import tables

    print(tables.arms(_many(arguments).runs, arguments.metric))


def metrics_verb(arguments) -> None:
    from analysis.metrics import markdown, readme

    print(markdown())
    if arguments.write:
        Path("analysis/README.md").write_text(readme(), encoding="utf-8")


def claims_verb(arguments) -> None:
    from analysis import claims
    from analysis.runs import load

    result = claims.claims(load(arguments.paths or [Path("results")]).warn(lacking=False))
    print(claims.details(result))
    if arguments.write:
        claims.write(claims.table(result), claims.ROOT / "README.md")


def evaluation_verb(arguments) -> None:
    from analysis import evaluation

    evaluations, warnings = evaluation.load_evaluations(arguments.folder)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(evaluation.markdown_table(evaluations))


def figures_verb(arguments) -> None:
    from analysis.exhibits import KINDS, exhibit, records
    from analysis.style import save

    given = records(*arguments.paths) if arguments.paths else None
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in [arguments.only] if arguments.only else KINDS:
        shown = exhibit(name, given)
        for number, picture in enumerate(shown.pictures, start=1):
            path = arguments.out / f"{name}{'' if len(shown.pictures) == 1 else f'_{number}'}.{arguments.format}"
            print(f"{save(picture.figure, path)}: {picture.caption}")
        if not shown.pictures:
            print(f"{name}: not measured yet. {shown.missing}")


def report_verb(arguments) -> None:
    from analysis.report import write_report

    print(f"{write_report(arguments.out, arguments.paths)}: open it in a browser; it needs no network")


if __name__ == "__main__":
    sys.exit(main())
