"""Sleep mode, checked: are the weights after a wake-up and a sync the trainer's bit for bit, does memory grow over many
cycles, what does a sleep free, and what does it cost?

    python benchmarks/check_sleep.py --shape 1.5b        # one GPU; results/h200/sleep_1.5b.json
    python benchmarks/check_sleep.py --device cpu        # the comparison after a sync alone: vLLM has no sleep mode there

A cycle is what a training step does: the weights change (each changes its sign, so that neither the checkpoint's nor the last
cycle's would pass), TRL syncs them into the engine (which wakes its weights), wakes the cache, generates, and lets it sleep at
level 2. Every weight of the engine is compared after the sync. Memory is read awake and asleep, by the driver and by torch.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import in_process
from record import write_json

SETTINGS = {"batch": 8, "accumulation": 1, "completion": 16, "checkpointing": True, "utilization": 0.3}
PROMPTS = 8
GROWTH_LIMIT_BYTES = 64 * 2**20  # a matrix of 1.5 MiB that is lost in each of 50 cycles is above it


def engine_weights(model) -> dict:
    """The engine's parameters by name. Without a GPU vLLM keeps but a packed copy of a matrix: it is read by multiplying with
    the identity, which is exact in float32."""
    import torch

    weights = dict(model.named_parameters())
    for name, layer in model.named_modules():
        packed = weights.get(f"{name}.weight")
        if packed is not None and packed.numel() == 0:
            columns = getattr(layer, "input_size_per_partition", None) or layer.embedding_dim
            weights[f"{name}.weight"] = layer.cpu_linear(torch.eye(columns), packed, None).t()
    return weights


def compare(trainer_model, engine_model) -> dict:
    """How many numbers of the engine differ from the trainer's in any bit. vLLM keeps some matrices as one, in the order that
    its model names (`packed_modules_mapping`), and pads the vocabulary at the end.

    Returns:
        How many `tensors` and `numbers` were compared, how many numbers are `different` and in which tensors, and the names on
        either side that are `unmatched`: nothing is left out unseen.
    """
    import torch

    parts = {part: whole for whole, all_parts in engine_model.packed_modules_mapping.items() for part in all_parts}
    expected: dict[str, list] = {}
    for name, weight in trainer_model.named_parameters():
        pieces = [parts.get(piece, piece) for piece in name.split(".")]
        expected.setdefault(".".join(pieces), []).append(weight.detach())
    weights, numbers, counts = engine_weights(engine_model), 0, {}
    for name, weight in weights.items():
        if name not in expected:
            continue
        wanted = torch.cat(expected[name]) if len(expected[name]) > 1 else expected[name][0]
        found = weight.detach()[: len(wanted)].contiguous()
        if found.dtype != wanted.dtype or found.shape != wanted.shape:
            continue
        bits = {2: torch.int16, 4: torch.int32}[found.element_size()]
        counts[name] = (found.view(bits) != wanted.contiguous().view(bits)).sum()
        numbers += found.numel()
    different = dict(zip(counts, torch.stack([*counts.values()]).tolist(), strict=True))
    return {
        "tensors": len(counts), "numbers": numbers, "different": sum(different.values()),
        "different_in": [name for name, count in different.items() if count],
        "unmatched": sorted((weights.keys() | expected.keys()) - counts.keys()),
    }  # fmt: skip


def memory_reader():
    """A function that returns the bytes in use now: of the device by NVML and by CUDA, of torch's allocator, of the host."""
    import psutil
    import torch

    from training.memory import nvml_reader

    nvml, process = nvml_reader() or (lambda: None), psutil.Process()

    def read() -> dict:
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return {
            "nvml_used_bytes": nvml(), "cuda_used_bytes": total - free, "allocated_bytes": torch.cuda.memory_allocated(),
            "reserved_bytes": torch.cuda.memory_reserved(), "host_resident_bytes": process.memory_info().rss,
        }  # fmt: skip

    return read


def watch_sleep(llm, read) -> dict:
    """Has the memory read right before and after each sleep of this engine, into what is returned."""
    sleep, seen = llm.sleep, {}

    def watched(*args, **kwargs):
        seen["awake"] = read()
        sleep(*args, **kwargs)
        seen["asleep"] = read()

    llm.sleep = watched
    return seen


def cycle(trainer, clock, ids: list, seen: dict) -> dict:
    """One step's worth: new weights, sync, comparison, generation, sleep. The seconds are of phases that do not overlap."""
    import torch

    from training.engine import model_runner

    engine = trainer.vllm_generation
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.neg_()
    clock.step += 1
    with clock("other"):
        engine.sync_weights()
        try:
            equal = compare(trainer.model, model_runner(engine.llm).get_model())
        except Exception as error:  # memory and seconds are worth having without it
            equal = {"cause": f"{type(error).__name__}: {error}"}
        with clock("generate"):
            _, completions, _, _ = engine.generate(ids, None, num_generations=1)
    seconds = clock.take_step_seconds()
    return {"weights": equal, "seconds": {name: seconds.get(name) for name in ("sync", "wake", "generate", "sleep")},
            "completion_tokens": sum(map(len, completions)), **seen}  # fmt: skip


def no_reward(completion_ids, **_) -> list[float]:
    return [0.0] * len(completion_ids)


def spread(values: list) -> dict | None:
    values = [value for value in values if value is not None]
    return {"median": statistics.median(values), "min": min(values), "max": max(values)} if values else None


def growth(cycles: list[dict], state: str) -> dict:
    """Bytes of the last cycle less those of the second: the first still makes what is made once."""
    if len(cycles) < 2:
        return {}
    first, last = cycles[1][state], cycles[-1][state]
    return {name: None if value is None else last[name] - value for name, value in first.items()}


def summary(cycles: list[dict], sleeps: bool) -> dict:
    """The verdicts; null where there is nothing to judge."""
    found = {"cycles": len(cycles), "bit_equal": None, "grew": None}
    if not cycles:
        return found
    if not any("cause" in c["weights"] for c in cycles):
        found["bit_equal"] = all(not c["weights"]["different"] and not c["weights"]["unmatched"] for c in cycles)
    found["seconds"] = {name: spread([c["seconds"][name] for c in cycles[1:]]) for name in cycles[0]["seconds"]}
    if sleeps:
        found["growth"] = {state: growth(cycles, state) for state in ("awake", "asleep")}
        found["freed_bytes"] = {
            name: spread([None if c["awake"][name] is None else c["awake"][name] - c["asleep"][name] for c in cycles])
            for name in ("nvml_used_bytes", "cuda_used_bytes")
        }
        found["sleep_and_wake_seconds"] = spread([c["seconds"]["sleep"] + c["seconds"]["wake"] for c in cycles[1:]])
        grown = [found["growth"][state].get("cuda_used_bytes") for state in ("awake", "asleep")]
        found["grew"] = any(value >= GROWTH_LIMIT_BYTES for value in grown) if None not in grown else None
    return found


def main() -> int:
    parser = in_process.parser(__doc__)
    parser.add_argument("--cycles", type=int, default=50)
    arguments = parser.parse_args()
    begun, sleeps = time.monotonic(), arguments.device != "cpu"
    out = arguments.out or in_process.ROOT / f"results/h200/sleep_{arguments.shape}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    content = in_process.prepare(arguments, SETTINGS | {"sleep": sleeps})

    import torch

    from training.memory import probes
    from training.phases import PhaseClock

    result = in_process.provenance() | {"model": content["model"]["path"], "settings": content["grpo"], "cycles": []}
    clock = PhaseClock(None, probes(not sleeps)[0])
    in_process.install(arguments, content, clock)
    trainer = in_process.build(content, clock, arguments.work / "check", [no_reward])
    ids = in_process.prompts(trainer, PROMPTS)
    seen = watch_sleep(trainer.vllm_generation.llm, memory_reader()) if sleeps else {}
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.01)
    result["ready_seconds"] = round(time.monotonic() - begun, 1)
    print(f"trainer and engine ready after {result['ready_seconds']} s", flush=True)
    try:
        for number in range(1, arguments.cycles + 1):
            if time.monotonic() - begun > arguments.seconds:
                result["stopped"] = f"after {arguments.seconds:.0f} s"
                break
            result["cycles"].append(cycle(trainer, clock, ids, seen))
            write_json(out, result | {"summary": summary(result["cycles"], sleeps)})
            print(f"cycle {number}: {result['cycles'][-1]['weights']} {result['cycles'][-1]['seconds']}", flush=True)
    except Exception as error:
        result["cause"] = f"{type(error).__name__}: {error}"
    result["summary"], result["seconds"] = summary(result["cycles"], sleeps), round(time.monotonic() - begun, 1)
    write_json(out, result)
    print(f"{result['seconds']} s {result.get('cause', '')}\n{result['summary']}", flush=True)
    return int("cause" in result)


if __name__ == "__main__":
    in_process.run(main)
