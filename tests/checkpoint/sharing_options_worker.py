"""Two ranks that were given different groups to share what they read: what each raises, and how long that takes."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from holdfast import checkpoint
from holdfast.errors import HoldfastError

TIMEOUT = timedelta(seconds=20)
"""Longer than any of these loads may take."""


def outcome(work: Callable[[], Any]) -> tuple[str, float]:
    """What a load raised, and how long it took."""
    began = time.monotonic()
    try:
        work()
    except HoldfastError as error:
        return f"{type(error).__name__}: {error.message}", time.monotonic() - began
    except CheckpointException as error:
        (cause,) = {f"{type(cause).__name__}: {cause}" for cause, _ in error.failures.values()}
        return cause, time.monotonic() - began
    return "loaded", time.monotonic() - began


def main(given: str) -> None:
    folder = Path(given)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank = dist.get_rank()
    node, other = (checkpoint.node_group(timeout=TIMEOUT) for _ in range(2))
    selves = [dist.new_group([one], backend="gloo") for one in range(2)]
    path = folder / "c"
    checkpoint.save({"w": torch.ones(5)}, path, step=1)
    choices: dict[str, tuple[Any, Any]] = {
        "first": (node, None),
        "second": (None, node),
        "different": (node, other),
        "alone": (node, selves[1]),
        "one by itself": (selves[0], None),
        "each by itself": (selves[0], selves[1]),
        "both": (node, node),
        "neither": (None, None),
        "not a group": (node, "node"),
    }
    found: dict[str, Any] = {}
    for name, groups in choices.items():
        group = groups[rank]
        found[name] = outcome(partial(checkpoint.load, {"w": torch.zeros(5)}, path, share_within=group))
        if name != "not a group":
            reader = checkpoint.ParallelFileSystemReader(path, share_within=group)
            found[f"{name}, dcp"] = outcome(partial(dcp_load, {"w": torch.zeros(5)}, storage_reader=reader))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
