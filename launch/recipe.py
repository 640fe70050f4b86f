"""A recipe: one YAML file that says everything about one run. Its sections, and how it is read.

The `grpo` section takes GRPOConfig's own names (TRL 1.16.0) and passes them on as they are; launch/grpo_arguments.json
lists them with their types. `load` reads, overrides and validates; `launch.check` then looks across the sections.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from launch.problems import Problem, RecipeError, nearest

ROOT = Path(__file__).resolve().parent.parent

# Set by the recipe's other sections or by the launcher; stating them in `grpo` would be a second way to say the same.
MANAGED = {
    "output_dir": "the launcher makes the run's folder",
    "run_name": "the launcher names the run after the recipe",
    "logging_steps": "the run record has a line for every step",
    "logging_strategy": "the run record has a line for every step",
    "logging_first_step": "the run record has a line for every step",
    "disable_tqdm": "the launcher draws the progress",
    "report_to": "use the section `tracking`",
    "use_vllm": "use recipe.arm",
    "vllm_mode": "use recipe.arm",
    "use_transformers_continuous_batching": "use recipe.arm",
    "use_transformers_paged": "use recipe.arm: continuous_batching",
    "model_init_kwargs": "use the section `model`",
    "trust_remote_code": "use model.trust_remote_code",
    "reward_weights": "use the section `rewards`: name -> weight",
    "deepspeed": "use the section `accelerate`",
    "fsdp": "use the section `accelerate`",
    "fsdp_config": "use the section `accelerate`",
    "parallelism_config": "use the section `accelerate`",
    "accelerator_config": "use the section `accelerate`",
    "use_cpu": "use cluster.gpu: cpu",
    "vllm_server_base_url": "the launcher starts the server and knows its address",
    "vllm_server_host": "the launcher starts the server and knows its address",
    "vllm_server_port": "the launcher starts the server and knows its address",
    "vllm_group_port": "the launcher starts the server and knows its address",
    "resume_from_checkpoint": "the launcher decides whether to resume",
    "vllm_importance_sampling_cap": "use vllm_importance_sampling_clip_max",
    "auto_find_batch_size": "state the batch: shrinking it would break the prompt groups",
    "do_train": "every recipe trains",
    "do_eval": "use data.eval_split",
    "eval_on_start": "use data.eval_split: the held-out problems are graded before and after",
    "remove_unused_columns": "the rewards need the gold column",
}

# Names that older TRL versions had, and where their meaning lives now.
RENAMED = {
    "max_prompt_length": "data.max_prompt_tokens",
    "vllm_device": "recipe.arm and cluster",
    "vllm_dtype": "model.dtype",
    "vllm_max_model_len": "grpo.vllm_max_model_length",
    "num_processes": "cluster.nodes and cluster.gpus_per_node",
    "gpu_memory_utilization": "grpo.vllm_gpu_memory_utilization",
    "tensor_parallel_size": "grpo.vllm_tensor_parallel_size",
    "vllm_sleep": "grpo.vllm_enable_sleep_mode",
}

# TRL's defaults for these have moved between versions, or decide the algorithm: a recipe states every one.
STATED = (
    "seed", "per_device_train_batch_size", "gradient_accumulation_steps", "num_generations", "num_iterations",
    "max_completion_length", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "loss_type", "beta",
    "epsilon", "scale_rewards", "mask_truncated_completions", "learning_rate", "lr_scheduler_type", "warmup_steps",
    "weight_decay", "max_grad_norm", "optim", "bf16", "gradient_checkpointing", "shuffle_dataset",
)  # fmt: skip
STATED_WITH_VLLM = (
    "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
    "vllm_max_model_length",
)  # fmt: skip
STATED_COLOCATED = ("vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RecipeSection(Section):
    version: int = Field(ge=1, description="raised with every change that can move a number; CHANGELOG.md says why")
    experiments: list[str] = Field(description="ids of the paper's claims that this run bears on")
    arm: Literal["colocate", "generate", "continuous_batching"]


class ModelSection(Section):
    path: str = Field(min_length=1, description="hub id, or a folder that starts with ./ or /")
    revision: str | None = Field(None, description="commit or tag on the hub")
    dtype: Literal["float32", "bfloat16", "float16"]
    attn_implementation: str = "sdpa"
    trust_remote_code: bool = False


class DataSection(Section):
    path: str = Field(min_length=1, description="hub id, or a folder or file that starts with ./ or /")
    config: str | None = None
    revision: str | None = None
    train_split: str = "train"
    eval_split: str | None = Field(None, description="held-out problems, graded before and after training")
    prompt_column: str
    gold_column: str
    system_prompt: str | None = Field(description="a name in launch/system_prompts.yaml")
    max_prompt_tokens: int = Field(ge=1, description="longer prompts are left out, and counted")


class ClusterSection(Section):
    nodes: int = Field(ge=1)
    gpus_per_node: int = Field(ge=1, description="training ranks on each node; with gpu: cpu, ranks without a GPU")
    gpu: str = Field(min_length=1, description="such as H100-80GB; cpu for none")
    tensor_parallel_spans_nodes: bool = Field(False, description="leave for a TP group to cross nodes (slow)")


class RewardSection(Section):
    model_config = ConfigDict(extra="allow", strict=True)
    weight: float


class TrackingSection(Section):
    project: str = Field(min_length=1)
    group: str | None = None
    tags: list[str] = []


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
        mend = f"did you mean {path.parent / near}?" if near else "give the path of a recipe, such as recipes/tiny_colocate.yaml"
        raise RecipeError(str(path), [Problem("file", str(path), "the file must exist", mend)]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(str(path), [Problem("file", str(path), f"must be readable text ({error})", "look at the file")]) from None
    except (YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        what = getattr(error, "problem", None) or str(error)
        raise RecipeError(str(path), [Problem(where, None, f"must be YAML 1.2: {what}", "mend that line")]) from None
    if not isinstance(content, dict):
        problem = Problem("file", content, "must hold the sections of a recipe", "start from recipes/tiny_colocate.yaml")
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
                problems.append(Problem(key, text, f"{'.'.join(parents[:depth + 1])} holds no keys", "see `launch show`"))
                break
        else:
            node[last] = value
    if problems:
        raise RecipeError(name, problems)
    return content


@cache
def system_prompts() -> dict[str, str]:
    return read_yaml(ROOT / "launch" / "system_prompts.yaml")


def load(path: Path, overrides: list[str] = ()) -> dict:
    """The resolved recipe: every field present, rewards as name -> {weight, parameters}, the system prompt's text,
    DeepSpeed's configuration (null without it), and `name`, the file's stem: all that decides the run.

    Raises:
        RecipeError: with all problems of form at once; `launch.check.check` finds those across sections.
    """
    name = str(path)
    content = apply_overrides(read_yaml(path), list(overrides), name)
    problems = []
    recipe = None
    try:
        recipe = Recipe.model_validate(content)
    except ValidationError as error:
        problems += [_explain(item, content) for item in error.errors()]
    grpo = content.get("grpo")
    if isinstance(grpo, dict):
        problems += _grpo_problems(grpo)
    if problems:
        raise RecipeError(name, problems)
    resolved = recipe.model_dump()
    resolved["rewards"] = {
        key: value if isinstance(value, dict) else {"weight": value} for key, value in resolved["rewards"].items()
    }
    resolved["name"] = Path(path).stem
    resolved["deepspeed"] = deepspeed_config(resolved["accelerate"])
    prompt = resolved["data"]["system_prompt"]
    resolved["system_prompt"] = system_prompts().get(prompt) if prompt else None  # the text itself decides, not its name
    return resolved


def topology(accelerate: str) -> dict | None:
    """The content of accelerate_configs/<accelerate>.yaml, or None if there is no such file."""
    path = ROOT / "accelerate_configs" / f"{accelerate}.yaml"
    return read_yaml(path) if path.is_file() else None


def deepspeed_config(accelerate: str) -> dict | None:
    """DeepSpeed's own configuration, from the file that the accelerate file names; None without DeepSpeed."""
    section = (topology(accelerate) or {}).get("deepspeed_config")
    return json.loads((ROOT / section["deepspeed_config_file"]).read_text()) if section else None


def recipe_hash(resolved: dict) -> str:
    """sha256 over the resolved recipe's canonical JSON: equal hashes, equal runs as far as the recipe decides."""
    return hashlib.sha256(json.dumps(resolved, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


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
    for key in grpo:
        if key in MANAGED:
            problems.append(Problem(f"grpo.{key}", grpo[key], "not set in `grpo`", MANAGED[key]))
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


def _explain(item: dict, content: dict) -> Problem:
    """A pydantic error in our words."""
    location = [part for part in item["loc"] if part not in ("float", "RewardSection", "str")]
    field = ".".join(str(part) for part in location)
    value = None if item["type"] == "missing" else item["input"]
    if item["type"] == "missing":
        parent = Recipe
        for part in location[:-1]:
            parent = parent.model_fields[part].annotation
        described = parent.model_fields[location[-1]].description
        return Problem(field, None, "must be stated", described or f"add {location[-1]}; CONTRIBUTING.md shows the sections")
    if item["type"] == "extra_forbidden":
        model = Recipe
        for part in location[:-1]:
            model = model.model_fields[part].annotation
        near = nearest(location[-1], model.model_fields)
        mend = f"did you mean {near}?" if near else f"known here: {', '.join(model.model_fields)}"
        return Problem(field, value, "unknown key", mend)
    mend = "see recipes/tiny_colocate.yaml" + _number_hint(value)
    return Problem(field, value, item["msg"][0].lower() + item["msg"][1:], mend)
