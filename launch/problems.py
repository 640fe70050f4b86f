"""What is wrong with a recipe, told so that a person can mend it."""

import difflib
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One finding. `field` is a dotted key of the recipe; a warning does not stop the run."""

    field: str
    value: object
    rule: str
    mend: str
    warning: bool = False

    def __str__(self) -> str:
        kind = "warning" if self.warning else "error"
        shown = "" if self.value is None else f" = {_short(self.value)}"
        return f"{kind}: {self.field}{shown}\n    rule: {self.rule}\n    mend: {self.mend}"


class RecipeError(Exception):
    """A recipe that cannot be run, with every problem found at once."""

    def __init__(self, name: str, problems: list[Problem]):
        self.name = name
        self.problems = problems
        errors = sum(not problem.warning for problem in problems)
        super().__init__(f"{name}: {errors} error(s)\n" + "\n".join(f"  {problem}" for problem in problems))


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def nearest(name: object, names) -> str | None:
    """The known name closest to a misspelt one, or None."""
    found = difflib.get_close_matches(str(name), [str(known) for known in names], n=1, cutoff=0.6)
    return found[0] if found else None
