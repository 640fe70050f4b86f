"""What an evaluation asks: the benchmarks on the hub, or the problems that a recipe held out."""

from dataclasses import dataclass
from pathlib import Path

from record import RunFolder, read_json

PROMPTS_FILE = Path(__file__).resolve().parent.parent / "launch" / "system_prompts.yaml"

# The revisions are those that public evaluation code pins. Both data sets have the columns problem, solution and answer.
BENCHES = {
    "math500": {
        "path": "HuggingFaceH4/MATH-500", "config": "default", "revision": "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        "split": "test", "prompt_column": "problem", "gold_column": "answer",
    },
    "aime24": {
        "path": "HuggingFaceH4/aime_2024", "config": "default", "revision": "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        "split": "train", "prompt_column": "problem", "gold_column": "answer",
    },
    "heldout": None,  # the recipe says
}  # fmt: skip

ADAPTER_CONFIG = "adapter_config.json"  # peft's
# The adapters that vLLM serves as they are (vllm/lora/peft_helper.py, 0.31.0). It refuses others once the engine is there, and
# takes no notice of the patterns, nor of another type.
PLAIN_LORA = {
    "peft_type": "LORA", "bias": "none", "use_dora": False, "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {},
}  # fmt: skip
MAX_RANK = 512

# Of a trained model's run: what analysis groups and pairs runs by.
MANIFEST = ("recipe_hash", "overrides", "derived", "seed", "git", "hardware", "start", "end", "exit")


def problem(field: str, value, rule: str, mend: str) -> str:
    """One finding about the input, told as `launch check` tells it."""
    return f"error: {field} = {value!r}\n    rule: {rule}\n    mend: {mend}"


class BadInput(Exception):
    """Input that cannot be evaluated, found before any engine has started."""


@dataclass(frozen=True)
class Subject:
    """A model to evaluate.

    `path` is a hub id or a folder with weights; `trained` says which run made them (None where no run of this project did), and
    `recipe` is that run's, resolved. `adapter` is the folder (`path`) and the rank (`r`) of LoRA adapters on these weights, if
    there are any.
    """

    path: str
    revision: str | None
    recipe: dict | None
    trained: dict | None
    adapter: dict | None = None


def is_hub_id(path: str) -> bool:
    return not path.startswith(("./", "/", "../", "~")) and not Path(path).exists()


def subject(model: str, revision: str | None) -> Subject:
    """What MODEL names: a hub id, a folder with weights, a run's folder (its last checkpoint) or one of its checkpoints.

    Args:
        revision: of the model on the hub; with adapters, of the one that they are for.

    Raises:
        BadInput: there is no such folder, or no weights in it.
    """
    if is_hub_id(model):
        if model.count("/") > 1:
            raise BadInput(problem("MODEL", model, "no such folder, and not a hub id (org/name)", "correct the path"))
        return Subject(model, revision, None, None)
    folder = Path(model).expanduser()
    if (folder / "manifest.json").is_file():
        folder = _last_checkpoint(folder)
    adapted = (folder / ADAPTER_CONFIG).is_file()
    if not (adapted or (folder / "config.json").is_file()) or not any(folder.glob("*.safetensors")):
        rule = f"must hold *.safetensors and config.json (LoRA: {ADAPTER_CONFIG}), or be a run that saved a checkpoint"
        mend = "correct the path; sharded DeepSpeed states alone become weights with the zero_to_fp32.py beside them"
        raise BadInput(problem("MODEL", model, rule, mend))
    path, own_revision, adapter = _adapted(folder) if adapted else (str(folder), None, None)
    if revision and not is_hub_id(path):
        rule = f"only a model on the hub has revisions, and {path} is a local folder"
        raise BadInput(problem("--revision", revision, rule, "leave --revision out"))
    revision = revision or own_revision
    run = RunFolder(folder.parent)
    if not (folder.name.startswith("checkpoint-") and run.manifest_path.is_file()):
        return Subject(path, revision, None, None, adapter)
    manifest = run.manifest()
    recipe = manifest["recipe"]
    if adapted:
        revision = revision or recipe["model"]["revision"]  # TRL leaves it out of adapter_config.json
    kept = {key: value for key, value in recipe.items() if key not in ("sources", "tracking", "deepspeed")}
    trained = {
        "run": run.path.resolve().name, "recipe": recipe["name"], "arm": recipe["recipe"]["arm"], "seed": manifest["seed"],
        "steps": int(folder.name.removeprefix("checkpoint-")),
        "manifest": {key: manifest.get(key) for key in MANIFEST} | {"recipe": kept},
    }  # fmt: skip
    return Subject(path, revision, recipe, trained, adapter)


def _adapted(folder: Path) -> tuple[str, str | None, dict]:
    """Path and revision of the model that these adapters are for, and what a Subject says of them.

    Raises:
        BadInput: they do not say, or are not of the kind that vLLM serves.
    """
    file = folder / ADAPTER_CONFIG
    try:
        config = dict(read_json(file))
    except (OSError, ValueError, TypeError) as error:
        rule = f"its {ADAPTER_CONFIG} must be peft's ({error})"
        raise BadInput(problem("MODEL", str(folder), rule, "put back the one that was saved with them")) from error
    base, rank = config.get("base_model_name_or_path"), config.get("r")
    if not base or not isinstance(base, str):
        rule = "must name the model that the adapters are for"
        raise BadInput(problem(f"{file}: base_model_name_or_path", base, rule, "write its hub id or its folder there"))
    merge = "merge the adapters into the weights (peft: merge_and_unload), and give the folder of these"
    for key, plain in PLAIN_LORA.items():
        if (config.get(key) or plain) != plain:
            rule = f"must be {plain!r}: vLLM serves plain LoRA, with one rank, alone"
            raise BadInput(problem(f"{file}: {key}", config[key], rule, merge))
    if not isinstance(rank, int) or not 1 <= rank <= MAX_RANK:
        rule = f"the adapters' rank, must be from 1 to {MAX_RANK}, which vLLM serves"
        raise BadInput(problem(f"{file}: r", rank, rule, merge))
    return base, config.get("revision"), {"path": str(folder), "r": rank}


def _last_checkpoint(run: Path) -> Path:
    found = [path for path in run.glob("checkpoint-*") if path.name.removeprefix("checkpoint-").isdigit()]
    if not found:
        rule = "this run saved no checkpoint, so that its trained weights are gone"
        mend = (
            "run it again with --set grpo.save_strategy=steps --set grpo.save_steps=1000000 --set grpo.save_total_limit=1, "
            "which saves once, after the last step"
        )
        raise BadInput(problem("MODEL", str(run), rule, mend))
    return max(found, key=lambda path: int(path.name.removeprefix("checkpoint-")))


def read_recipe(path: Path) -> dict:
    """The parts of a recipe that decide an evaluation, from a run's folder or a recipe's file.

    A file is taken as it is, for `python -m launch check` to judge; what it may leave out is filled in.

    Raises:
        BadInput: neither a run nor a recipe.
    """
    try:
        if path.is_dir():
            return RunFolder(path).manifest()["recipe"]
        recipe = _yaml(path)
        data, model = recipe["data"], recipe["model"]
        return recipe | {
            "name": path.stem,
            "model": {"revision": None, "trust_remote_code": False} | model,
            "data": {"config": None, "revision": None, "eval_split": None} | data,
            "system_prompt": system_prompt(data["system_prompt"], "data.system_prompt"),
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        mend = "give a run's folder or a recipe that passes `python -m launch check`"
        raise BadInput(problem("--recipe", str(path), f"{type(error).__name__}: {error}", mend)) from error


def system_prompt(name: str | None, field: str = "--system-prompt") -> str | None:
    """The text of a system prompt by its name; None for none.

    Raises:
        BadInput: there is none of that name.
    """
    prompts = _yaml(PROMPTS_FILE)
    if name not in (None, "none", *prompts):
        rule = "must be a name in launch/system_prompts.yaml, or none"
        raise BadInput(problem(field, name, rule, f"one of {', '.join(prompts)}; or add it there"))
    return prompts.get(name)


def _yaml(path: Path):
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(Path(path))
    except YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def problems_of(bench: str, recipe: dict | None, data: str | None, split: str | None) -> dict:
    """Where a bench's problems are: path, config, revision, split, prompt_column, gold_column.

    Args:
        recipe: whose held-out problems and columns `heldout` takes.
        data, split: a local folder or file instead of the bench's own, and the split to take of it.

    Raises:
        BadInput: no such bench, or nothing says where its problems are.
    """
    if bench not in BENCHES:
        raise BadInput(problem("--bench", bench, f"must be one of {', '.join(BENCHES)}", "choose one of them"))
    if bench != "heldout":
        where = dict(BENCHES[bench])
    elif recipe is None:
        rule = "a model that no run of this project made has no held-out problems"
        mend = "say whose with --recipe, a recipe's file or a run's folder"
        raise BadInput(problem("--bench", bench, rule, mend))
    else:
        section = recipe["data"]
        where = {key: section[key] for key in ("path", "config", "revision", "prompt_column", "gold_column")}
        where["split"] = section["eval_split"]
    if data is not None:
        if not Path(data).exists():
            rule = "there is no such file or folder"
            raise BadInput(
                problem("--data", data, rule, "give a folder with SPLIT.jsonl, .json or .parquet, or such a file")
            )
        local = data if data.startswith(("./", "/")) else f"./{data}"  # what training/data.py takes for a path
        where |= {"path": local, "config": None, "revision": None}
    where["split"] = split or where["split"] or ("test" if data else None)
    if where["split"] is None:
        rule = "the recipe holds no problems out (data.eval_split is null)"
        raise BadInput(
            problem("--bench", bench, rule, "name a split with --split, or local problems with --data FOLDER")
        )
    return where
