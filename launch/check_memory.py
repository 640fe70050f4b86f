"""The planner's word on a recipe (launch/plan.py), as `check` gives it: an error where even what needs no measurement does not
fit, a warning where the whole plan does not, or only just."""

from collections.abc import Iterator

from launch.derived import derive
from launch.memory import GIB
from launch.plan import FITS, Plan, plan
from launch.problems import Problem

CERTAIN = (
    "parameters",
    "master",
    "gradients",
    "optimizer",
    "reference",
    "engine_weights",
    "engine_workspace",
    "kv_cache",
)


def memory(recipe: dict) -> Iterator[Problem]:
    result = plan(recipe)
    if result is None or result.verdict == FITS:
        return
    cluster, grpo = recipe["cluster"], recipe["grpo"]
    if "vLLM" in result.why:
        server = cluster["server"] if recipe["recipe"]["arm"] == "server" else None
        field = "cluster.server.gpu_memory_utilization" if server else "grpo.vllm_gpu_memory_utilization"
        sharded_by = "cluster.server.tensor_parallel_size" if server else "grpo.vllm_tensor_parallel_size"
        value = server["gpu_memory_utilization"] if server else grpo["vllm_gpu_memory_utilization"]
        yield Problem(
            field,
            value,
            f"model.path on a {cluster['gpu']}: {result.why.split('; ')[0]} ({sharded_by})",
            f"another share, or {sharded_by}; `python -m launch plan` has the whole table",
        )
        return
    phase, held = _certain(result)
    if held > result.visible_bytes:
        engine = sum(value for name, value in result.phases[phase].items() if name.startswith(("engine", "kv")))
        share = f", with grpo.vllm_gpu_memory_utilization {engine / GIB:.1f} of them the engine's" if engine else ""
        yield Problem(
            "cluster.gpu",
            cluster["gpu"],
            f"weights, gradients and optimizer of model.path need {held / GIB:.1f} GiB of each {cluster['gpu']} in the phase "
            f"{phase}{share} (accelerate: {recipe['accelerate']}, cluster.nodes x cluster.gpus_per_node = "
            f"{derive(recipe)['ranks']}), and there are {result.visible_bytes / GIB:.1f}",
            "more GPUs, accelerate: zero3 or zero3_offload, or sleep mode; `python -m launch plan` ranks the changes",
        )
        return
    yield Problem(
        "cluster.gpu",
        cluster["gpu"],
        f"the plan {result.verdict}: {result.why}",
        "`python -m launch plan` has the table, and the smallest changes that make it fit",
        warning=True,
    )


def _certain(result: Plan) -> tuple[str, float]:
    """The phase that holds most without activations and the allocator's own, and the bytes."""
    sums = {
        phase: sum(value for name, value in parts.items() if name in CERTAIN) for phase, parts in result.phases.items()
    }
    phase = max(sums, key=sums.get)
    return phase, sums[phase]
