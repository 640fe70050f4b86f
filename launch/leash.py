"""The far end of an ssh: runs a command for as long as somebody holds the other end: python -m launch.leash COMMAND...

The first line of its standard input is the environment that matters (JSON; `--environment` at the near end prints it): no key
stands on a command line. Each further line is the name of a signal for the command. When the input ends, because the ssh or
whoever started it is gone, the command gets SIGHUP. Exit code: the command's, or 128 + the signal that killed it.
"""

import json
import os
import select
import signal
import subprocess
import sys

from launch.children import die_with_parent

_PREFIXES = (
    "NCCL_",
    "GLOO_",
    "VLLM_",
    "OMP_",
    "HF_",
    "WANDB_",
    "TORCH",
    "PYTORCH_",
    "CUDA_",
    "ACCELERATE_",
    "DS_",
    "TRITON_",
)
_NAMES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "PYTHONPATH", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY",
          "HTTPS_PROXY", "NO_PROXY")  # fmt: skip
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


def matters(variables) -> dict[str, str]:
    """The part of an environment that goes to the other nodes: the rest is theirs."""
    return {name: value for name, value in variables.items() if name.startswith(_PREFIXES) or name in _NAMES}


def main() -> int:
    if sys.argv[1:] == ["--environment"]:
        print(json.dumps(matters(os.environ)))
        return 0
    line = _line()
    if not line:
        return 128 + signal.SIGHUP  # nobody is there any more
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: command.send_signal(received))
    command = subprocess.Popen(
        sys.argv[1:], env=os.environ | json.loads(line), stdin=subprocess.DEVNULL,
        preexec_fn=die_with_parent,  # noqa: PLW1509, no thread runs here
    )  # fmt: skip
    listening = True
    while command.poll() is None:
        if not select.select([0] if listening else [], [], [], 0.2)[0]:
            continue
        word = _line()
        listening = bool(word)
        name = word.decode(errors="replace").strip() if word else "SIGHUP"
        if name in _SIGNALS:
            command.send_signal(signal.Signals[name])
    return command.returncode if command.returncode >= 0 else 128 - command.returncode


def _line() -> bytes:
    """The next line, without reading ahead; empty at the end of the input."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return b""
        line += byte
    return line


if __name__ == "__main__":
    sys.exit(main())
