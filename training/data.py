"""From a data set to what TRL wants: the columns `prompt` (chat messages) and `gold` (text)."""

from pathlib import Path

from datasets import Dataset, load_dataset


class Refused(Exception):
    """Bad input, found by a rank before any engine has started. The launcher ends with exit code 2."""


def load_split(recipe: dict, split: str, tokenizer, at_least_rows: int = 1) -> tuple[Dataset, dict]:
    """One split of the recipe's data set, and a report of what was left out.

    Args:
        at_least_rows: problems that must be left. TRL's sampler drops an incomplete generation batch: with fewer prompts
            than one has, training would end without a step.

    Returns:
        The rows with `prompt` (list of messages) and `gold` (str), in the data set's order, and a report with the counts
        `rows`, `kept_rows`, `too_long_rows`, `without_gold_rows` and `longest_prompt_tokens`.

    Raises:
        Refused: no such data set or split, a missing column, or too few rows left.
    """
    data = recipe["data"]
    rows = _read(data, split)
    for key in ("prompt_column", "gold_column"):
        if data[key] not in rows.column_names:
            raise Refused(
                f"data.{key} = {data[key]!r}: not a column of the split {split}; they are {rows.column_names}"
            )
    system = [{"role": "system", "content": recipe["system_prompt"]}] if recipe["system_prompt"] else []

    def convert(row):
        prompt = [*system, {"role": "user", "content": str(row[data["prompt_column"]])}]
        gold = row[data["gold_column"]]
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)
        return {
            "prompt": prompt,
            "gold": "" if gold is None else str(gold).strip(),
            "prompt_tokens": len(ids["input_ids"]),
        }

    converted = rows.map(convert, remove_columns=rows.column_names, keep_in_memory=True, load_from_cache_file=False)
    lengths = converted["prompt_tokens"]
    long = [length > data["max_prompt_tokens"] for length in lengths]
    without = [not gold for gold in converted["gold"]]
    kept = converted.select([i for i in range(len(converted)) if not long[i] and not without[i]])
    report = {
        "rows": len(converted),
        "kept_rows": len(kept),
        "too_long_rows": sum(long),
        "without_gold_rows": sum(without),
        "longest_prompt_tokens": max(lengths, default=None),
    }
    if len(kept) < at_least_rows:
        raise Refused(
            f"data.path = {data['path']!r}: {len(kept)} rows of the split {split} are left and {at_least_rows} are needed for "
            f"one generation batch ({report}); raise data.max_prompt_tokens = {data['max_prompt_tokens']}, look at the gold "
            f"column, or sample from fewer prompts"
        )
    return kept.remove_columns("prompt_tokens"), report


def _read(data: dict, split: str) -> Dataset:
    path = data["path"]
    try:
        if not path.startswith(("./", "/")):
            return load_dataset(path, data["config"], split=split, revision=data["revision"])
        files = (
            [Path(path)]
            if Path(path).is_file()
            else [Path(path) / f"{split}.{end}" for end in ("jsonl", "json", "parquet")]
        )
        file = next(file for file in files if file.is_file())
        if file.suffix == ".parquet":
            return Dataset.from_parquet(str(file), keep_in_memory=True)
        return Dataset.from_json(str(file), keep_in_memory=True)
    except StopIteration:
        raise Refused(f"data.path = {path!r}: no {split}.jsonl, .json or .parquet there") from None
    except (
        Exception
    ) as error:  # the hub, the network and the parsers have many errors; each means that the data is not there
        raise Refused(f"data.path = {path!r}, split {split}: {type(error).__name__}: {error}") from error
