"""Evaluations side by side: a table over the folders that `python -m training.evaluate` leaves."""

from pathlib import Path

from record import read_json

RESULT = "evaluation.json"
SCHEMA_VERSION = 1


def load_evaluations(folder: Path) -> tuple[list[dict], list[str]]:
    """The evaluations in the folders below `folder`, by name, and a warning for each that cannot be read.

    Raises:
        FileNotFoundError: there are none.
    """
    found, warnings = [], []
    for path in sorted(Path(folder).glob(f"*/{RESULT}")):
        try:
            result = read_json(path)
        except (OSError, ValueError) as error:
            warnings.append(f"{path}: left out: {error}")
            continue
        version = result.get("schema_version") if isinstance(result, dict) else None
        if version == SCHEMA_VERSION:
            found.append(result | {"name": path.parent.name})
        else:
            warnings.append(f"{path}: left out: schema_version is {version!r}, this code reads {SCHEMA_VERSION}")
    if not found:
        raise FileNotFoundError(
            f"{folder}: no evaluations (*/{RESULT}) there" + "".join(f"\n{line}" for line in warnings)
        )
    return found, warnings


def markdown_table(evaluations: list[dict]) -> str:
    """A row a model: what trained it, how it was prompted, and pass@1 and pass@N with their 95 % intervals. Other problems or
    another way of sampling are a table of their own, under a line that says which; an evaluation that did not finish has a row
    without figures."""
    groups: dict[tuple, list[dict]] = {}
    for result in evaluations:
        groups.setdefault(_asked(result), []).append(result)
    return "\n\n".join(_title(group[0]) + "\n\n" + _table(group) for _, group in sorted(groups.items()))


def _asked(result: dict) -> tuple:
    sampling = {key: value for key, value in result["sampling"].items() if key not in ("seed", "k")}
    return result["bench"], sampling["samples"], result["data"]["problems_sha256"], str(sorted(sampling.items()))


def _title(result: dict) -> str:
    data, sampling = result["data"], result["sampling"]
    revision = f", {data['revision'][:7]}" if data["revision"] else ""
    left_out = data["too_long_rows"] + data["without_gold_rows"]
    return (
        f"{result['bench']} ({data['path']}, {data['split']}{revision}): {data['problems']} problems"
        f"{f' ({left_out} left out: too long or without a gold)' if left_out else ''}, "
        f"{sampling['samples']} {'samples' if sampling['samples'] > 1 else 'sample'} each at temperature "
        f"{sampling['temperature']:g}, top-p {sampling['top_p']:g}, at most {sampling['max_completion_tokens']} tokens."
    )


def _table(group: list[dict]) -> str:
    most = group[0]["sampling"]["samples"]
    head = [
        "model", "trained by", "steps", "system prompt", "reward", "pass@1 [95 %]",
        *([f"pass@{most} [95 %]"] if most > 1 else []),
        "truncated", "over limits", "unusable gold", "tokens", "commit",
    ]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for result in sorted(group, key=lambda result: (_arm(result) or "", result["name"])):
        trained, figures = result["model"]["trained"], result["figures"]
        row = [_model(result), _arm(result) or "-", str(trained["steps"]) if trained else "-"]
        row += [result["prompt"]["system_prompt_name"] or "none", result["reward"]]
        if figures is None:
            row += [result["status"], *["-"] * (len(head) - 7)]
        else:
            over = sum(figures["reasons"].get(reason, 0) for reason in ("out_of_time", "out_of_memory"))
            row += [_estimate(figures, k) for k in dict.fromkeys((1, most))]
            row += [f"{figures['truncated_share']:.1%}", str(over), str(figures["unusable_gold_problems"])]
            row += [f"{figures['mean_completion_tokens']:.1f}"]
        lines.append("| " + " | ".join([*row, (result["git"]["commit"] or "-")[:7]]) + " |")
    return "\n".join(lines)


def _arm(result: dict) -> str | None:
    return result["model"]["trained"] and result["model"]["trained"]["arm"]


def _model(result: dict) -> str:
    model = result["model"]
    adapter = model.get("adapter")  # older evaluations have none
    if model["trained"]:
        return f"{model['trained']['recipe']}, seed {model['trained']['seed']}" + (", LoRA" if adapter else "")
    commit = model["revision"] or model["commit"]
    which = " (base)" if model["base_of"] else f" with adapters {adapter['path']}" if adapter else ""
    return model["path"] + (f"@{commit[:7]}" if commit else "") + which


def _estimate(figures: dict, k: int) -> str:
    entry = next((entry for entry in figures["pass_at_k"] if entry["k"] == k), None)
    return f"{entry['value']:.3f} [{entry['low']:.3f}, {entry['high']:.3f}]" if entry else "-"
