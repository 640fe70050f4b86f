"""python -m launch check|plan|advise|show|preflight|run|nodes|pair|compare|sweep|table|variables ... : see --help of each."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from launch.problems import RecipeError
from launch.recipe import ROOT, apply_overrides, read_yaml, recipe_hash, resolve

FINISHED, FAILED, REFUSED = 0, 1, 2


def main() -> int:
    arguments = _parser().parse_args()
    try:
        return arguments.verb(arguments)
    except RecipeError as error:
        print(error, file=sys.stderr)
        return REFUSED
    except OSError as error:
        print(f"error: {error.filename or 'file system'}: {error.strerror or error}", file=sys.stderr)
        return FAILED


def checked(path: Path, overrides: list[str], *, point=(), name: str | None = None, shrunk: bool = False) -> dict:
    """The resolved recipe; warnings go to stderr, and what `--shrink` takes away.

    Args:
        overrides: a person's `--set`; the last word, over a shrunk recipe too.
        point: what a sweep sets over its base, before it is shrunk.
        name: what its runs are called; the file's stem by default.

    Raises:
        RecipeError: it cannot be run.
    """
    content = apply_overrides(read_yaml(path), list(point), str(path))
    name = name or path.name.removesuffix(".yaml")
    if shrunk:
        from launch.shrink import shrink

        _pass(resolve(content, name, str(path)), path, quiet=True)  # no recipe becomes sound by being small
        content, lost = shrink(content, str(path))
        name += "+shrunk"
        for line in lost:
            print(f"shrunk: {line}", file=sys.stderr)
    recipe = resolve(apply_overrides(content, overrides, str(path)), name, str(path))
    _pass(recipe, path)
    return recipe


def _pass(recipe: dict, path: Path, quiet: bool = False) -> None:
    from launch.check import check

    problems = check(recipe)
    if any(not problem.warning for problem in problems):
        raise RecipeError(str(path), problems)
    for problem in problems if not quiet else ():
        print(problem, file=sys.stderr)


def check_verb(arguments) -> int:
    recipe = checked(arguments.recipe, arguments.set)
    print(f"{arguments.recipe}: fine ({recipe['recipe']['arm']}, hash {recipe_hash(recipe)[:12]})")
    return FINISHED


def show_verb(arguments) -> int:
    from launch.machine import startable

    recipe = checked(arguments.recipe, arguments.set, shrunk=arguments.shrink)
    _show(recipe, str(arguments.recipe))
    for problem in startable(recipe):
        print(f"\n# Not to be started here: {problem.rule}. {problem.mend}")
    return FINISHED


def _show(recipe: dict, shown: str) -> None:
    from ruamel.yaml import YAML

    from launch.command import environment, pasteable
    from launch.derived import derive
    from launch.nodes import node_count

    yaml = YAML()
    yaml.default_flow_style = False
    print(f"# {shown}, resolved (hash {recipe_hash(recipe)[:12]})")
    yaml.dump(recipe, sys.stdout)
    print("\n# What follows from it")
    for name, value in derive(recipe).items():
        print(f"{name}: {value}")
    folder = Path("runs") / recipe["name"] / "UTC-COMMIT-sSEED"
    print("\n# Variables, and why each is set (yours win)")
    for name, (value, why) in environment(recipe, folder).items():
        print(f"#   {name}={value}  {why}")
    if recipe["cluster"]["server"]:
        _show_server(recipe, folder)
    if node_count(recipe) > 1:
        print(
            f"\n# {node_count(recipe)} nodes: `bash launch/multinode.sh {shown} --dry-run` prints the command of each"
        )
    else:
        print("\n# The command, on the one node, from the repository's root (`run` makes the folder first)")
        print(pasteable(recipe, folder))


def _show_server(recipe: dict, folder: Path) -> None:
    import shlex

    from launch.server import server_command, start_limit_seconds, weight_transfer
    from record import RunFolder

    limit = start_limit_seconds(recipe)
    print(
        f"\n# The server, started first; weights go over {weight_transfer(recipe)}; it has {limit:.0f} s to become healthy"
    )
    print(
        f"# (its log: {RunFolder(folder).logs_path / 'server.log'}; `run` finds a free port unless cluster.server.port is set)"
    )
    port = recipe["cluster"]["server"]["port"]
    print(shlex.join(server_command(recipe, "HOST", port or "PORT")))


def run_verb(arguments) -> int:
    if arguments.dry_run:
        return show_verb(arguments)
    recipe = checked(arguments.recipe, arguments.set, shrunk=arguments.shrink)
    return _run(recipe, arguments, str(arguments.recipe), arguments.set)


def _run(recipe: dict, arguments, shown: str, overrides: list[str]) -> int:
    from launch.environment import broken
    from launch.machine import startable
    from launch.nodes import node_count
    from launch.preflight import OK, cheap
    from launch.resume import StillGoing, unfinished
    from launch.run import run

    several = node_count(recipe) > 1
    if problems := [*startable(recipe), *broken(recipe, several)]:
        raise RecipeError(shown, problems)
    overrides = [*(["--shrink"] if arguments.shrink else []), *overrides]
    try:
        if several:
            from launch.together import run_on_nodes

            wait_seconds = getattr(arguments, "wait", 600.0)
            code, folder = run_on_nodes(recipe, arguments.runs, overrides, arguments.fresh, wait_seconds)
            leads = folder is not None
        else:
            for finding in cheap(recipe, arguments.runs):
                if finding.state != OK:
                    print(f"warning: {finding.what}: {finding.value}: {finding.mend}", file=sys.stderr)
            resumed = None if arguments.fresh else unfinished(recipe, arguments.runs)
            code, folder = run(recipe, arguments.runs, overrides, resumed)
            leads = True
    except StillGoing as error:
        print(f"error: {error}: another launcher has just taken it up", file=sys.stderr)
        return FAILED
    if code == FINISHED and leads:
        subprocess.run([sys.executable, "-m", "analysis", "summary", str(folder.path)], cwd=ROOT, check=False)
    return code


def nodes_verb(arguments) -> int:
    from launch.announce import announce
    from launch.nodes import Misplaced, hosts_fit, hosts_given

    recipe = checked(arguments.recipe, arguments.set, shrunk=arguments.shrink)
    try:
        given = hosts_given()
    except Misplaced as error:
        raise RecipeError(str(arguments.recipe), [error.problem]) from None
    if given and (problems := list(hosts_fit(recipe, given))):
        raise RecipeError(str(arguments.recipe), problems)
    if arguments.hosts:
        print("\n".join(given[1] if given else []))
    else:
        print(announce(recipe, str(arguments.recipe), given, arguments))
    return FINISHED


def preflight_verb(arguments) -> int:
    """Exit code 0 if nothing is wrong, 2 if something is."""
    from launch.nodes import node_count, place_here
    from launch.preflight import ERROR, findings, show
    from record.provenance import git_state

    recipe = checked(arguments.recipe, arguments.set, shrunk=arguments.shrink)
    if node_count(recipe) > 1 and os.environ.get("MASTER_ADDR"):
        from launch.together import inspect

        return inspect(recipe, arguments.runs, str(arguments.recipe), arguments.wait)
    alone = place_here({"MASTER_ADDR": "127.0.0.1"}) if node_count(recipe) > 1 else None
    found = findings(recipe, arguments.runs, alone, git_state())
    print(show(f"{recipe['name']}, this node", found))
    return REFUSED if any(finding.state == ERROR for finding in found) else FINISHED


def variables_verb(arguments) -> int:
    from launch.environment import README, markdown

    if arguments.write:
        README.write_text(markdown(), encoding="utf-8")
        print(README.relative_to(ROOT))
    else:
        print(markdown(), end="")
    return FINISHED


def pair_verb(arguments) -> int:
    from launch.pair import compare, report

    comparison = compare(*(checked(path, arguments.set) for path in (arguments.a, arguments.b)))
    print(report(comparison, (str(arguments.a), str(arguments.b))))
    return FINISHED if comparison.is_pair else FAILED


def compare_verb(arguments) -> int:
    from launch.compare import run_pair

    paths = (arguments.a, arguments.b)
    recipes = tuple(checked(path, arguments.set, shrunk=arguments.shrink) for path in paths)
    overrides = [*(["--shrink"] if arguments.shrink else []), *arguments.set]
    return run_pair(recipes, tuple(map(str, paths)), arguments.repeats, arguments.runs, overrides, arguments.export)


def sweep_verb(arguments) -> int:
    """Checks every point before it runs any: a queue must not end at its last point with a typing error."""
    from launch import sweep as sweeps

    points = sweeps.points(sweeps.read_sweep(arguments.sweep))
    recipes, problems = [], []
    for point in points:
        try:
            recipes.append(
                checked(point.base, arguments.set, point=point.overrides, name=point.name, shrunk=arguments.shrink)
            )
        except RecipeError as error:
            problems += error.problems
            print(f"{point.name}: {error}", file=sys.stderr)
    if problems:
        raise RecipeError(str(arguments.sweep), problems)
    worst = FINISHED
    for point, recipe in zip(points, recipes, strict=True):
        done = sweeps.record_of(recipe, sweeps.finished_runs(arguments.runs))
        state = f"finished: {done}" if done else "to run"
        print(f"{recipe_hash(recipe)[:12]}  {recipe['name']}  {state}", flush=True)
        if done or arguments.dry_run:
            continue
        try:
            code = _run(recipe, arguments, point.name, [*point.overrides, *arguments.set])
        except RecipeError as error:  # this machine cannot start it; the other points it may
            print(error, file=sys.stderr)
            code = REFUSED
        if code not in (FINISHED, FAILED, REFUSED):
            return code  # interrupted: the person wants the terminal back
        worst = max(worst, code)
    return worst


def _planned(arguments, overrides: list[str]) -> dict:
    """The resolved recipe, as `checked` has it, but with the memory left to the planner.

    Raises:
        RecipeError: it cannot be run for another reason.
    """
    from launch.check import check
    from launch.check_memory import memory

    path = arguments.recipe
    content = apply_overrides(read_yaml(path), overrides, str(path))
    recipe = resolve(content, path.name.removesuffix(".yaml"), str(path))
    of_memory = list(memory(recipe))
    problems = [problem for problem in check(recipe) if problem not in of_memory and not problem.warning]
    if problems:
        raise RecipeError(str(path), problems)
    return recipe


def plan_verb(arguments) -> int:
    """Exit code 0 if it fits or only just, 1 if it does not."""
    from launch.plan import TOO_LARGE, plan, show

    overrides = [*arguments.set]
    if arguments.gpu:
        overrides.append(f"cluster.gpu={arguments.gpu}")
    if arguments.nodes:
        overrides.append(f"cluster.nodes={arguments.nodes}")
    recipe = _planned(arguments, overrides)
    result = plan(recipe, arguments.gpu_gib)
    if result is None:
        print(f"{recipe['name']}: no plan, since it is for CPUs or its model's config.json is not here")
        return FINISHED
    print(show(recipe, result, arguments.gpu_gib, arguments.price))
    return FAILED if result.verdict == TOO_LARGE else FINISHED


def advise_verb(arguments) -> int:
    from launch.advise import advise, cluster_of, table

    count, gpu = cluster_of(arguments.gpus)
    print(table(advise(_planned(arguments, arguments.set), count, gpu)))
    return FINISHED


def table_verb(arguments) -> int:
    from launch.table import README, table

    if arguments.write:
        README.write_text(table(), encoding="utf-8")
        print(README.relative_to(ROOT))
    else:
        print(table(), end="")
    return FINISHED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launch", description="Check, show, compare and run recipes.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name, verb, text, *files, options=()):
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(verb=verb)
        for file in files:
            sub.add_argument(file, type=Path)
        for option, settings in options:
            sub.add_argument(option, **settings)

    override = (
        "--set",
        {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "override, such as grpo.seed=1"},
    )
    runs = ("--runs", {"type": Path, "default": Path("runs"), "help": "where records go (default: runs)"})
    small = (
        "--shrink",
        {"action": "store_true", "help": "at this machine's size, without a GPU: random model, sample of problems"},
    )
    fresh = (
        "--fresh",
        {"action": "store_true", "help": "start anew, even where a run of this recipe could be resumed"},
    )
    wait = (
        "--wait",
        {"type": float, "default": 600.0, "metavar": "SECONDS", "help": "for the other nodes (default: 600)"},
    )
    dry = ("--dry-run", {"action": "store_true", "help": "say what would run, and start nothing"})
    add("check", check_verb, "say whether the recipe can be run, and everything that is wrong with it (exit code 2)",
        "recipe", options=[override])  # fmt: skip
    add("show", show_verb, "print the resolved recipe, the batch arithmetic, the environment and the command",
        "recipe", options=[override, small])  # fmt: skip
    add("run", run_verb, "check it and run it, or resume it; exit code 0 finished, 1 failed, 2 refused, 130 interrupted, "
        "75 stopped so that the same command resumes", "recipe", options=[override, small, runs, fresh, wait, dry])  # fmt: skip
    add("preflight", preflight_verb, "say what would stand in the run's way on this node (with MASTER_ADDR: on all, if each "
        "starts it): versions, GPUs, memory, disk, ports, hub; exit code 2 if anything",
        "recipe", options=[override, small, runs, wait])  # fmt: skip
    add("nodes", nodes_verb, "what launch/multinode.sh is about to do: each node's command and environment, GPUs and GPU-hours",
        "recipe", options=[override, small, runs, fresh, dry,
                           ("--hosts", {"action": "store_true", "help": "only the hosts, one a line"})])  # fmt: skip
    add("pair", pair_verb, "say whether two recipes do the same work and differ in the arm alone; exit code 0 yes, 1 no",
        "a", "b", options=[override])  # fmt: skip
    add("compare", compare_verb, "run a pair back to back, in turns, and print throughput, idle shares and their spread",
        "a", "b", options=[override, small, runs,
                           ("--repeats", {"type": int, "default": 3, "choices": range(1, 100), "metavar": "N",
                                          "help": "runs of each, 1 to 99 (default: 3)"}),
                           ("--export", {"type": Path, "metavar": "FILE", "help": "the figures as JSON too"})])  # fmt: skip
    add("sweep", sweep_verb, "check every point of a sweep, and run or resume those without a finished record",
        "sweep", options=[override, small, runs, fresh, dry])  # fmt: skip
    add("plan", plan_verb, "say whether it fits, how long a step takes and what it costs; exit code 1 if it does not fit",
        "recipe", options=[override, ("--gpu", {"metavar": "KIND", "help": "instead of cluster.gpu"}),
                           ("--gpu-gib", {"type": float, "metavar": "N", "help": "instead of the kind's memory"}),
                           ("--nodes", {"type": int, "help": "instead of cluster.nodes"}),
                           ("--price", {"type": float, "help": "of a GPU-hour, in your money"})])  # fmt: skip
    add("advise", advise_verb, "rank the arms and settings that fit the recipe's batch on a cluster",
        "recipe", options=[override, ("--gpus", {"required": True, "metavar": "COUNTxKIND",
                                                 "help": "such as 8xH100-80GB"})])  # fmt: skip
    add("variables", variables_verb, "print launch/README.md, the table of environment variables, or write it",
        options=[("--write", {"action": "store_true", "help": "into launch/README.md"})])  # fmt: skip
    add("table", table_verb, "print recipes/README.md, or write it",
        options=[("--write", {"action": "store_true", "help": "into recipes/README.md"})])  # fmt: skip
    return parser


if __name__ == "__main__":
    sys.exit(main())
