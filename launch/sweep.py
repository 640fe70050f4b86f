"""A sweep: base recipes and the values that vary. Every point is a recipe like any other, checked before any is run.

experiments: [C1]           the claims that it bears on
combine: zip                the values side by side; `product` (the default): every combination
parts:                      one after the other
  - base: recipes/qwen1.5b_colocate.yaml
    vary: {grpo.per_device_train_batch_size: [7, 14], grpo.generation_batch_size: [56, 112]}
refused:                    points one would look for, and that `check` must refuse
  - grpo.vllm_tensor_parallel_size: 8
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from launch.problems import Problem, RecipeError
from launch.recipe import ROOT, Section, read_yaml, recipe_hash
from record import RunFolder


class Part(Section):
    base: str = Field(min_length=1, description="a recipe's path from the repository's root")
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        min_length=1, description="dotted key -> list of values"
    )


class Sweep(Section):
    experiments: list[Annotated[str, Field(pattern=r"^C([1-9]|1[0-2])$")]]
    combine: Literal["product", "zip"] = "product"
    parts: list[Part] = Field(min_length=1)
    refused: list[dict[str, Any]] = Field(default_factory=list)


@dataclass(frozen=True)
class Point:
    """One recipe of a sweep: its base, what is set over it, and the name that its runs get."""

    base: Path
    overrides: tuple[str, ...]
    name: str


def read_sweep(path: Path) -> Sweep:
    """Raises RecipeError with everything that is wrong with the file itself."""
    content = read_yaml(path)
    try:
        sweep = Sweep.model_validate(content)
    except ValidationError as error:
        problems = [
            Problem(
                ".".join(str(part) for part in item["loc"]), item["input"], item["msg"], "see recipes/sweeps/exp1.yaml"
            )
            for item in error.errors()
        ]
        raise RecipeError(str(path), problems) from None
    problems = []
    for number, part in enumerate(sweep.parts):
        lengths = {key: len(values) for key, values in part.vary.items()}
        if sweep.combine == "zip" and len(set(lengths.values())) > 1:
            problems.append(
                Problem(f"parts.{number}.vary", lengths, "zip needs lists of one length", "or combine: product")
            )
    if problems:
        raise RecipeError(str(path), problems)
    return sweep


def points(sweep: Sweep) -> list[Point]:
    """The sweep's points, in the order of the file."""
    found = []
    for part in sweep.parts:
        combined = (
            zip(*part.vary.values(), strict=True) if sweep.combine == "zip" else itertools.product(*part.vary.values())
        )
        found += [_point(part.base, dict(zip(part.vary, values, strict=True))) for values in combined]
    return found


def refused_points(sweep: Sweep) -> list[Point]:
    return [_point(part.base, values) for values in sweep.refused for part in sweep.parts]


def _point(base: str, values: dict) -> Point:
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
    stem = Path(base).name.removesuffix(".yaml")
    name = "+".join([stem, *(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())])
    path = Path(base)
    return Point(path if path.is_absolute() else ROOT / path, overrides, name.replace("/", "_").replace(" ", ""))


def finished_runs(runs: Path) -> dict[str, Path]:
    """Recipe hash -> a run under `runs` that finished with it."""
    found = {}
    for manifest_path in sorted(Path(runs).glob("*/*/manifest.json")):
        try:
            manifest = RunFolder(manifest_path.parent).manifest()
        except (OSError, ValueError):
            continue  # another version's, or torn: no run to count on
        if manifest.get("exit", {}).get("status") == "finished":
            found[manifest.get("recipe_hash")] = manifest_path.parent
    return found


def record_of(recipe: dict, finished: dict[str, Path]) -> Path | None:
    return finished.get(recipe_hash(recipe))
