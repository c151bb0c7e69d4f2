"""Saving a checkpoint: holdfast, with its manifest, against torch's own save; and what other digests would cost.

Both sides write the same state to the same disk and sync it, in random order; a ratio is that of their medians. Where a
disk takes some saves twice as long as others, on both sides and at no regular interval, that ratio says little: the one
of the medians of each side's faster half is beside it. The digests run over the bytes of the state once, on one thread:
what a second pass over the payload would add to a save, since torch computes the CRC-32 that the manifest uses while
it writes.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from zlib_ng import zlib_ng

from checkpoint_load import State, make_state
from common import alternate, arguments, publish
from holdfast import checkpoint

ROUNDS = 15
MIN_BYTES_PER_TINY = 64


def measured(state: dict[str, Any], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of every save by each side, sorted; removing what was written is not measured."""
    sides: dict[str, Callable[[Path], object]] = {
        "stock": lambda path: dcp.save(state, storage_writer=dcp.FileSystemWriter(path), no_dist=True),
        "holdfast": lambda path: checkpoint.save(state, path, step=1),
    }
    order = [*sides] * rounds
    random.Random(0).shuffle(order)
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for name in (*sides, *order):  # the first two warm up
        path = folder / name
        began = time.perf_counter()
        sides[name](path)
        taken[name].append(time.perf_counter() - began)
        shutil.rmtree(path)
        os.sync()
    return {name: sorted(seconds[1:]) for name, seconds in taken.items()}


def ratio(taken: dict[str, list[float]], share: float = 1.0) -> float:
    """Return holdfast's median over torch's, of this share of the saves, the fastest ones."""
    ours, stock = (statistics.median(taken[name][: int(share * ROUNDS)]) for name in ("holdfast", "stock"))
    return ours / stock


def bench_digests(figures: dict[str, float], about: dict[str, Any], state: State, save_seconds: float) -> None:
    payloads = [memoryview(value.view(-1).view(torch.uint8).numpy()) for value in state.values()]
    total = sum(map(len, payloads))
    digests: dict[str, Callable[[memoryview], object]] = {
        "CRC-32 (zlib-ng)": zlib_ng.crc32,
        "BLAKE2b": lambda data: hashlib.blake2b(data, digest_size=16).digest(),
    }
    try:
        import xxhash

        digests["XXH3-128"] = xxhash.xxh3_128_digest
    except ImportError:
        about["xxhash"] = "not installed"
    try:
        import blake3

        digests["BLAKE3"] = lambda data: blake3.blake3(data).digest()
    except ImportError:
        about["blake3"] = "not installed"
    sides = {name: lambda digest=digest: [digest(data) for data in payloads] for name, digest in digests.items()}
    for name, seconds in alternate(sides, ROUNDS, clock=time.process_time).items():
        figures[f"{name}: GB/s"] = total / 1e9 / seconds
        figures[f"{name} of the payload: share of a save"] = seconds / save_seconds


def main() -> None:
    options = arguments(__doc__.splitlines()[0])
    warnings.simplefilter("ignore")
    figures: dict[str, float] = {}
    about: dict[str, Any] = {"torch": torch.__version__, "rounds": ROUNDS}
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    try:
        state = make_state((128 << 20) if options.quick else (1 << 30))
        taken = measured(state, folder, ROUNDS)
        size = sum(value.nbytes for value in state.values())
        stock = statistics.median(taken["stock"])
        figures["torch's save: GB/s"] = size / 1e9 / stock
        figures["holdfast's save: GB/s"] = size / 1e9 / statistics.median(taken["holdfast"])
        figures["holdfast's time over torch's"] = ratio(taken)
        figures["holdfast's time over torch's, faster half"] = ratio(taken, 0.5)
        bench_digests(figures, about, state, stock)
        tiny = {f"t{number}": torch.randn(MIN_BYTES_PER_TINY) for number in range(300 if options.quick else 3000)}
        taken = measured(tiny, folder, ROUNDS)
        figures[f"{len(tiny)} tiny tensors: holdfast's time over torch's"] = ratio(taken)
    finally:
        shutil.rmtree(folder)
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
