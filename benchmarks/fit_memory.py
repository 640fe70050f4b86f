"""Fits the planner's measured constants on one half of the campaign, and reports the error on the other.

    python benchmarks/fit_memory.py            # results/memory_h200/table.md, and launch/fitted.json

The half is drawn by the seed in benchmarks/measure_memory.yaml. What benchmarks/bench_gpu.py measured for its own sake
(results/h200/bench) is held out too: no constant has seen it. Left out: configurations that were not measured, and repeats.
"""

import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import bench_gpu  # noqa: E402
from benchmarks.inputs import MODELS  # noqa: E402
from benchmarks.measure_memory import configurations, recipe  # noqa: E402
from launch import memory, roofline  # noqa: E402
from launch.recipe import resolve  # noqa: E402
from launch.shapes import KNOWN  # noqa: E402
from record import write_json  # noqa: E402

RESULTS = ROOT / "results" / "memory_h200"
BENCH = ROOT / "results" / "h200" / "bench"
# This run's engine had a cache of a fixed size (COLOCATE_KV_CACHE_BYTES). Here it is as a share of the device, with the
# engine's weights and workspace: what vLLM would have been told to take for the same.
UTILIZATION = {"offload_7b/colocate_8-r0": 0.137}
NAMES = {"generation": "generate", "forward and backward": "forward_backward", "optimizer step": "optimizer"}
GIB = memory.GIB


def rows() -> list[dict]:
    """The measured configurations, each with its resolved recipe and its model's shape."""
    campaign = {RESULTS / f"{name}.json": (item, recipe) for name, item in configurations().items()}
    bench = {
        BENCH / f"{name}.json": (item | {"half": "held_out"}, bench_gpu.recipe)
        for name, item in bench_gpu.configurations().items()
        if item["repeat"] == 0
    }
    found = []
    for path, (item, recipe_of) in (campaign | bench).items():
        row = json.loads(path.read_text()) if path.exists() else {"status": "not measured"}
        if row["status"] != "finished":
            continue
        row["recipe"] = resolve(recipe_of(item, Path("/model"), Path("/data")), path.stem, path.stem)
        if row["name"] in UTILIZATION:
            row["recipe"]["grpo"]["vllm_gpu_memory_utilization"] = UTILIZATION[row["name"]]
        row["item"] = item | {"utilization": row["recipe"]["grpo"].get("vllm_gpu_memory_utilization")}
        row["shape"], row["half"] = KNOWN[MODELS[item["shape"]]], item["half"]
        found.append(row)
    return found


def peak(row: dict, phase: str | None, what: str) -> float:
    """The largest of a phase (or of all), over the steps from the second on: Adam's states are there."""
    chosen = row["phases"] if phase is None else {phase: row["phases"][phase]}
    return max(
        values[what] for steps in chosen.values() for step, values in steps.items() if phase is None or int(step) >= 2
    )


def engine_bytes(row: dict) -> float:
    if row["item"]["arm"] != "colocate":
        return 0.0
    parts = memory.engine(row["recipe"], row["shape"], memory.VISIBLE_BYTES["H200-141GB"], row["item"]["utilization"])
    return sum(parts.values())


def fit(fitted: list[dict]) -> dict:
    """Medians over the fitted half, each of the one quantity that the constant stands for."""
    hidden, context, reserve = [], [], {0: [], 2: [], 3: []}
    for row in fitted:
        shape, item = row["shape"], row["item"]
        stage = memory.zero(row["recipe"])[0]
        held = sum(memory.states(row["recipe"], shape).values())
        tokens = item["batch"] * (item["prompt"] + item["completion"])
        if not item["checkpointing"] and stage == 0:
            engine = (
                engine_bytes(row) - memory.BATCHED_TOKENS * 16 * shape["intermediate_size"] if engine_bytes(row) else 0
            )
            kept = peak(row, "forward_backward", "peak_allocated_bytes") - held - engine - memory.head_bytes(shape)
            per_token = kept / tokens / shape["num_hidden_layers"] - 8 * shape["intermediate_size"]
            hidden.append(per_token / shape["hidden_size"])
        if not item["sleep"]:
            context.append(peak(row, None, "peak_device_bytes") - peak(row, None, "peak_reserved_bytes"))
            workspace = memory.BATCHED_TOKENS * 16 * shape["intermediate_size"] if engine_bytes(row) else 0
            own = peak(row, None, "peak_allocated_bytes") - (engine_bytes(row) - workspace)
            reserve[stage].append((peak(row, None, "peak_reserved_bytes") - engine_bytes(row)) / own - 1)
    median = statistics.median
    return {"hidden_bytes": round(median(hidden), 1), "context_bytes": round(median(context)),
            "reserve": {str(stage): round(median(values), 3) for stage, values in reserve.items()}}  # fmt: skip


def tensors(parts: dict, row: dict) -> float:
    """What torch counts as allocated in a phase: the driver's context is not, and an engine that sleeps still is."""
    total = sum(value for name, value in parts.items() if name not in ("context", "reserve"))
    workspace = memory.BATCHED_TOKENS * 16 * row["shape"]["intermediate_size"] if engine_bytes(row) else 0
    asleep = engine_bytes(row) - memory.GRAPHS_BYTES if row["item"]["sleep"] and "kv_cache" not in parts else 0
    return total + asleep - workspace


def report(measured: list[dict]) -> str:
    visible = memory.VISIBLE_BYTES["H200-141GB"]
    heads = ["configuration", "half", *NAMES, "device, predicted GiB", "measured GiB", "error", "step, predicted s",
             "measured s", "error"]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    errors = {half: {"tensors": [], "device": [], "step": []} for half in ("fitted", "held_out")}
    for row in measured:
        table = memory.phases(row["recipe"], row["shape"], visible)
        cells = []
        for phase, name in NAMES.items():
            actual = peak(row, name, "peak_allocated_bytes")
            if row["item"]["arm"] == "continuous_batching" and phase == "generation":
                cells.append("")  # sized by what is free: the device's peak says it
                continue
            error = tensors(table[phase], row) / actual - 1
            errors[row["half"]]["tensors"].append(error)
            cells.append(f"{error:+.1%}")
        predicted, actual = max(sum(parts.values()) for parts in table.values()), peak(row, None, "peak_device_bytes")
        steps = [step["seconds"] for step in row["steps"][1:]]
        seconds, step = roofline.step_seconds(row["recipe"], row["shape"], "H200-141GB")["step"], statistics.mean(steps)
        errors[row["half"]]["device"].append(predicted / actual - 1)
        errors[row["half"]]["step"].append(seconds / step - 1)
        cells = [row["name"], row["half"].replace("_", " "), *cells, f"{predicted / GIB:.1f}", f"{actual / GIB:.1f}",
                 f"{predicted / actual - 1:+.1%}", f"{seconds:.2f}", f"{step:.2f}", f"{seconds / step - 1:+.0%}"]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| error | half | number | median of the absolute | worst |", "|---|---|---|---|---|"]
    for half, kinds in errors.items():
        for kind, values in kinds.items():
            if values:
                worst = max(values, key=abs)
                middle = statistics.median(abs(value) for value in values)
                lines.append(f"| {kind} | {half.replace('_', ' ')} | {len(values)} | {middle:.1%} | {worst:+.1%} |")
    return "\n".join(lines)


if __name__ == "__main__":
    measured = rows()
    fitted = [row for row in measured if row["half"] == "fitted"]
    constants = {
        "memory": fit(fitted),
        "roofline": {name: round(value, 5) for name, value in roofline.fit(fitted).items()},
    }
    constants["memory"]["reserve"]["1"] = constants["memory"]["reserve"][
        "2"
    ]  # not measured: stage 1 steps as stage 2 does
    write_json(ROOT / "launch" / "fitted.json", constants)
    memory.FITTED, roofline.FITTED = constants["memory"], constants["roofline"]
    text = report(measured)
    print(text)
    (RESULTS / "table.md").write_text(text + "\n")
