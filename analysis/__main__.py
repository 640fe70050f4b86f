"""python -m analysis summary RUN_FOLDER"""

import argparse
import sys
from pathlib import Path

from analysis.load import load_run
from analysis.summary import draw_reward_curve, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Tables and figures from run records.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    summary = verbs.add_parser("summary", help="a run's table, and its reward curve as a PNG in its folder")
    summary.add_argument("run", type=Path)
    arguments = parser.parse_args()
    try:
        run = load_run(arguments.run)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table(run))
    print(f"  record        {run.path}")
    if run.train_steps():
        print(f"  reward curve  {draw_reward_curve(run, run.path / 'reward.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
