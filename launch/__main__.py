"""python -m launch check|show|run RECIPE [--set key=value ...]"""

import argparse
import subprocess
import sys
from pathlib import Path

from launch.problems import RecipeError
from launch.recipe import ROOT, load, recipe_hash

REFUSED = 2


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return arguments.verb(arguments)
    except RecipeError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"error: {error.filename or 'file system'}: {error.strerror or error}", file=sys.stderr)
        return 1


def checked(arguments) -> dict:
    """The resolved recipe; warnings go to stderr.

    Raises:
        RecipeError: it cannot be run.
    """
    from launch.check import check

    recipe = load(arguments.recipe, arguments.set)
    problems = check(recipe)
    if any(not problem.warning for problem in problems):
        raise RecipeError(str(arguments.recipe), problems)
    for problem in problems:
        print(problem, file=sys.stderr)
    return recipe


def check_verb(arguments) -> int:
    recipe = checked(arguments)
    print(f"{arguments.recipe}: fine ({recipe['recipe']['arm']}, hash {recipe_hash(recipe)[:12]})")
    return 0


def show_verb(arguments) -> int:
    from ruamel.yaml import YAML

    from launch.command import environment, pasteable
    from launch.derived import derive

    recipe = checked(arguments)
    yaml = YAML()
    yaml.default_flow_style = False
    print(f"# {arguments.recipe}, resolved (hash {recipe_hash(recipe)[:12]})")
    yaml.dump(recipe, sys.stdout)
    print("\n# What follows from it")
    for name, value in derive(recipe).items():
        print(f"{name}: {value}")
    folder = Path("runs") / recipe["name"] / "UTC-COMMIT-sSEED"
    print("\n# Variables, and why each is set (yours win)")
    for name, (value, why) in environment(recipe, folder).items():
        print(f"#   {name}={value}  {why}")
    print("\n# The command, on the one node, from the repository's root (`run` makes the folder first)")
    print(pasteable(recipe, folder))
    return 0


def run_verb(arguments) -> int:
    from launch.run import run

    recipe = checked(arguments)
    if arguments.dry_run:
        return show_verb(arguments)
    code, folder = run(recipe, arguments.runs, arguments.set)
    if code == 0:
        subprocess.run([sys.executable, "-m", "analysis", "summary", str(folder.path)], cwd=ROOT, check=False)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launch", description="Check, show and run a recipe.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for name, verb, text in (
        ("check", check_verb, "say whether the recipe can be run, and everything that is wrong with it (exit code 2)"),
        ("show", show_verb, "print the resolved recipe, the batch arithmetic, the environment and the command"),
        ("run", run_verb, "check it and run it; exit code 0 finished, 1 failed, 2 refused, 130 interrupted"),
    ):
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(verb=verb)
        sub.add_argument("recipe", type=Path)
        sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override, such as grpo.seed=1")
        if name == "run":
            sub.add_argument("--runs", type=Path, default=Path("runs"), help="where records go (default: runs)")
            sub.add_argument("--dry-run", action="store_true", help="as `show`, and start nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
