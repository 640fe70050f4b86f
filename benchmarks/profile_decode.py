"""What the decode loop waits for: the colocated engine alone, one change at a time, in one process on one GPU.

    python benchmarks/profile_decode.py --shape 1.5b --requests 128 --tokens 512 --out results/h200/decode_1.5b.json

The engine is built with TRL's arguments and generates from random weights. Each variant is timed `--repeats` times in turns.
With py-spy installed, the host's stacks of one generation of each variant are sampled beside it, and the record has each
function's share of the samples. Seconds are of LLM.generate and of taking the log-probabilities out, as TRL does.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.in_process import provenance, single_rank  # noqa: E402
from benchmarks.inputs import MODELS, make_models, model_name  # noqa: E402
from record import write_json  # noqa: E402

# name -> sampling arguments, whether outputs are processed when finished, whether the garbage collector rests
VARIANTS = {
    "TRL's defaults": ({}, False, False),
    "no log-probabilities": ({"logprobs": None}, False, False),
    "no text": ({"detokenize": False}, False, False),
    "no text, flat": ({"detokenize": False, "flat_logprobs": True}, False, False),
    "outputs when finished": ({}, True, False),
    "outputs when finished, no garbage collection": ({}, True, True),
}


def build(model: Path, requests: int, length: int, more: dict):
    """vllm.LLM with the arguments that TRL 1.16.0 gives it (VLLMGeneration._init_vllm)."""
    from vllm import LLM

    on_cpu = more.pop("cpu", False)
    return LLM(
        model=str(model), tensor_parallel_size=1, max_model_len=length, max_num_seqs=requests, seed=0,
        distributed_executor_backend="external_launcher", max_num_batched_tokens=4096,
        logprobs_mode="processed_logprobs", dtype="float32" if on_cpu else "bfloat16",
        gpu_memory_utilization=0.3, **more,
    )  # fmt: skip


@contextmanager
def variant(llm, when_finished: bool, rests: bool):
    from training import outputs

    processor = llm.llm_engine.output_processor
    if when_finished:
        outputs.process_when_finished(processor)
    if rests:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
        processor.__dict__.pop("process_outputs", None)


def generate(llm, prompts: list[dict], tokens: int, arguments: dict, when_finished: bool) -> tuple[float, float]:
    """Seconds of generating, and of taking the log-probabilities out."""
    from trl.generation.vllm_generation import extract_logprobs
    from vllm import SamplingParams

    from training import outputs

    sampling = SamplingParams(
        **{"temperature": 1.0, "max_tokens": tokens, "logprobs": 0, "ignore_eos": True} | arguments
    )
    if when_finished:
        outputs.only_tokens(sampling)
    start = time.perf_counter()
    done = llm.generate(prompts, sampling, use_tqdm=False)
    between = time.perf_counter()
    (outputs.extract_logprobs if when_finished else extract_logprobs)(done)
    assert all(len(output.outputs[0].token_ids) == tokens for output in done)
    return between - start, time.perf_counter() - between


def sampled(stacks: Path) -> dict:
    """Shares of the main thread's samples: by the function that was on top, and by every function on the stack."""
    own, total, count = Counter(), Counter(), 0
    for line in stacks.read_text().splitlines():
        stack, _, hits = line.rpartition(" ")
        frames = [frame.replace(str(ROOT) + "/", "") for frame in stack.split(";")]
        if not any("generate (" in frame for frame in frames):
            continue
        count += int(hits)
        own[frames[-1]] += int(hits)
        for frame in set(frames):
            total[frame] += int(hits)
    return {"samples": count} | {
        name: {frame: round(hits / count, 4) for frame, hits in counter.most_common(40)}
        for name, counter in (("own", own), ("total", total))
        if count
    }


def gpu_busy(llm, prompts: list[dict], given: dict, when_finished: bool, tokens: int = 64) -> float:
    """The share of a short generation in which a kernel runs on the GPU (torch.profiler, which slows the host a little)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        start = time.perf_counter()
        generate(llm, prompts, tokens, given, when_finished)
        seconds = time.perf_counter() - start
    return sum(event.self_device_time_total for event in found.key_averages()) / 1e6 / seconds


def spied(spy: str, stacks: Path, work) -> dict:
    """The host's stacks while `work` runs, by py-spy; or what py-spy says where it may not look."""
    command = [spy, "record", "--pid", str(os.getpid()), "--rate", "250", "--format", "raw", "--output", str(stacks)]
    process = subprocess.Popen(
        [*command, "--duration", "60"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    time.sleep(2)
    work()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    if not stacks.exists():
        return {"error": said[-500:]}
    found = sampled(stacks)
    stacks.unlink()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=MODELS, default="1.5b")
    parser.add_argument("--model", type=Path, help="a folder with a model; by default one is made, in --work")
    parser.add_argument("--work", type=Path, default=Path("/tmp/profile_decode"))
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=72, help="tokens")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--engine", action="append", default=[], metavar="KEY=VALUE", help="of vllm.LLM, in YAML")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    single_rank()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"}
    from ruamel.yaml import YAML

    model = arguments.model or arguments.work / model_name(arguments.shape)
    if arguments.model is None:
        make_models({(arguments.shape, None)}, arguments.work, arguments.device)
    more = {key: YAML(typ="safe").load(value) for key, _, value in (item.partition("=") for item in arguments.engine)}
    length = arguments.prompt + arguments.tokens
    llm = build(model, arguments.requests, length, more | ({"cpu": True} if arguments.device == "cpu" else {}))
    # eight requests a prompt, as GRPO has them
    prompts = [
        {"prompt_token_ids": [3 + (row // 8 * 31 + position * 7) % 300 for position in range(arguments.prompt)]}
        for row in range(arguments.requests)
    ]
    seconds: dict[str, list] = {name: [] for name in VARIANTS}
    profiles = {}
    for repeat in range(arguments.repeats + 1):  # the first warms up
        for name, (given, when_finished, rests) in VARIANTS.items():
            with variant(llm, when_finished, rests):
                taken = generate(llm, prompts, arguments.tokens, given, when_finished)
            if repeat:
                seconds[name].append([round(part, 4) for part in taken])
    busy = {}
    for name, (given, when_finished, rests) in VARIANTS.items():
        with variant(llm, when_finished, rests):
            if arguments.device == "cuda":
                busy[name] = round(gpu_busy(llm, prompts, given, when_finished), 4)
            if spy := shutil.which("py-spy"):
                work = partial(generate, llm, prompts, arguments.tokens, given, when_finished)
                profiles[name] = spied(spy, arguments.out.with_suffix(".stacks"), work)
    scheduler = llm.llm_engine.vllm_config.scheduler_config
    write_json(
        arguments.out,
        {
            **provenance(), "engine_arguments": more,
            "async_scheduling": bool(scheduler.async_scheduling), "requests": arguments.requests,
            "prompt_tokens": arguments.prompt, "tokens": arguments.tokens, "shape": arguments.shape,
            "seconds": seconds, "gpu_busy": busy, "profiles": profiles,
        },
    )  # fmt: skip
    base = median(sum(parts) for parts in seconds["TRL's defaults"])
    for name, runs in seconds.items():
        total = [sum(parts) for parts in runs]
        print(f"{name:46} {median(total):6.3f} s ({min(total):.3f} to {max(total):.3f})  x {base / median(total):.2f}")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
