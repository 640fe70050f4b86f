"""The planner's word on a recipe (launch/plan.py), as `check` gives it: an error where even what needs no measurement does not
fit, a warning where the whole plan does not, or only just."""

from collections.abc import Iterator

from launch.derived import derive
from launch.memory import GIB
from launch.plan import FITS, Plan, plan
from launch.problems import Problem

OF_THE_TRAINER = ("parameters", "master", "gradients", "optimizer", "reference")
OF_THE_ENGINE = ("engine_weights", "engine_workspace", "kv_cache")


def memory(recipe: dict) -> Iterator[Problem]:
    result = plan(recipe)
    if result is None or result.verdict == FITS:
        return
    own, beside = (_most(result, names) for names in (OF_THE_TRAINER, OF_THE_TRAINER + OF_THE_ENGINE))
    if own[1] > result.visible_bytes:
        yield _too_large(recipe, result, *own)
    elif "vLLM" in result.why:
        yield _refused_by_vllm(recipe, result)
    elif beside[1] > result.visible_bytes:
        yield _too_large(recipe, result, *beside)
    else:
        yield Problem(
            "cluster.gpu",
            recipe["cluster"]["gpu"],
            f"the plan {result.verdict}: {result.why}",
            "`python -m launch plan` has the table, and the smallest changes that make it fit",
            warning=True,
        )


def _most(result: Plan, names: tuple[str, ...]) -> tuple[str, float]:
    """The phase that holds most of these components, and the bytes."""
    sums = {phase: sum(parts.get(name, 0.0) for name in names) for phase, parts in result.phases.items()}
    phase = max(sums, key=sums.get)
    return phase, sums[phase]


def _too_large(recipe: dict, result: Plan, phase: str, held: float) -> Problem:
    gpu = recipe["cluster"]["gpu"]
    engine = sum(result.phases[phase].get(name, 0.0) for name in OF_THE_ENGINE)
    share = f", beside an engine of grpo.vllm_gpu_memory_utilization {engine / GIB:.1f} GiB" if engine else ""
    return Problem(
        "cluster.gpu",
        gpu,
        f"weights, gradients and optimizer of model.path{share} need {held / GIB:.1f} GiB of each {gpu} in the phase "
        f"{phase} (accelerate: {recipe['accelerate']}, cluster.nodes x cluster.gpus_per_node = "
        f"{derive(recipe)['ranks']}), and there are {result.visible_bytes / GIB:.1f}",
        "more GPUs, accelerate: zero3 or zero3_offload, or sleep mode; `python -m launch plan` ranks the changes",
    )


def _refused_by_vllm(recipe: dict, result: Plan) -> Problem:
    if recipe["recipe"]["arm"] == "server":
        section, prefix, share = recipe["cluster"]["server"], "cluster.server.", "gpu_memory_utilization"
        sharded_by = "cluster.server.tensor_parallel_size"
    else:
        section, prefix, share = recipe["grpo"], "grpo.", "vllm_gpu_memory_utilization"
        sharded_by = "grpo.vllm_tensor_parallel_size"
    return Problem(
        prefix + share,
        section[share],
        f"model.path on a {recipe['cluster']['gpu']}: {result.why.split('; ')[0]} ({sharded_by})",
        f"another share, or {sharded_by}; `python -m launch plan` has the whole table",
    )
