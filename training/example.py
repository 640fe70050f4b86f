"""From the plain GRPOTrainer script to vLLM in the same process, with which the post ends. On any number of processes:

    python -m torch.distributed.run --nproc-per-node 2 -m training.example

Against the script that everybody starts from, three lines are new, marked 1 to 3. A recipe does the same with every value
stated, checked and recorded: that is all that is left out here, and eight GPUs.
"""

import os
import tempfile

import torch
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from rewards.accuracy import accuracy_boxed

if __name__ == "__main__":
    on_cpu = not torch.cuda.is_available()
    problems = Dataset.from_json("./tiny/data/train.jsonl").select(range(64))
    prompts = problems.map(lambda row: {"prompt": [{"role": "user", "content": row["problem"]}], "gold": row["answer"]})
    arguments = GRPOConfig(
        output_dir=tempfile.mkdtemp(), report_to=[], logging_steps=1, max_steps=2, save_strategy="no", use_cpu=on_cpu,
        bf16=not on_cpu, per_device_train_batch_size=8, num_generations=4, max_completion_length=24,
        use_vllm=True, vllm_mode="colocate",  # 1. an engine in every rank instead of generate(); nothing to serve
        vllm_gpu_memory_utilization=0.3,      # 2. the engine's share of each GPU; the rest is the trainer's
        vllm_max_model_length=256,            # 3. the longest prompt and completion together: the cache is sized by it
    )  # fmt: skip
    if on_cpu:  # vLLM's CPU backend cannot take TRL's weight sync as it is
        from training import engine, phases

        os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_USE_AOT_COMPILE="0")
        engine.install(phases.PhaseClock(None), seed=arguments.seed, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained("./tiny/checkpoint", padding_side="left")
    trainer = GRPOTrainer("./tiny/checkpoint", accuracy_boxed, arguments, prompts, processing_class=tokenizer)
    trainer.train()
    print(f"{trainer.state.global_step} steps, reward {trainer.state.log_history[0]['reward']:.2f}", flush=True)
    os._exit(0)  # an engine's own teardown can crash a run that has finished (vLLM 16993)
