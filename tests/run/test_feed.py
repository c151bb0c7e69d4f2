"""Which batches a step was made of, where some of them are left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.run.feed import Feed


def steps_of(taken: list[str]) -> list[tuple[int, int]]:
    """Take batches and make steps as told; return each step's first batch, and one past its last."""
    attempt: Any = SimpleNamespace(batch=0)
    feed = Feed(attempt, SimpleNamespace(loader=object(), has_order=False))  # type: ignore[arg-type]
    steps = []
    for what in taken:
        if what == "step":
            steps.append((feed.first_batch, attempt.batch))
            feed.close_step(len(steps))
            continue
        attempt.batch += 1
        if what == "left out":
            feed.leave_out()
    return steps


def test_a_step_begins_after_the_batches_left_out_before_it() -> None:
    assert steps_of(["batch", "step", "left out", "left out", "batch", "step"]) == [(0, 1), (3, 4)]


def test_a_batch_left_out_among_accumulated_ones_takes_none_of_the_others_away() -> None:
    assert steps_of(["batch", "left out", "batch", "step", "batch", "step"]) == [(0, 3), (3, 4)]
