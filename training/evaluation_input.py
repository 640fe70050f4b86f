"""What decides an evaluation: from the command line to settings and problems, with everything checked that can be without an
engine."""

import hashlib
import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from training.benches import (
    ADAPTER_CONFIG,
    BadInput,
    Subject,
    is_hub_id,
    problem,
    problems_of,
    read_recipe,
    subject,
    system_prompt,
)

DEFAULT_COMPLETION_TOKENS = 2048


def check_numbers(arguments) -> None:
    """Raises BadInput with every number that cannot be."""
    samples = arguments.samples
    ks = arguments.k or []
    bad_k = [k for k in ks if not 1 <= k <= samples]
    checks = (
        ("--samples", samples, samples >= 1, "must be at least 1", "leave it out for 1"),
        ("--k", bad_k, not bad_k, f"must be from 1 to --samples {samples}", "raise --samples, or leave --k out"),
        ("--problems", arguments.problems, (arguments.problems or 1) >= 1, "must be at least 1", "leave it out for all"),
        ("--temperature", arguments.temperature, (arguments.temperature or 0) >= 0, "must be 0 or more", "0 is greedy"),
        ("--samples", samples, samples == 1 or arguments.temperature != 0, "at temperature 0 all samples are the same",
         "--samples 1, or a higher temperature"),
        ("--top-p", arguments.top_p, arguments.top_p is None or 0 < arguments.top_p <= 1, "must be above 0 and at most 1",
         "leave it out for 1"),
        ("--max-completion-tokens", arguments.max_completion_tokens, (arguments.max_completion_tokens or 1) >= 1,
         "must be at least 1", f"leave it out for the recipe's, or {DEFAULT_COMPLETION_TOKENS}"),
        ("--tensor-parallel", arguments.tensor_parallel, arguments.tensor_parallel >= 1, "must be at least 1",
         "the number of GPUs that share the model"),
        ("--gpu-memory-utilization", arguments.gpu_memory_utilization, 0 < arguments.gpu_memory_utilization < 1,
         "must be between 0 and 1", "leave it out for 0.9"),
    )  # fmt: skip
    found = [problem(field, value, rule, mend) for field, value, holds, rule, mend in checks if not holds]
    if found:
        raise BadInput("\n".join(found))


def prepare(arguments) -> tuple[dict, list[dict]]:
    """What decides the evaluation, and its problems (prompt, gold, ids), with everything checked that can be without an engine.

    Raises:
        BadInput: with the field, its value, the rule, and how to mend it.
    """
    check_numbers(arguments)
    model = subject(arguments.model, arguments.revision)
    recipe = read_recipe(arguments.recipe) if arguments.recipe else model.recipe
    where = problems_of(arguments.bench, recipe, arguments.data, arguments.split)
    name, prompt = _system_prompt(arguments, recipe)
    reward = arguments.reward or next(
        (name for name in (recipe or {}).get("rewards", ()) if name.startswith("acc")), "accuracy"
    )
    use_hub_if_there(is_hub_id(model.path), not where["path"].startswith(("./", "/")))

    import torch

    if arguments.tensor_parallel > 1 and arguments.tensor_parallel > torch.cuda.device_count():
        rule = f"this machine has {torch.cuda.device_count()} GPUs"
        raise BadInput(
            problem("--tensor-parallel", arguments.tensor_parallel, rule, "leave it out, or use a larger machine")
        )
    trust = arguments.trust_remote_code or bool(recipe and recipe["model"]["trust_remote_code"])
    config, tokenizer = _load_config(model, trust)
    sampling = _sampling(arguments, recipe)
    context = getattr(config.get_text_config(), "max_position_embeddings", None)
    room = context - sampling["max_completion_tokens"] if context else 2**20
    if room < 1:
        rule = f"must leave room for the prompt in the model's context of {context} tokens"
        raise BadInput(problem("--max-completion-tokens", sampling["max_completion_tokens"], rule, "lower it"))
    rows, report = _read_problems(where, prompt, room, tokenizer)
    rows = rows[: arguments.problems]
    digest = hashlib.sha256(json.dumps([[row["prompt"][-1], row["gold"]] for row in rows]).encode()).hexdigest()
    dtype = arguments.dtype or _recipe_dtype(recipe) or str(config.dtype or "auto").removeprefix("torch.")
    settings = {
        "bench": arguments.bench,
        "model": {
            "path": model.path,
            "revision": model.revision,
            "commit": getattr(config, "_commit_hash", None),
            "weights_sha256": None if is_hub_id(model.path) else _weights_sha256(Path(model.path)),
            "dtype": dtype,
            "trust_remote_code": trust,
            "trained": model.trained,
            "adapter": model.adapter
            and model.adapter | {"weights_sha256": _weights_sha256(Path(model.adapter["path"]))},
            "base_of": recipe["name"]
            if recipe and not model.trained and not model.adapter and _same(recipe["model"]["path"], model.path)
            else None,
        },
        "data": where | report | {"problems": len(rows), "problems_sha256": digest},
        "prompt": {
            "system_prompt": prompt,
            "system_prompt_name": name,
            "chat_template_sha256": hashlib.sha256(tokenizer.chat_template.encode()).hexdigest(),
            "first_prompt": tokenizer.decode(rows[0]["ids"]),
        },
        "sampling": sampling,
        "reward": reward,
    }
    return settings, rows


def _system_prompt(arguments, recipe: dict | None) -> tuple[str | None, str | None]:
    if arguments.system_prompt is None and recipe:
        return recipe["data"]["system_prompt"], recipe["system_prompt"]
    name = arguments.system_prompt or "boxed"
    return name, system_prompt(name)


def _sampling(arguments, recipe: dict | None) -> dict:
    grpo = (recipe or {}).get("grpo", {})
    given = {"temperature": arguments.temperature, "top_p": arguments.top_p}
    defaults = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    chosen = {}
    for key, default in defaults.items():
        value = given.get(key) if given.get(key) is not None else grpo.get(key)
        chosen[key] = default if value is None else value
    tokens = arguments.max_completion_tokens or grpo.get("max_completion_length") or DEFAULT_COMPLETION_TOKENS
    ks = arguments.k or [*(2**power for power in range(arguments.samples.bit_length())), arguments.samples]
    return {"samples": arguments.samples, "k": sorted(set(ks))} | chosen | {
        "max_completion_tokens": tokens, "seed": arguments.seed,
    }  # fmt: skip


def _recipe_dtype(recipe: dict | None) -> str | None:
    """What trainer and engine computed in (launch/command.py, computes_in)."""
    return recipe and ("bfloat16" if recipe["grpo"].get("bf16") else recipe["model"]["dtype"])


def _same(a: str, b: str) -> bool:
    return a == b or (Path(a).exists() and Path(b).exists() and Path(a).samefile(b))


def use_hub_if_there(model_from_hub: bool, data_from_hub: bool) -> None:
    """Without need of the hub, or without a connection to it, the hub's libraries are told to use what is cached: they would
    try for half a minute each time. Before they are imported."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if "HF_HUB_OFFLINE" in os.environ:
        return
    if model_from_hub or data_from_hub:
        try:
            urllib.request.urlopen(os.environ.get("HF_ENDPOINT", "https://huggingface.co"), timeout=10).close()
            return
        except urllib.error.HTTPError:
            return  # it answers
        except OSError as error:
            print(f"warning: no connection to the hub ({error}); using what is cached", file=sys.stderr)
    os.environ["HF_HUB_OFFLINE"] = "1"


def _load_config(model: Subject, trust: bool):
    from transformers import AutoConfig, AutoTokenizer

    try:
        loading = {"revision": model.revision, "trust_remote_code": trust}
        config = AutoConfig.from_pretrained(model.path, **loading)
        tokenizer = AutoTokenizer.from_pretrained(model.path, **loading)
    except Exception as error:  # the hub, the network and damaged files have many errors; each means: no such model
        mend = "correct the name or the revision; without a connection, download it elsewhere and give the folder"
        found = "no such folder, and as a hub id" if is_hub_id(model.path) else "cannot be read"
        field = "MODEL"
        if model.adapter:
            field = f"{model.adapter['path']}/{ADAPTER_CONFIG}: base_model_name_or_path"
            mend = f"{mend}; a relative path there is taken from the working folder"
        raise BadInput(
            problem(field, model.path, f"{found}: {type(error).__name__}: {str(error)[:400]}", mend)
        ) from error
    if not tokenizer.chat_template:
        rule = "its tokenizer has no chat template, and a prompt is made with it"
        raise BadInput(
            problem("MODEL", model.path, rule, "put the template that it was trained with in chat_template.jinja")
        )
    if is_hub_id(model.path) and not model.revision:
        commit = getattr(config, "_commit_hash", None)
        print(
            f"warning: --revision is not given; this is commit {commit} (pin it with --revision {commit})",
            file=sys.stderr,
        )
    return config, tokenizer


def _read_problems(where: dict, prompt: str | None, room: int, tokenizer) -> tuple[list[dict], dict]:
    from training.data import Refused, load_split

    recipe = {"data": where | {"max_prompt_tokens": room}, "system_prompt": prompt}
    try:
        rows, report = load_split(recipe, where["split"], tokenizer)
    except Refused as refused:
        columns = f"the columns {where['prompt_column']} and {where['gold_column']}"
        mend = (
            f"give {columns} in a local file with --data FOLDER"
            if where["path"].startswith(("./", "/"))
            else f"with a connection the problems are fetched once and then cached; without one, put them with {columns} "
            f"into FOLDER/{where['split']}.jsonl and add --data FOLDER"
        )
        raise BadInput(problem("--bench", where["path"], str(refused), mend)) from refused
    if report["too_long_rows"]:
        print(f"warning: {report['too_long_rows']} problems are left out: longer than {room} tokens", file=sys.stderr)
    for_template = {"add_generation_prompt": True, "tokenize": True, "return_dict": True}
    return [
        row | {"ids": tokenizer.apply_chat_template(row["prompt"], **for_template)["input_ids"]} for row in rows
    ], report


def _weights_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
