"""Whether a model or data set of the hub can be had on this node: in its cache, or over the network."""

import os
import urllib.error
import urllib.request
from pathlib import Path

SECONDS = 5


def cached(name: str, kind: str) -> bool:
    """Whether the hub's cache has a snapshot of it."""
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface")) / "hub")
    return any((cache.expanduser() / f"{kind}s--{name.replace('/', '--')}" / "snapshots").glob("*/*"))


def reachable(name: str, revision: str | None, kind: str) -> tuple[str, str, str]:
    """State (ok, warning, error), what was found, and the mend.

    Args:
        kind: model or dataset.
    """
    if cached(name, kind):
        return "ok", "in the hub's cache", ""
    if os.environ.get("HF_HUB_OFFLINE") == "1":
        return (
            "error",
            "HF_HUB_OFFLINE is set, and the cache does not have it",
            "download it first, or unset HF_HUB_OFFLINE",
        )
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    file, prefix = ("config.json", "") if kind == "model" else ("README.md", "datasets/")
    url = f"{endpoint}/{prefix}{name}/resolve/{revision or 'main'}/{file}"
    headers = {"Authorization": f"Bearer {os.environ['HF_TOKEN']}"} if os.environ.get("HF_TOKEN") else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="HEAD"), timeout=SECONDS):
            return "ok", "on the hub", ""
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return "error", f"the hub refuses it (HTTP {error.code})", "accept its licence there, and set HF_TOKEN"
        return "error", f"the hub has no such thing (HTTP {error.code} for {file})", "look at the name and the revision"
    except (OSError, ValueError) as error:
        why = f"not in the cache, and {endpoint} does not answer ({getattr(error, 'reason', error)})"
        return "error", why, "download it on a node with a network first"
