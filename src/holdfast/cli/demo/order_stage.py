"""The order at work: a trillion samples, 100,000 ranks, forwards and backwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from holdfast.cli.demo import Row
from holdfast.order import Contiguous, Order, Schedule, SourceSpec

__all__ = ["run"]

SAMPLES = 10**12
RANKS = 100_000
WINDOW = 8192


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Locate, invert, resize; check each against the others."""
    rows = []
    order = Order([SourceSpec("corpus", SAMPLES, seed=7)])
    seconds = []
    for number in range(40):
        positions = np.arange(number * WINDOW, (number + 1) * WINDOW) + SAMPLES // 2
        began = time.perf_counter()
        located = order.locate(positions)
        seconds.append(time.perf_counter() - began)
    rate = WINDOW / float(np.median(seconds)) / 1e6
    back = order.position_of("corpus", int(located.epoch[0]), located.index)
    say(f"shuffle of {SAMPLES:.0e} samples, computed and not stored: {rate:.0f} M positions/s, nothing kept in memory")
    say(f"position {positions[0]:,} holds sample {located.index[0]:,}; inverted: position {back[0]:,}")
    rows.append(Row("any position ↔ any sample of 10¹²", f"{rate:.0f} M/s", bool((back == positions).all())))

    names = ["web", "code", "books"]
    mixture = Order(
        [SourceSpec(name, 10**9, seed=1) for name in names], weights={"web": 0.62, "code": 0.27, "books": 0.11}, seed=3
    )
    source = mixture.locate(np.arange(1 << 20)).source
    counts = np.bincount(source, minlength=3)
    off = np.abs(counts - np.array([0.62, 0.27, 0.11]) * (1 << 20)).max()
    say(f"mixture 62/27/11 over {1 << 20:,} positions: counts {counts.tolist()}, at most {off:.2f} samples off")
    rows.append(Row("mixture ratios", f"{off:.2f} samples off after 10⁶", bool(off <= 1)))

    big = Order([SourceSpec("corpus", SAMPLES, seed=7)], partition=Contiguous())
    schedule = Schedule.start(big, world_size=RANKS, global_batch_size=RANKS * 8)
    for step, ranks in ((10_000, RANKS - 1), (20_000, 77_777), (40_000, RANKS)):
        schedule = schedule.resized(step, world_size=ranks, global_batch_size=ranks * 8)
    began = time.perf_counter()
    found = schedule.positions(123_456, 54_321)
    micros = 1e6 * (time.perf_counter() - began)
    who = schedule.assigned(found)
    size = len(json.dumps({**big.to_json(), **schedule.to_json()}))
    say(f"rank 54,321 of {RANKS:,}, step 123,456, three resizes in mid-epoch: {micros:.0f} µs; state {size} bytes")
    held = bool((who.step == 123_456).all() and (who.rank == 54_321).all())
    rows.append(Row("share of any rank after three resizes", f"{micros:.0f} µs, {size} bytes of state", held))
    return rows
