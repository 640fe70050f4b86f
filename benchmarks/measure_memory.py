"""Peak memory and step time of many configurations on one GPU, each a run of this project's own launcher.

    python benchmarks/measure_memory.py --out results/memory_h200            # all that are not there yet
    python benchmarks/measure_memory.py --out OUT --only colocate_ddp --seconds 300
    python benchmarks/measure_memory.py --list                               # the split, before anything is measured

Models are random, at the true 1.5B and 7B shapes; prompts are of two lengths, so that a batch is padded; a random model
never ends a completion, so that all have the full length. Each configuration trains 3 steps. One that fails is a row with its
cause. Which half is fitted is drawn by the seed in the YAML file. Left out: runs on several GPUs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launch.recipe import SOURCED  # noqa: E402
from launch.shapes import KNOWN  # noqa: E402
from record import RunFolder, read_lines, write_json  # noqa: E402

CAMPAIGN = Path(__file__).with_suffix(".yaml")
TOKENIZER = ROOT / "tiny" / "checkpoint"  # spells the prompts; the models have the true vocabularies all the same
MODELS = {"1.5b": "Qwen/Qwen2.5-Math-1.5B", "7b": "Qwen/Qwen2.5-Math-7B"}
GENERATIONS, STEPS, ROWS, SHORTER_TOKENS = 4, 3, 64, 60
PEAKS = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes")


def configurations() -> dict[str, dict]:
    """Name -> every setting, with `half`: "fitted" or "held_out"."""
    content = YAML(typ="safe").load(CAMPAIGN.read_text())
    named = content["configurations"]
    fitted = set(random.Random(content["split_seed"]).sample(sorted(named), len(named) // 2))
    return {
        name: content["defaults"] | (given or {}) | {"half": "fitted" if name in fitted else "held_out"}
        for name, given in named.items()
    }


def recipe(item: dict, model: Path, data: Path) -> dict:
    """The recipe of a configuration: the shape's own, on one GPU, with the configuration's settings and without a save."""
    content = YAML(typ="safe").load((ROOT / f"recipes/qwen{item['shape']}_{item['arm']}.yaml").read_text())
    content["model"] |= {"path": str(model), "dtype": item["dtype"]}
    content["data"] |= {"path": str(data), "config": None, "revision": None, "system_prompt": "tiny_boxed",
                        "max_prompt_tokens": item["prompt"]}  # fmt: skip
    content["rewards"] = {"accuracy_boxed": 1.0}
    content["cluster"] = {"nodes": 1, "gpus_per_node": 1, "gpu": item.get("gpu", "H200-141GB")}
    content["accelerate"] = item["accelerate"]
    grpo = content["grpo"]
    for name in ("num_train_epochs", "save_steps", "save_total_limit", "generation_batch_size"):
        grpo.pop(name, None)
    grpo |= {
        "max_steps": STEPS, "shuffle_dataset": False, "num_generations": GENERATIONS, "save_strategy": "no",
        "per_device_train_batch_size": item["batch"], "gradient_accumulation_steps": item["accumulation"],
        "max_completion_length": item["completion"], "gradient_checkpointing": item["checkpointing"],
    }  # fmt: skip
    if not item["checkpointing"]:
        del grpo["gradient_checkpointing_kwargs"]
    if item["arm"] == "colocate":
        grpo |= {"vllm_max_model_length": item["prompt"] + item["completion"],
                 "vllm_gpu_memory_utilization": item["utilization"], "vllm_enable_sleep_mode": item["sleep"]}  # fmt: skip
    content["sources"] = dict.fromkeys(SOURCED, "ours: benchmarks/measure_memory.yaml")
    return content


def make_model(shape: str, folder: Path, device: str) -> None:
    """A random model with the shape of a published one, made where the memory is. Its own process: nothing stays on the GPU."""
    if (folder / "config.json").is_file():
        return
    config = {**KNOWN[MODELS[shape]], "dtype": "bfloat16", "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    command = [sys.executable, "-m", "training.random_model", str(folder), str(TOKENIZER), json.dumps(config), device]
    subprocess.run(command, cwd=ROOT, check=True)


def make_data(folder: Path, prompt_tokens: int) -> None:
    """Sums whose prompts have exactly `prompt_tokens` tokens, and in turn 60 fewer, under the tiny tokenizer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)

    def length(text: str) -> int:
        system = {
            "role": "system",
            "content": YAML(typ="safe").load((ROOT / "launch/system_prompts.yaml").read_text())["tiny_boxed"],
        }
        messages = [system, {"role": "user", "content": text}]
        return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])

    def text_of(tokens: int) -> str:
        return "7+" * ((tokens - length("")) // 2) + "7" * ((tokens - length("")) % 2)

    folder.mkdir(parents=True, exist_ok=True)
    texts = [text_of(prompt_tokens), text_of(prompt_tokens - SHORTER_TOKENS)]
    assert [length(text) for text in texts] == [prompt_tokens, prompt_tokens - SHORTER_TOKENS]
    rows = [{"problem": texts[index % 2], "solution": r"\boxed{7}"} for index in range(ROWS)]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(command: list[str], log: Path, limit_seconds: float) -> tuple[int | None, float, int]:
    """Exit code (null if it was stopped for its time), seconds, and the processes' largest resident memory in bytes."""
    start, resident, code = time.monotonic(), 0, None
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"WANDB_MODE": "disabled", "VLLM_LOGGING_LEVEL": "INFO"},
        )  # fmt: skip
        try:
            while time.monotonic() - start < limit_seconds:
                try:
                    code = process.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    resident = max(resident, _resident_bytes(process.pid))
            else:
                process.send_signal(signal.SIGINT)  # the launcher stops its ranks in order
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=20)
        finally:
            _end(process)
    return code, time.monotonic() - start, resident


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident_bytes(pid: int) -> int:
    total = 0
    for process in _descendants(pid):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total


def _end(process: subprocess.Popen) -> None:
    for child in _descendants(process.pid):
        try:
            child.kill()
        except psutil.Error:
            continue
    process.wait()


def summary(folder: RunFolder | None) -> dict:
    """What a run's record says of memory and time: peaks and seconds of each phase, over all steps and by step."""
    if folder is None:
        return {"status": "no record", "cause": "the launcher refused it"}
    manifest = folder.manifest()
    result = {key: manifest["exit"].get(key) for key in ("status", "cause")} | {
        "derived": manifest["derived"], "git": manifest["git"], "data": manifest.get("data"),
        "hardware": manifest.get("hardware"), "packages": manifest.get("packages"), "overrides": manifest["overrides"],
    }  # fmt: skip
    phases = read_lines(folder.phases_path(0))[0] if folder.phases_path(0).exists() else []
    result["phases"] = {}
    for row in phases:
        where = result["phases"].setdefault(row["phase"], {}).setdefault(str(row["step"]), {"seconds": 0.0})
        where["seconds"] += row["seconds"]
        for name in PEAKS:
            seen = [value for value in (where.get(name), row.get(name)) if value is not None]
            where[name] = max(seen, default=None)
    metrics = read_lines(folder.metrics_path)[0] if folder.metrics_path.exists() else []
    wanted = ("step", "seconds", "tokens", "completion_tokens")
    result["steps"] = [{key: row.get(key) for key in wanted} for row in metrics if row["split"] == "train"]
    events = read_lines(folder.events_path)[0] if folder.events_path.exists() else []
    result["events"] = {row["event"]: row["seconds"] for row in events}
    return result


def engine_lines(logs: Path) -> list[str]:
    """What vLLM itself says of its memory (its own accounting, beside the driver's)."""
    wanted = ("GiB", "KV cache", "Graph captur", "sleep", "concurrency")
    lines = [line for log in logs.rglob("std*.log") for line in log.read_text(errors="replace").splitlines()]
    return [line[-300:] for line in lines if any(word in line for word in wanted)][:40]


def idle_device() -> dict | None:
    """The device's memory by NVML before a run: total, what the driver keeps, and what is used."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return {"total_bytes": info.total, "reserved_bytes": info.reserved, "used_bytes": info.used}


def measure(name: str, item: dict, arguments, limit_seconds: float) -> dict:
    model, data = arguments.work / "models" / item["shape"], arguments.work / "data" / str(item["prompt"])
    start = time.monotonic()
    make_model(item["shape"], model, arguments.device)
    if not data.exists():
        make_data(data, item["prompt"])
    made_seconds = time.monotonic() - start
    runs, file = arguments.work / "runs", arguments.work / f"{name}.yaml"
    file.write_text(json.dumps(recipe(item, model, data), indent=1))  # JSON is YAML
    command = [sys.executable, "-m", "launch", "run", str(file), "--runs", str(runs)]
    log = arguments.work / f"{name}.log"
    idle = idle_device()
    code, seconds, resident = run(command, log, limit_seconds)
    folders = sorted(path.parent for path in (runs / name).glob("*/manifest.json"))
    folder = RunFolder(folders[-1]) if folders else None
    result = {"name": name, "settings": item, "exit_code": code, "wall_seconds": round(seconds, 1),
              "model_seconds": round(made_seconds, 1), "host_resident_bytes": resident, "idle_device": idle}  # fmt: skip
    result |= summary(folder)
    if code is None:
        result |= {"status": "failed", "cause": f"stopped after {limit_seconds:.0f} seconds"}
    result["engine_lines"] = engine_lines(folder.logs_path) if folder else []
    if result["status"] != "finished":
        result["last_lines"] = log.read_text(errors="replace").splitlines()[-25:]
    write_json(arguments.out / f"{name}.json", result)
    if folder:
        with tarfile.open(arguments.work / "records.tar", "a") as archive:
            for file in sorted(folder.path.glob("*.json*")):
                archive.add(file, f"{name}/{file.name}")
    return result


def shown(result: dict) -> str:
    device = [step["peak_device_bytes"] for phase in result.get("phases", {}).values() for step in phase.values()]
    peak = max((value for value in device if value is not None), default=0) / 2**30
    steps = [step["seconds"] for step in result.get("steps", [])[1:] if step["seconds"]]
    mean = sum(steps) / len(steps) if steps else float("nan")
    return (f"{result['name']:34} {result['status']:9} {peak:7.2f} GiB step {mean:6.2f} s  run {result['wall_seconds']:3.0f} s "
            f"{(result.get('cause') or '')[:90]}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "memory_h200")
    parser.add_argument("--work", type=Path, default=Path("/tmp/measure_memory"), help="models, data, runs and logs")
    parser.add_argument("--device", default="cuda", help="where the random models are made")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="start nothing that would not end within them"
    )
    parser.add_argument("--only", nargs="*", help="names; all by default")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every configuration, in YAML"
    )
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    arguments.out, arguments.work = arguments.out.resolve(), arguments.work.resolve()
    items = configurations()
    if arguments.list:
        print("\n".join(f"{item['half']:9} {name}" for name, item in items.items()))
        return 0
    for folder in (arguments.out, arguments.work):
        folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    changes = {key: YAML(typ="safe").load(value) for key, _, value in (item.partition("=") for item in arguments.set)}
    lines = []
    for name, item in items.items():
        if (arguments.out / f"{name}.json").exists() or (arguments.only and name not in arguments.only):
            continue
        left = arguments.seconds - (time.monotonic() - begun)
        if item["seconds"] > left:
            continue
        try:
            result = measure(name, item | changes, arguments, min(2.0 * item["seconds"], left))
            lines.append(shown(result))
        except Exception as error:  # one configuration is never the end of the campaign
            lines.append(f"{name:36} campaign: {type(error).__name__}: {error}")
        print(lines[-1], flush=True)
    print(f"\n{time.monotonic() - begun:.0f} s\n" + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
