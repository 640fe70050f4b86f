"""python -m analysis summary|export|table|compare|learning|runs|arms|metrics|claims|evaluation ...: see --help of each."""

import argparse
import sys
from pathlib import Path

from analysis.load import load_run
from analysis.results import export, load_results, markdown_table
from analysis.summary import draw_reward_curve, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Tables and figures from run records.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    verb = verbs.add_parser("summary", help="a run's table, and its reward curve as a PNG in its folder")
    verb.add_argument("run", type=Path)
    verb.set_defaults(verb=summary_verb)
    verb = verbs.add_parser(
        "export", help="a run's figures, curve and provenance as a JSON file to commit under results/"
    )
    verb.add_argument("run", type=Path)
    verb.add_argument("file", type=Path)
    verb.set_defaults(verb=export_verb)
    verb = verbs.add_parser("table", help="the exported runs of a folder as a table in Markdown")
    verb.add_argument("folder", type=Path)
    verb.set_defaults(verb=table_verb)
    verb = verbs.add_parser("compare", help="two arms' runs of the same work: throughput, idle shares, spread")
    verb.add_argument("runs", type=Path, nargs="+")
    verb.add_argument("--export", type=Path, metavar="FILE", help="as a JSON file to commit under results/ too")
    verb.set_defaults(verb=compare_verb)
    verb = verbs.add_parser("learning", help="exported runs of several arms: did they learn the same? With figures")
    verb.add_argument("folder", type=Path)
    verb.set_defaults(verb=learning_verb)
    verb = verbs.add_parser("runs", help="every run and exported record below the paths: one row each; failed ones too")
    verb.add_argument("paths", type=Path, nargs="+")
    verb.add_argument("--price", type=float, help="of a GPU-hour, in your money: adds the cost")
    verb.add_argument("--csv", type=Path, metavar="FILE", help="all settings and metrics, for other programs")
    verb.set_defaults(verb=runs_verb)
    verb = verbs.add_parser(
        "arms", help="over the seeds: each arm's metrics with intervals, and what the arms make of each other"
    )
    verb.add_argument("paths", type=Path, nargs="+")
    verb.add_argument(
        "--metric", action="append", metavar="NAME", help="may be repeated; default: throughput and accuracy"
    )
    verb.set_defaults(verb=arms_verb)
    verb = verbs.add_parser("metrics", help="what every metric is: name, unit, definition")
    verb.set_defaults(verb=metrics_verb)
    verb = verbs.add_parser("claims", help="the paper's claims: what the records support, contradict, or say in small")
    verb.add_argument("paths", type=Path, nargs="*", help="records (default: results)")
    verb.add_argument("--write", action="store_true", help="the table into README.md, between its marks")
    verb.set_defaults(verb=claims_verb)
    verb = verbs.add_parser("evaluation", help="the evaluations of a folder (training.evaluate) as tables in Markdown")
    verb.add_argument("folder", type=Path)
    verb.set_defaults(verb=evaluation_verb)
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


def runs_verb(arguments) -> None:
    from analysis import tables
    from analysis.runs import load

    found = load(arguments.paths).warn()
    print(tables.runs(found.runs, arguments.price))
    if arguments.csv:
        tables.with_cost(found.runs, arguments.price).to_csv(arguments.csv, index=False)


def arms_verb(arguments) -> None:
    from analysis import tables
    from analysis.runs import load

    print(tables.arms(load(arguments.paths).warn().runs, arguments.metric))


def metrics_verb(arguments) -> None:
    from analysis.metrics import markdown

    print(markdown())


def claims_verb(arguments) -> None:
    from analysis import claims
    from analysis.runs import load

    result = claims.claims(load(arguments.paths or [claims.ROOT / "results"]).warn(lacking=False))
    print(claims.details(result))
    if arguments.write:
        claims.write(claims.table(result), claims.ROOT / "README.md")


def evaluation_verb(arguments) -> None:
    from analysis import evaluation

    evaluations, warnings = evaluation.load_evaluations(arguments.folder)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(evaluation.markdown_table(evaluations))


if __name__ == "__main__":
    sys.exit(main())
