"""The training run's own checkpoint: restored with both readers, compared, and loaded with one bit flipped."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.cli.demo import Row
from holdfast.errors import CorruptRecordError

__all__ = ["run"]

ROUNDS = 7


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Load with both readers in turn, compare the results, then damage a copy and load it."""
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint

    from holdfast.checkpoint import ParallelFileSystemReader
    from holdfast.cli.demo.trainer import CharacterModel, training_state

    path = sorted((folder / "undisturbed").glob("step-*"))[-1]
    size = sum(file.stat().st_size for file in path.iterdir())

    def fresh() -> dict[str, Any]:
        model = CharacterModel()
        return training_state(model, torch.optim.AdamW(model.parameters()), "")

    def load(reader: Any) -> tuple[float, dict[str, Any]]:
        state = fresh()
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that it loads in one process, which is intended
            load_checkpoint(state, storage_reader=reader, no_dist=True)
        return time.perf_counter() - began, state

    stock_seconds, fast_seconds = [], []
    for _ in range(ROUNDS):
        seconds, stock = load(FileSystemReader(path))
        stock_seconds.append(seconds)
        seconds, fast = load(ParallelFileSystemReader(path))
        fast_seconds.append(seconds)
    ratio = median(stock_seconds) / median(fast_seconds)
    equal = _equal(stock, fast)
    slow, quick = 1e3 * median(stock_seconds), 1e3 * median(fast_seconds)
    say(f"{size / 1e6:.0f} MB: torch's reader {slow:.0f} ms, holdfast {quick:.0f} ms with every record's CRC checked:")
    say(f"{ratio:.1f}× as fast; bit-equal: {equal}")
    damaged = folder / "damaged"
    shutil.copytree(path, damaged)
    victim = max(damaged.glob("*.distcp"), key=lambda file: file.stat().st_size)
    with open(victim, "r+b") as file:
        file.seek(victim.stat().st_size // 3)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    load(FileSystemReader(damaged))
    caught = ""
    try:
        load(ParallelFileSystemReader(damaged))
    except (CorruptRecordError, CheckpointException) as error:
        caught = _first_line(error)
    say("one bit flipped on disk: torch's reader loads it without an error;")
    say(f"holdfast: {caught or 'missed it'}")
    return [
        Row("checkpoint restore beside torch's reader", f"{ratio:.1f}× (verified), bit-equal: {equal}", equal),
        Row("a flipped bit", "caught and named" if caught else "missed", bool(caught)),
    ]


def _first_line(error: BaseException) -> str:
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    return str(error).splitlines()[0][:240]


def _equal(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)
