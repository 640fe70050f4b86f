"""A random model of a given configuration: `python -m training.random_model FOLDER TOKENIZER_FOLDER CONFIG_JSON [DEVICE]`.

`launch run --shrink` calls it, and benchmarks/measure_memory.py, for large models on a GPU. Seeded, so that a
shrunk recipe starts from the same weights wherever it runs.
"""

import json
import os
import sys
import tempfile
from pathlib import Path


def make(folder: Path, tokenizer_folder: str, config: dict, device: str = "cpu") -> None:
    """Writes weights, configuration and tokenizer to `folder`, in one step: it is whole or absent."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    settings = dict(config)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(settings.pop("model_type"), **settings))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        made = Path(temporary) / folder.name
        model.to(getattr(torch, config["dtype"])).save_pretrained(made)
        AutoTokenizer.from_pretrained(tokenizer_folder).save_pretrained(made)
        try:
            os.rename(made, folder)
        except OSError:
            if not (folder / "model.safetensors").is_file():  # unless another process was first
                raise


if __name__ == "__main__":
    make(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), *sys.argv[4:])
