"""Which code made a record: the commit, and whether the tree differs from it."""

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def git_state() -> dict:
    """The commit, and whether the tree differs from it; nulls outside a git checkout, or without git."""
    if shutil.which("git") is None:
        return {"commit": None, "dirty": None}

    def git(*arguments):
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "dirty": bool(git("status", "--porcelain")) if commit else None}
