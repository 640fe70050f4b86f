"""A recipe: one YAML file that says everything about one run. Its sections, and how it is read.

The `grpo` section takes GRPOConfig's own names (TRL 1.16.0) and passes them on as they are; launch/grpo_arguments.json
lists them with their types, launch/arguments.py says what each may be. `load` reads, overrides and validates;
`launch.check` then looks across the sections.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from launch.arguments import ALTERNATIVES, LEFT_OUT, MANAGED, RENAMED
from launch.problems import Problem, RecipeError, nearest
from launch.shapes import LINEARS

ROOT = Path(__file__).resolve().parent.parent

SOURCED = ("model", "data", "rewards", "cluster", "grpo", "lora")  # sections whose every value has a label in `sources`


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, regex_engine="python-re")


_HUB_ID = r"(?!.*(--|\.\.))[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?"  # as the hub validates ids
_PATH = rf"^(\./|/)\S(.*\S)?$|^{_HUB_ID}$"
_WANDB_NAME = r"^[^/\\#?%:\s]([^/\\#?%:]*[^/\\#?%:\s])?$"  # what wandb refuses, and blanks at the ends


class RecipeSection(Section):
    version: int = Field(
        ge=1, le=10**6, description="raised with every change that can move a number; CHANGELOG.md says why"
    )
    experiments: list[Annotated[str, Field(pattern=r"^C([1-9]|1[0-2])$")]] = Field(
        description="ids of the paper's claims that this run bears on: C1 to C12"
    )
    arm: Literal["colocate", "server", "generate", "continuous_batching"]


class ModelSection(Section):
    path: str = Field(
        max_length=4096, pattern=_PATH, description="hub id (org/name), or a folder that starts with ./ or /"
    )
    revision: str | None = Field(None, pattern=r"^\S+$", description="commit or tag on the hub")
    dtype: Literal["float32", "bfloat16"]
    attn_implementation: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    trust_remote_code: bool = False


class DataSection(Section):
    path: str = Field(
        max_length=4096,
        pattern=_PATH,
        description="hub id such as org/name, or a folder or file that starts with ./ or /",
    )
    config: str | None = Field(
        None, pattern=r"^\S+$", description="the hub's name for a subset; null for a local folder"
    )
    revision: str | None = Field(None, pattern=r"^\S+$", description="commit or tag on the hub")
    train_split: str = Field("train", pattern=r"^\w[\w.-]*$")
    eval_split: str | None = Field(
        None, pattern=r"^\w[\w.-]*$", description="held-out problems, graded before and after training"
    )
    prompt_column: str = Field(min_length=1)
    gold_column: str = Field(min_length=1)
    system_prompt: str | None = Field(description="a name in launch/system_prompts.yaml")
    max_prompt_tokens: int = Field(ge=1, le=2**20, description="longer prompts are left out, and counted")


class ServerSection(Section):
    """The GPUs of the server arm, which no training rank uses."""

    nodes: int = Field(ge=1, le=4096)
    gpus_per_node: int = Field(ge=1, le=64)
    on_training_node: bool = Field(
        False, description="these GPUs are of the (one) training node, beside its gpus_per_node"
    )
    tensor_parallel_size: int = Field(ge=1, le=1024)
    data_parallel_size: int = Field(1, ge=1, le=1024)
    gpu_memory_utilization: float = Field(
        0.9, gt=0, lt=1, description="vLLM's own default: nobody else is on these GPUs"
    )
    weight_transfer: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="auto: nccl, or gloo where there is no GPU"
    )
    interface: str | None = Field(
        None, min_length=1, description="by which the training nodes reach a server on nodes of its own"
    )
    port: int | None = Field(
        None, ge=1024, le=65535, description="for a firewall's sake; by default a free one is found"
    )


class ClusterSection(Section):
    nodes: int = Field(ge=1, le=4096)
    gpus_per_node: int = Field(
        ge=1, le=64, description="training ranks on each node; with gpu: cpu, ranks without a GPU"
    )
    gpu: str = Field(min_length=1, description="a kind of launch/clusters.py, such as H100-80GB; cpu for none")
    tensor_parallel_spans_nodes: bool = Field(False, description="leave for a TP group to cross nodes (slow)")
    server: ServerSection | None = Field(None, description="for the server arm alone")


class RewardSection(Section):
    model_config = ConfigDict(extra="allow", strict=True)
    weight: float


class LoraSection(Section):
    """Train low-rank adapters instead of the weights. The names are those of peft's LoraConfig."""

    r: int = Field(ge=1, le=512, description="the adapters' rank; vLLM evaluates up to 512")
    lora_alpha: float = Field(gt=0, description="an adapter counts lora_alpha / r times")
    target_modules: Literal["all-linear"] | Annotated[list[Literal[*LINEARS]], Field(min_length=1)] = Field(
        description=f"all-linear, or a list of {', '.join(LINEARS)}"
    )


class SpeedupsSection(Section):
    """What this project does faster than TRL, with the same result."""

    score_in_loss: bool = Field(
        False, description="the importance ratio from the loss's own forward pass, not from a scoring pass before it"
    )
    outputs_when_finished: bool = Field(
        False, description="the colocated engine's outputs are processed once a completion, not once a token"
    )


class TrackingSection(Section):
    project: str = Field(max_length=128, pattern=_WANDB_NAME)
    group: str | None = Field(None, min_length=1, max_length=128)
    tags: list[Annotated[str, Field(min_length=1, max_length=64)]] = []


@cache
def grpo_arguments() -> dict[str, dict]:
    return json.loads((ROOT / "launch" / "grpo_arguments.json").read_text())


@cache
def grpo_section() -> type[Section]:
    python_types = {"bool": bool, "int": int, "float": float, "str": str, "dict": dict, "list": list, "null": None}
    fields = {}
    for name, argument in grpo_arguments().items():
        kinds = [python_types[kind] for kind in argument["types"] if not (kind == "str" and "choices" in argument)]
        if "choices" in argument:
            kinds.append(Literal[tuple(argument["choices"])])
        union: Any = kinds[0]
        for kind in kinds[1:]:
            union = union | kind
        fields[name] = (union, Field(None, alias=name))
    return create_model("GrpoSection", __base__=Section, **fields)


class Recipe(Section):
    """A recipe whose sections are each well formed (`launch.check` looks across them)."""

    recipe: RecipeSection
    model: ModelSection
    data: DataSection
    rewards: dict[str, float | RewardSection] = Field(min_length=1)
    cluster: ClusterSection
    accelerate: str
    grpo: dict[str, Any]
    lora: LoraSection | None = None
    speedups: SpeedupsSection = SpeedupsSection()
    tracking: TrackingSection
    sources: dict[str, str]


def read_yaml(path: Path) -> dict:
    """The mapping in a YAML 1.2 file: `3e-6` is a number, `no` is a word, a key given twice is refused.

    Raises:
        RecipeError: the file is missing, is no YAML, or holds no mapping.
    """
    path = Path(path)
    try:
        content = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = nearest(path.name, [file.name for file in path.parent.glob("*.yaml")])
        mend = (
            f"did you mean {path.parent / near}?"
            if near
            else "give the path of a file, such as recipes/tiny_colocate.yaml"
        )
        raise RecipeError(str(path), [Problem("file", str(path), "the file must exist", mend)]) from None
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem("file", str(path), f"must be readable text ({error})", "look at the file")
        raise RecipeError(str(path), [problem]) from None
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        what = getattr(error, "problem", None) or str(error)
        raise RecipeError(str(path), [Problem(where, None, f"must be YAML 1.2: {what}", "mend that line")]) from None
    if not isinstance(content, dict):
        problem = Problem(
            "file", content, "must hold the sections of a recipe", "start from recipes/tiny_colocate.yaml"
        )
        raise RecipeError(str(path), [problem])
    return content


def apply_overrides(content: dict, overrides: list[str], name: str) -> dict:
    """`content` with each `dotted.key=value` set; values are read as YAML.

    Raises:
        RecipeError: an override without `=`, with an unreadable value, or into something that is no mapping.
    """
    content = json.loads(json.dumps(content, default=str))
    problems = []
    for override in overrides:
        key, equals, text = override.partition("=")
        try:
            value = YAML(typ="safe", pure=True).load(text) if equals else None
        except YAMLError as error:
            problems.append(Problem(key, text, f"the value must be YAML ({error.problem})", "quote it"))
            continue
        *parents, last = key.strip().split(".")
        if not equals or not last or not all(parents):
            problems.append(Problem("--set", override, "must be dotted.key=value", "such as --set grpo.seed=1"))
            continue
        node = content
        for depth, parent in enumerate(parents):
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                problems.append(
                    Problem(key, text, f"{'.'.join(parents[: depth + 1])} holds no keys", "see `launch show`")
                )
                break
        else:
            node[last] = value
            if parents and parents[0] in SOURCED and isinstance(content.get("sources"), dict):
                content["sources"][".".join([*parents, last])] = "ours: set for this run"
            for pair in ALTERNATIVES:  # whoever sets the one means it instead of the other
                if parents == ["grpo"] and last in pair:
                    other = pair[1 - pair.index(last)]
                    node.pop(other, None)
                    if isinstance(content.get("sources"), dict):
                        content["sources"].pop(f"grpo.{other}", None)
    if problems:
        raise RecipeError(name, problems)
    return content


@cache
def system_prompts() -> dict[str, str]:
    return read_yaml(ROOT / "launch" / "system_prompts.yaml")


def load(path: Path, overrides: list[str] = ()) -> dict:
    """The resolved recipe of a file, named after it (`resolve` says what that is).

    Raises:
        RecipeError: with all problems of form at once; `launch.check.check` finds those across sections.
    """
    path = Path(path)
    return resolve(
        apply_overrides(read_yaml(path), list(overrides), str(path)), path.name.removesuffix(".yaml"), str(path)
    )


def resolve(content: dict, name: str, shown: str) -> dict:
    """The resolved recipe: every field present, rewards as name -> {weight, parameters}, the system prompt's text,
    DeepSpeed's configuration (null without it), and `name`: all that decides the run.

    Args:
        content: the sections as the YAML file has them.
        shown: what error messages call it.

    Raises:
        RecipeError: with all problems of form at once.
    """
    content, planned = _without_auto(content)
    problems = []
    recipe = None
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        problems += _explain_all(error)
    grpo = content.get("grpo")
    if isinstance(grpo, dict):
        problems += _grpo_problems(grpo)
    if recipe and recipe.accelerate not in accelerate_names():
        near = nearest(recipe.accelerate, accelerate_names())
        mend = f"did you mean {near}?" if near else f"one of {', '.join(accelerate_names())}"
        problems.append(Problem("accelerate", recipe.accelerate, "must name a file in accelerate_configs/", mend))
    if problems:
        raise RecipeError(shown, problems)
    resolved = recipe.model_dump()
    resolved["rewards"] = {
        key: value if isinstance(value, dict) else {"weight": value} for key, value in resolved["rewards"].items()
    }
    resolved["name"] = name
    resolved["deepspeed"] = deepspeed_config(resolved["accelerate"])
    prompt = resolved["data"]["system_prompt"]
    resolved["system_prompt"] = (
        system_prompts().get(prompt) if prompt else None
    )  # the text itself decides, not its name
    if planned:
        _fill_auto(resolved, shown)
    return resolved


AUTO = "vllm_gpu_memory_utilization"  # the one value that the planner can choose (launch/plan.py)


def _without_auto(content: dict) -> tuple[dict, bool]:
    grpo = content.get("grpo")
    if not isinstance(grpo, dict) or grpo.get(AUTO) != "auto":
        return content, False
    return content | {"grpo": grpo | {AUTO: 0.5}}, True


def _fill_auto(resolved: dict, shown: str) -> None:
    """Puts the planner's value where `auto` was; the recipe in the manifest says whose it is."""
    from launch.plan import auto_utilization

    try:
        resolved["grpo"][AUTO] = auto_utilization(resolved)
    except (ValueError, KeyError, ZeroDivisionError) as error:
        mend = "state a number; `python -m launch plan` shows what is short"
        raise RecipeError(shown, [Problem(f"grpo.{AUTO}", "auto", str(error), mend)]) from None
    resolved["sources"][f"grpo.{AUTO}"] = "ours: auto, chosen by launch/plan.py"


def accelerate_names() -> list[str]:
    return sorted(file.stem for file in (ROOT / "accelerate_configs").glob("*.yaml"))


def topology(accelerate: str) -> dict | None:
    """The content of accelerate_configs/<accelerate>.yaml, or None if there is no such file."""
    path = ROOT / "accelerate_configs" / f"{accelerate}.yaml"
    return read_yaml(path) if path.is_file() else None


def deepspeed_config(accelerate: str) -> dict | None:
    """DeepSpeed's own configuration, from the file that the accelerate file names; None without DeepSpeed."""
    section = (topology(accelerate) or {}).get("deepspeed_config")
    return json.loads((ROOT / section["deepspeed_config_file"]).read_text()) if section else None


def recipe_hash(resolved: dict) -> str:
    """sha256 over the canonical JSON of all that decides the run: equal hashes, equal runs as far as the recipe decides.
    What only describes it (name, tracking, sources, the claims it bears on) is left out."""
    decides = {key: value for key, value in resolved.items() if key not in ("name", "tracking", "sources", "recipe")}
    decides["arm"] = resolved["recipe"]["arm"]
    for section in ("lora", "speedups"):
        if not any((decides[section] or {}).values()):
            del decides[section]  # a recipe without it is the run that it was before the section existed
    return hashlib.sha256(json.dumps(decides, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _grpo_problems(grpo: dict) -> list[Problem]:
    problems = []
    unknown = [key for key in grpo if key not in grpo_arguments()]
    for key in unknown:
        if key in RENAMED:
            mend = f"use {RENAMED[key]}"
        else:
            near = nearest(key, grpo_arguments())
            mend = f"did you mean {near}?" if near else "see launch/grpo_arguments.json for the names"
        problems.append(Problem(f"grpo.{key}", grpo[key], "not a name of TRL 1.16.0's GRPOConfig", mend))
    for key, value in grpo.items():
        if key in MANAGED:
            problems.append(Problem(f"grpo.{key}", value, "not set in `grpo`", MANAGED[key]))
        if key in LEFT_OUT:
            problems.append(Problem(f"grpo.{key}", value, "not offered in recipes", LEFT_OUT[key]))
    try:
        grpo_section().model_validate({key: value for key, value in grpo.items() if key not in unknown})
    except ValidationError as error:
        seen = set()
        for item in error.errors():  # pydantic reports each alternative of a union; one line a field is enough
            key = str(item["loc"][0])
            if key not in seen:
                seen.add(key)
                argument = grpo_arguments()[key]
                kinds = " or ".join(str(choice) for choice in argument.get("choices", argument["types"]))
                mend = f"TRL's default is {argument['default']!r}" + _number_hint(grpo[key])
                problems.append(Problem(f"grpo.{key}", grpo[key], f"must be {kinds}", mend))
    return problems


def _number_hint(value) -> str:
    try:
        float(value)
    except (TypeError, ValueError):
        return ""
    return "; take the quotes off the number" if isinstance(value, str) else ""


def _explain_all(error: ValidationError) -> list[Problem]:
    """pydantic's errors in our words, one a field (it reports each alternative of a union)."""
    problems = {}
    for item in error.errors():
        problem = _explain(item)
        if problem.field not in problems or item["type"] in ("missing", "extra_forbidden"):
            problems[problem.field] = problem
    # where one alternative takes the value and minds a part of it, the others' refusal of the whole says nothing
    inner = {field.rpartition(".")[0] for field in problems}
    return [problem for field, problem in problems.items() if field not in inner]


def _section(location: list) -> type[BaseModel] | None:
    """The model whose fields are at `location`; None where there are no named ones (rewards, sources, a list)."""
    model = Recipe
    for part in location:
        field = model.model_fields.get(part) if model else None
        kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
        model = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
    return model


def _field(location: list):
    model = _section(location[:-1])
    return model.model_fields.get(location[-1]) if model and location else None


def _explain(item: dict) -> Problem:
    location = [part for part in item["loc"] if part not in ("float", "RewardSection", "str", "[key]")]
    location = [part for part in location if not str(part).startswith(("literal[", "list["))]  # of a union
    field = ".".join(str(part) for part in location)
    model, last = _section(location[:-1]), location[-1] if location else None
    known = model.model_fields if model else {}
    named = known.get(last) or (
        _field(location[:-1]) if isinstance(last, int) else None
    )  # an item of a list: the list's
    described = named.description if named else None
    if item["type"] == "missing":
        return Problem(field, None, "must be stated", described or f"add {last}; CONTRIBUTING.md shows the sections")
    if item["type"] == "extra_forbidden":
        near = nearest(last, known)
        mend = f"did you mean {near}?" if near else f"known here: {', '.join(known)}"
        return Problem(field, item["input"], "unknown key", mend)
    mend = (described or "see recipes/tiny_colocate.yaml") + _number_hint(item["input"])
    rule = (
        "must be written as the mend says" if item["type"] == "string_pattern_mismatch" and described else item["msg"]
    )
    return Problem(field, item["input"], rule[0].lower() + rule[1:], mend)
