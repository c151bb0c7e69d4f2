"""The environment of a run, recorded once per attempt: versions, host, commit and the command line."""

from __future__ import annotations

import importlib.metadata
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["describe_environment"]

_PACKAGES = ("holdfast", "torch", "numpy", "transformers", "lightning", "accelerate", "datasets", "ray")


def describe_environment() -> dict[str, Any]:
    """Return versions, host, devices, the git commit (and whether files differ from it) and the command line."""
    return {
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name)) is not None},
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "devices": _devices(),
        "command": sys.argv,
        **_commit(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ["cpu"]
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _commit() -> dict[str, Any]:
    """Return the commit of the folder the program was started in; empty without git."""
    try:
        commit = _git("rev-parse", "HEAD").strip()
        return {"commit": commit, "uncommitted": bool(_git("status", "--porcelain", "--untracked-files=no").strip())}
    except (OSError, subprocess.SubprocessError):
        return {}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=Path.cwd(), capture_output=True, text=True, timeout=10, check=True)
    return done.stdout
