"""A recipe's trainer with its engine in this process, as the only rank of a run would have them: for the checks that look
inside both (check_sleep.py, check_equal.py). What a run's launcher does, its environment, is done here too.

On a GPU the recipe is the shape's own with random weights (measure_memory.py); without one it is tiny_colocate on one rank.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import inputs, measure_memory  # noqa: E402
from launch.environment import environment  # noqa: E402
from launch.recipe import read_yaml, resolve  # noqa: E402
from record import utc_now  # noqa: E402
from record.provenance import git_state  # noqa: E402

PROMPT_TOKENS = 128


def parser(description: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: the tiny model, in float32")
    made.add_argument("--shape", choices=tuple(inputs.MODELS), default="1.5b", help="of the model on a GPU")
    made.add_argument("--work", type=Path, default=Path("/tmp/measure_memory"), help="models and data")
    made.add_argument("--out", type=Path, help="the JSON record; results/h200/ by default")
    made.add_argument("--seconds", type=float, default=float("inf"), help="start no further item once they are over")
    return made


def prepare(arguments, settings: dict) -> dict:
    """The recipe's content, with its random model and its prompts made, and the environment of a single rank set. Before
    torch and vLLM are imported, which read it.

    Args:
        settings: what measure_memory.recipe takes: batch, accumulation, completion, checkpointing, utilization, sleep.
    """
    arguments.work = arguments.work.resolve()
    os.chdir(ROOT)
    if arguments.device == "cpu":
        content = _tiny(settings, arguments.work / "data" / "tiny")
    else:
        models, data = arguments.work / "models", arguments.work / "data" / "checks"
        inputs.make_models({(arguments.shape, None)}, models, arguments.device)
        inputs.make_data(data, PROMPT_TOKENS, distinct=True)
        item = settings | {"shape": arguments.shape, "arm": "colocate", "dtype": "bfloat16", "accelerate": "ddp",
                           "prompt": PROMPT_TOKENS}  # fmt: skip
        content = measure_memory.recipe(item, models / inputs.model_name(arguments.shape), data)
    content["data"]["eval_split"] = None
    found = environment(resolve(content, "check", "check"), arguments.work)
    os.environ.update({name: value for name, (value, _) in found.items()})
    single_rank()
    return content


def single_rank() -> None:
    """The environment of the only rank of a run, as torchrun would set it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=port)  # fmt: skip


def _tiny(settings: dict, data: Path) -> dict:
    content = read_yaml(ROOT / "recipes/tiny_colocate.yaml")
    content["cluster"]["gpus_per_node"] = 1
    data.mkdir(parents=True, exist_ok=True)
    rows = (ROOT / "tiny/data/train.jsonl").read_text().splitlines(keepends=True)[: inputs.ROWS]
    (data / "train.jsonl").write_text("".join(rows))
    content["data"]["path"] = str(data)
    grpo = content["grpo"]
    grpo |= {
        "max_steps": measure_memory.STEPS, "num_generations": measure_memory.GENERATIONS, "shuffle_dataset": False,
        "per_device_train_batch_size": settings["batch"], "gradient_accumulation_steps": settings["accumulation"],
        "max_completion_length": settings["completion"], "gradient_checkpointing": settings["checkpointing"],
    }  # fmt: skip
    if settings["checkpointing"]:
        grpo["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    return content


def install(arguments, content: dict, clock) -> None:
    """Makes TRL build the project's engine, as a run does. Compiling it only costs on a CPU."""
    from training import engine

    computes_in = "bfloat16" if content["grpo"]["bf16"] else content["model"]["dtype"]
    eager = {"enforce_eager": True} if arguments.device == "cpu" else None
    engine.install(clock, content["grpo"]["seed"], computes_in, engine_arguments=eager)


def build(content: dict, clock, folder: Path, rewards: list, trainer_class=None, dtype: str | None = None):
    """The trainer of a recipe and, where TRL builds one, its engine: as training/__main__.py makes them in a run.

    Args:
        dtype: what the weights are in, instead of the recipe's; float64, too.
    """
    import torch
    from transformers import AutoTokenizer, PrinterCallback

    from training.arguments import to_grpo_config
    from training.data import load_split
    from training.trainer import RecordedGRPOTrainer

    recipe = resolve(content, "check", "check")
    args = to_grpo_config(recipe, str(folder), [])
    if dtype:
        args.model_init_kwargs["dtype"] = getattr(torch, dtype)
    tokenizer = AutoTokenizer.from_pretrained(recipe["model"]["path"], padding_side="left")
    trainer = (trainer_class or RecordedGRPOTrainer)(
        clock=clock,
        score_in_loss=recipe["speedups"]["score_in_loss"],
        model=recipe["model"]["path"],
        reward_funcs=rewards,
        args=args,
        train_dataset=load_split(recipe, recipe["data"]["train_split"], tokenizer)[0],
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def prompts(trainer, count: int) -> list[list[int]]:
    """Token ids of the first `count` prompts of a step: each prompt as often as it has completions."""
    rows, generations = trainer.train_dataset, trainer.num_generations
    messages = [rows[index // generations]["prompt"] for index in range(count)]
    chat = trainer.processing_class.apply_chat_template
    return [chat(each, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"] for each in messages]


def provenance() -> dict:
    """What made a record: command, time, commit, versions and hardware."""
    from training.recording import hardware, software

    return {"command": shlex.join(["python", *sys.argv]), "started": utc_now(), "git": git_state(),
            "packages": software(), "hardware": hardware()}  # fmt: skip


def run(main) -> None:
    """Runs a check and ends at once, whatever comes: the interpreter's own teardown of engines and process groups has crashed
    what had finished, and hung what had failed."""
    code = 1
    try:
        code = main()
    except SystemExit as stop:  # argparse has said its word
        code = stop.code
    except Exception:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
