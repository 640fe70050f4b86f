"""Looks for what would fail later: after a queue, after loading, or silently. `check` runs every rule and reports all at
once; what TRL 1.16.0 itself accepts without a word is marked "TRL does not check this".

Each rule is a function of the resolved recipe that yields problems: those of one value in launch/check_values.py, of what
the recipe names in launch/check_files.py, of what the sections say together in launch/check_sections.py.
"""

from launch import check_files, check_sections, check_values
from launch.problems import Problem


def check(recipe: dict) -> list[Problem]:
    """All problems and warnings of a resolved recipe; none that is an error means that it can be started."""
    problems = [problem for rule in check_values.RULES + check_files.RULES for problem in rule(recipe)]
    if not any(not problem.warning for problem in problems):  # the arithmetic needs the numbers to be there
        problems += [problem for rule in check_sections.RULES for problem in rule(recipe)]
    return problems
