"""Where forward and backward spend the GPU's time: one micro-batch through TRL's fused head, one change at a time.

    python benchmarks/profile_training.py --shape 1.5b --out results/h200/training_1.5b.json

Random weights in bfloat16, random tokens without padding. Seconds are of one micro-batch, by CUDA events, `--repeats` times in
turns; `kernels` is the share of GPU time by kind of kernel (torch.profiler); `share_of_peak` is 6 FLOPs a parameter and token
(with the attention's) over the time and the GPU's peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.in_process import provenance  # noqa: E402
from benchmarks.inputs import MODELS  # noqa: E402
from launch.roofline import RATES, attention_flops  # noqa: E402
from launch.shapes import KNOWN, parameters  # noqa: E402
from record import write_json  # noqa: E402

# name -> completions in the micro-batch, checkpointing, liger-kernel's norms and MLP, torch.compile of each layer
VARIANTS = {
    "8, checkpointed (TRL's defaults)": (8, True, False, False),
    "8": (8, False, False, False),
    "16": (16, False, False, False),
    "32": (32, False, False, False),
    "16, liger": (16, False, True, False),
    "32, liger": (32, False, True, False),
    "16, compiled": (16, False, False, True),
}
# a kernel's kind, by what its name holds; the first that fits
KINDS = {
    "attention": ("flash", "fmha", "attention"), "matrix product": ("gemm", "nvjet", "cutlass", "xmma", "sm90_", "splitk"),
    "copy or cast": ("copy", "memcpy", "memset", "cat"), "reduction": ("reduce", "softmax", "norm"),
    "elementwise": ("elementwise", "triton", "silu", "swiglu", "vectorized"),
}  # fmt: skip


def build(shape: str, liger: bool, compiled: bool, checkpointing: bool, device: str, layers: int | None):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    settings = dict(KNOWN[MODELS[shape]])
    if layers:
        settings["num_hidden_layers"] = layers
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(settings.pop("model_type"), **settings), dtype=torch.bfloat16
        )
    if liger:
        from liger_kernel.transformers import apply_liger_kernel_to_qwen2

        apply_liger_kernel_to_qwen2(fused_linear_cross_entropy=False, cross_entropy=False, model=model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if compiled:
        for layer in model.model.layers:
            layer.compile(dynamic=False)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.train()


def micro_batch(model, ids, kept: int) -> None:
    import torch

    labels = ids.clone()
    labels[:, :-kept] = -100
    with torch.autocast(ids.device.type, torch.bfloat16):
        outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, fused_lm_head=True)
    outputs.log_probs[:, -kept:].mean().backward()


def kind(name: str) -> str:
    return next((kind for kind, parts in KINDS.items() if any(part in name.lower() for part in parts)), "other")


def measure(name: str, arguments, device: str) -> dict:
    import torch
    from torch.profiler import ProfilerActivity, profile

    rows, checkpointing, liger, compiled = VARIANTS[name]
    model = build(arguments.shape, liger, compiled, checkpointing, device, arguments.layers)
    length = arguments.prompt + arguments.tokens
    ids = torch.randint(10, 1000, (rows, length), device=device)
    seconds = []
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    for repeat in range(arguments.repeats + 2):
        model.zero_grad(set_to_none=False)
        wait()
        start = time.perf_counter()
        micro_batch(model, ids, arguments.tokens)
        wait()
        if repeat >= 2:
            seconds.append(round(time.perf_counter() - start, 5))
    kernels: Counter = Counter()
    names: Counter = Counter()
    if device == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            micro_batch(model, ids, arguments.tokens)
            wait()
        for event in found.key_averages():
            kernels[kind(event.key)] += event.self_device_time_total
            names[event.key[:90]] += event.self_device_time_total
    total, shape = sum(kernels.values()) or 1, KNOWN[MODELS[arguments.shape]]
    flops = 3 * rows * length * (2 * parameters(shape) + attention_flops(shape) * length)
    result = {
        "seconds": seconds,
        "completions": rows,
        "seconds_a_completion": round(median(seconds) / rows, 6),
        "share_of_peak": round(flops / median(seconds) / RATES["H200-141GB"][0], 4),
        "gpu_seconds": round(total / 1e6, 5),
        "kernels": {key: round(value / total, 4) for key, value in kernels.most_common()},
        "longest": {key: round(value / total, 4) for key, value in names.most_common(25)},
        "peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }
    if device == "cuda":
        del model
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=MODELS, default="1.5b")
    parser.add_argument("--prompt", type=int, default=72, help="tokens")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, help="fewer than the shape has, to try it out")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only:
        try:
            results[name] = measure(name, arguments, arguments.device)
            row = results[name]
            print(f"{name:36} {median(row['seconds']):.4f} s, {1e3 * row['seconds_a_completion']:.2f} ms a completion, "
                  f"{row['share_of_peak']:.1%} of peak  {row['kernels']}", flush=True)  # fmt: skip
        except Exception as error:  # one variant is never the end of the others
            results[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
            print(f"{name:36} {results[name]['error']}", flush=True)
        write_json(arguments.out, {
            **provenance(), "shape": arguments.shape,
            "prompt_tokens": arguments.prompt, "tokens": arguments.tokens, "variants": results,
        })  # fmt: skip


if __name__ == "__main__":
    main()
