"""Rules about what a recipe names: the model, the data set, the system prompt."""

import json
from collections.abc import Iterator
from pathlib import Path

from launch.clusters import CPU, CPU_RANKS_MOST, GPUS
from launch.problems import Problem, nearest
from launch.recipe import system_prompts
from launch.shapes import KNOWN_DATA, is_local, model_shape

# vLLM and transformers would load others too; these are what the shapes, the shrunk models and the weight sync are tried with.
MODEL_TYPES = ("qwen2", "llama", "qwen3")


def model(recipe: dict) -> Iterator[Problem]:
    path, revision = recipe["model"]["path"], recipe["model"]["revision"]
    if is_local(path) and revision is not None:
        yield Problem("model.revision", revision, f"means nothing for the folder model.path = {path}", "set it to null")
    try:
        shape = model_shape(path, revision)
    except FileNotFoundError:
        yield Problem("model.path", path, "must be a folder with a config.json", "give the model's folder, or a hub id")
    except (ValueError, OSError) as error:
        yield Problem("model.path", path, str(error), "export the model again with save_pretrained")
    else:
        if is_local(path) and not [*Path(path).glob("*.safetensors"), *Path(path).glob("*.bin")]:
            yield Problem(
                "model.path", path, "must hold weights (*.safetensors)", "copy the weights beside config.json"
            )
        if shape and shape.get("model_type") not in MODEL_TYPES:
            yield Problem(
                "model.path",
                path,
                f"is of the type {shape.get('model_type')}, which nobody has tried here",
                f"tried: {', '.join(MODEL_TYPES)}",
                warning=True,
            )
        if shape is None:
            yield Problem(
                "model.path",
                path,
                "its shape is not known here, so heads, lengths and memory go unchecked",
                "download its config.json into the hub's cache",
                warning=True,
            )


def data(recipe: dict) -> Iterator[Problem]:
    section = recipe["data"]
    path, prompts, name = section["path"], system_prompts(), section["system_prompt"]
    if name is not None and name not in prompts:
        mend = f"one of {', '.join(prompts)}, or null for none"
        yield Problem("data.system_prompt", name, "must be a name in launch/system_prompts.yaml", mend)
    if section["prompt_column"] == section["gold_column"]:
        yield Problem(
            "data.gold_column",
            section["gold_column"],
            "is the prompt column too: the prompt would hold the answer",
            "name the column with the answer or the worked solution",
        )
    if section["eval_split"] == section["train_split"]:
        yield Problem(
            "data.eval_split",
            section["eval_split"],
            "is data.train_split: nothing would be held out",
            "name another split, or null for no evaluation",
        )
    if is_local(path):
        for key in ("config", "revision"):
            if section[key] is not None:
                yield Problem(
                    f"data.{key}", section[key], f"means nothing for the folder data.path = {path}", "set it to null"
                )
        yield from _local(section)
        return
    if section["revision"] is None:
        yield Problem(
            "data.revision",
            None,
            "is not pinned: the data set can change under the recipe",
            "state a commit of the data set",
            warning=True,
        )
    known = KNOWN_DATA.get(path)  # of other sets on the hub the ranks learn it, before any engine starts
    if known:
        for key, allowed in (
            ("config", known["configs"]),
            ("train_split", known["splits"]),
            ("eval_split", (*known["splits"], None)),
            ("prompt_column", known["columns"]),
            ("gold_column", known["columns"]),
        ):
            if section[key] not in allowed:
                yield _unlike(
                    f"data.{key}",
                    section[key],
                    f"must be one that data.path = {path} has",
                    [item for item in allowed if item],
                )


def _unlike(field: str, value, rule: str, known) -> Problem:
    near = nearest(value, known)
    return Problem(field, value, rule, f"did you mean {near}?" if near else f"there are {', '.join(sorted(known))}")


def _local(section: dict) -> Iterator[Problem]:
    for split in filter(None, (section["train_split"], section["eval_split"])):
        try:
            columns = split_columns(section["path"], split)
        except FileNotFoundError as error:
            key = "train_split" if split == section["train_split"] else "eval_split"
            yield Problem(f"data.{key}", split, f"{error} (data.path)", f"put {split}.jsonl or {split}.parquet there")
            continue
        except (ValueError, OSError) as error:
            yield Problem("data.path", section["path"], str(error), "write one JSON object on each line")
            continue
        for key in ("prompt_column", "gold_column"):
            if section[key] not in columns:
                yield _unlike(
                    f"data.{key}", section[key], f"must be a column of the split {split} of data.path", columns
                )


def split_file(path: str, split: str) -> Path:
    """The file that holds a split of a local data set: <split>.jsonl, .json or .parquet in a folder, or the file itself.

    Raises:
        FileNotFoundError: there is none.
    """
    folder = Path(path)
    if folder.is_file():
        return folder
    for ending in ("jsonl", "json", "parquet"):
        candidate = folder / f"{split}.{ending}"
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"no file for the split {split} in {path}")


def split_columns(path: str, split: str) -> set[str]:
    """The column names of a split, from its first line or its parquet footer.

    Raises:
        FileNotFoundError, ValueError: no such file; not JSON lines, or no row.
    """
    file = split_file(path, split)
    if file.suffix == ".parquet":
        import pyarrow.parquet

        try:
            return set(pyarrow.parquet.read_schema(file).names)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{file}: no parquet file ({error})") from error
    with open(file, encoding="utf-8") as lines:
        first = lines.readline()
    try:
        row = json.loads(first)
    except ValueError as error:
        raise ValueError(f"{file}: line 1 is no JSON object ({error})") from error
    if not isinstance(row, dict):
        raise ValueError(f"{file}: line 1 is no JSON object")
    return set(row)


def cluster(recipe: dict) -> Iterator[Problem]:
    section, arm = recipe["cluster"], recipe["recipe"]["arm"]
    kind, server = section["gpu"], section["server"]
    if kind != CPU and kind not in GPUS:
        yield _unlike("cluster.gpu", kind, "must be a kind of launch/clusters.py", [CPU, *GPUS])
        return
    most = CPU_RANKS_MOST if kind == CPU else GPUS[kind].per_node_most
    used = section["gpus_per_node"] + (server["gpus_per_node"] if server and server["on_training_node"] else 0)
    if used > most:
        beside = " and cluster.server.gpus_per_node" if used > section["gpus_per_node"] else ""
        yield Problem(
            f"cluster.gpus_per_node{beside}",
            used,
            f"a node with {kind} (cluster.gpu) has at most {most}",
            "spread over more nodes",
        )
    if arm == "server" and server is None:
        yield Problem(
            "cluster.server",
            None,
            "the server arm (recipe.arm) needs GPUs of its own",
            "add {nodes, gpus_per_node, tensor_parallel_size}",
        )
    if arm != "server" and server is not None:
        yield Problem(
            "cluster.server",
            server,
            f"means nothing in the arm {arm} (recipe.arm)",
            "leave it out, or use recipe.arm: server",
        )
    if server is None or arm != "server":
        return
    if server["on_training_node"] and (section["nodes"] > 1 or server["nodes"] > 1):
        yield Problem(
            "cluster.server.on_training_node",
            True,
            "is for one training node (cluster.nodes) and a server on it (cluster.server.nodes)",
            "give the server nodes of its own",
        )
    if server["gpus_per_node"] > most:
        yield Problem(
            "cluster.server.gpus_per_node",
            server["gpus_per_node"],
            f"a node with {kind} (cluster.gpu) has at most {most}",
            "spread over more nodes",
        )
    if kind == CPU and server["weight_transfer"] == "nccl":
        yield Problem(
            "cluster.server.weight_transfer",
            "nccl",
            "needs GPUs, and cluster.gpu is cpu",
            "auto, or gloo",
        )
    if server["on_training_node"] and server["interface"]:
        yield Problem(
            "cluster.server.interface",
            server["interface"],
            "means nothing with cluster.server.on_training_node: such a server listens on the loopback interface alone",
            "leave it out",
        )
    has, wants = (
        server["nodes"] * server["gpus_per_node"],
        server["tensor_parallel_size"] * server["data_parallel_size"],
    )
    if has != wants:
        yield Problem(
            "cluster.server.tensor_parallel_size",
            server["tensor_parallel_size"],
            f"x data_parallel_size {server['data_parallel_size']} = {wants}, but nodes x gpus_per_node = {has}",
            "make the product equal",
        )
    elif server["gpus_per_node"] % server["tensor_parallel_size"] and not section["tensor_parallel_spans_nodes"]:
        yield Problem(
            "cluster.server.tensor_parallel_size",
            server["tensor_parallel_size"],
            f"must divide the {server['gpus_per_node']} GPUs of a server node: a TP group would span nodes",
            "use a smaller size, or set cluster.tensor_parallel_spans_nodes: true",
        )


RULES = (model, data, cluster)
