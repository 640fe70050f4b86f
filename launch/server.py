"""The vLLM server of a run in the server arm: its command, its start, its end. launch/server_watch.py watches it in between.

The server is started through the module that `vllm serve` runs: the command itself refuses to start where vLLM is installed
under another name, as its CPU builds are. Its arguments are those that TRL 1.16.0 asks for (trl/generation/vllm_client.py),
and for the rest what the colocated engine of the same recipe would get.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from launch.command import computes_in, device_shares, environment
from launch.nodes import Place, addresses
from launch.recipe import ROOT
from launch.server_watch import Watch
from launch.shapes import model_shape, parameters
from record import RunFolder

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 32_768)  # below the ports that the kernel hands out by itself: nobody gets ours by chance
_LAST_LINES = 12
SERVER = "the vLLM server"  # how each of its causes begins
_TEARDOWN = ("[shutdown]", "nanobind:", "resource_tracker:")


def address(server: dict, place: Place | None = None) -> str:
    """Where the server listens: on the loopback interface if the trainers are on its host; else on the named one, or the
    one by which this node met the others.

    Raises:
        ValueError: no interface is named and none is known, or this host has none of that name with an IPv4 address.
    """
    if server["on_training_node"]:
        return LOOPBACK
    if server["interface"] is None and place:
        return place.address
    names = addresses()
    if server["interface"] not in names:
        raise ValueError(
            f"cluster.server.interface = {server['interface']!r}: must name the interface by which the training nodes reach "
            f"the server; this host has {', '.join(sorted(names))}"
        )
    return names[server["interface"]]


def free_port(host: str) -> int:
    """A port on which nobody listens.

    Raises:
        OSError: none was found in 100 attempts.
    """
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port among 100 tried on {host}")


def weight_transfer(recipe: dict) -> str:
    """nccl or gloo: what the recipe says, or what its devices can do."""
    choice = recipe["cluster"]["server"]["weight_transfer"]
    return choice if choice != "auto" else ("gloo" if recipe["cluster"]["gpu"] == "cpu" else "nccl")


def start_limit_seconds(recipe: dict) -> float:
    """How long the server may take until it is healthy: grpo.vllm_server_timeout if stated; else five minutes for imports,
    compilation and graphs (measured: 50 to 75 s), and the weights at 100 MB/s, which a slow shared disk gives."""
    stated = recipe["grpo"].get("vllm_server_timeout")
    if stated is not None:
        return stated
    count = parameters(model_shape(recipe["model"]["path"], recipe["model"]["revision"]) or {}) or 0
    return 300 + count * (2 if computes_in(recipe) == "bfloat16" else 4) / 100e6


def server_command(recipe: dict, host: str, port: int, from_step: int = 0) -> list[str]:
    """
    Args:
        from_step: of a resumed run. Its new server cannot go on with the old one's random numbers; with the old seed it would
            draw those of the first steps once more.
    """
    model, grpo, server = recipe["model"], recipe["grpo"], recipe["cluster"]["server"]
    transfer = weight_transfer(recipe)
    arguments = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", model["path"], *(["--revision", model["revision"]] if model["revision"] else []),
        "--dtype", computes_in(recipe), "--host", host, "--port", str(port),
        "--tensor-parallel-size", str(server["tensor_parallel_size"]),
        "--data-parallel-size", str(server["data_parallel_size"]),
        "--gpu-memory-utilization", str(server["gpu_memory_utilization"]),
        "--max-model-len", str(grpo["vllm_max_model_length"]),
        "--seed", str((grpo["seed"] * 1_000_003 + from_step) % 2**31),  # as the colocated engines (training/engine.py)
        # what TRL needs: log-probabilities of what was really sampled, of every token, and a way in for the weights
        "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1",
        "--weight-transfer-config", json.dumps({"backend": transfer}),
        "--disable-uvicorn-access-log",
    ]  # fmt: skip
    if transfer == "gloo":
        arguments += ["--worker-extension-cls", "training.gloo_transfer.Registration"]
    if model["trust_remote_code"]:
        arguments.append("--trust-remote-code")
    return arguments


def server_environment(recipe: dict, folder: RunFolder, host: str, place: Place | None = None) -> dict[str, str]:
    """The launcher's variables for this run, and the server's own."""
    variables = {name: value for name, (value, _) in environment(recipe, folder.path, place).items()}
    variables |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_HOST_IP": host}  # TRL's routes are vLLM's development routes
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        variables["VLLM_LOGGING_LEVEL"] = "INFO"  # when it dies, the last lines should say of what
    if recipe["cluster"]["gpu"] != "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = device_shares(recipe)[1]
    return variables


def trainer_environment(recipe: dict, host: str) -> dict[str, str]:
    """What the training ranks need beside the recipe's variables: their own devices, and no proxy on the way to the server,
    whatever the person's own exceptions are."""
    own = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    exceptions = ",".join(filter(None, [own, host]))
    variables = {"no_proxy": exceptions, "NO_PROXY": exceptions}
    if recipe["cluster"]["gpu"] != "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = device_shares(recipe)[0]
    return variables


def last_lines(folder: RunFolder) -> list[str]:
    """The end of the server's log, before the noise that it makes while it goes down."""
    path = log_path(folder)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    noise = [number for number, line in enumerate(lines) if any(marker in line for marker in _TEARDOWN)]
    return lines[: noise[0] if noise else None][-_LAST_LINES:]


def log_path(folder: RunFolder) -> Path:
    return folder.logs_path / "server.log"


class Server:
    """One server for one run; a new run starts a new one, since an old one still holds the last trainer's group (TRL 3408)."""

    def __init__(
        self, recipe: dict, folder: RunFolder, place: Place | None = None, tell: Callable[[dict], object] | None = None
    ):
        """
        Args:
            place: on several nodes, this one's.
            tell: gets the manifest's `server` section as it becomes known; by default it goes there.
        """
        self.host = address(recipe["cluster"]["server"], place)
        self.port = recipe["cluster"]["server"]["port"] or free_port(self.host)
        self.url = f"http://{self.host}:{self.port}"
        self.cause: str | None = None
        self._recipe, self._folder, self._place = recipe, folder, place
        self._tell = tell or (lambda facts: folder.update(server=facts))
        self._process: subprocess.Popen | None = None
        self._watch = Watch(self.url, folder.server_phases_path)

    def start(self) -> None:
        """Starts it and returns at once."""
        from_step = self._folder.manifest()["attempts"][-1]["from_step"]
        command = server_command(self._recipe, self.host, self.port, from_step)
        self._facts = {
            "url": self.url,
            "host": self.host,
            "weight_transfer": weight_transfer(self._recipe),
            "command": command,
            "healthy_seconds": None,
        }
        self._tell(self._facts)
        self._started = time.monotonic()
        variables = server_environment(self._recipe, self._folder, self.host, self._place)
        with open(log_path(self._folder), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "launch.guard", *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, env=os.environ | variables,
                start_new_session=True,  # a Ctrl-C reaches the launcher alone
            )  # fmt: skip

    def healthy(self) -> bool:
        """Whether it answers. Look at `cause` too: it may have died instead, or its time may be over."""
        if self.failure() or not self._watch.answers():
            waited, limit = time.monotonic() - self._started, start_limit_seconds(self._recipe)
            if not self.cause and waited > limit:
                self.cause = (
                    f"{SERVER} was not healthy within {limit:.0f} s; if it only needs longer (its log says), state "
                    "grpo.vllm_server_timeout in seconds"
                )
            return False
        seconds = round(time.monotonic() - self._started, 1)
        self._tell(self._facts | {"healthy_seconds": seconds})
        return True

    def watch(self) -> None:
        """From here on a thread looks after it. After the last fork: a child of a process with threads may hang."""
        self._watch.start()

    def failure(self) -> str | None:
        """How the server died or went deaf, if it did; kept as `cause`."""
        code = self._process.poll() if self._process else None
        if self.cause is None and code is not None:
            how = (
                f"killed by {signal.Signals(code - 128).name}" if code > 128 else f"exit code {code}"
            )  # launch/guard.py
            self.cause = f"{SERVER} died ({how})"
        if self.cause is None and self._watch.complaint:
            self.cause = f"{SERVER} {self._watch.complaint}"
        return self.cause

    def stop(self) -> None:
        """Ends it and all its processes (launch/guard.py); returns when they are gone, or after 12 s."""
        self._watch.stop()
        if self._process and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(12)
            except subprocess.TimeoutExpired:
                self._process.kill()  # the launcher ends what is left
