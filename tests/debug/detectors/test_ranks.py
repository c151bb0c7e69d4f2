"""Faults of ranks: desynchronised, hung; and that sharded parameters and pipeline traffic are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import found_by, signal

from holdfast.debug.detectors import DistributedDesyncDetector, HangDetector
from holdfast.debug.types import DetectionContext, Signal


def hashes(layer: str, rank: int, values: list[float], **metadata: Any) -> Signal:
    return signal(f"{layer}/rank{rank}", values, kind="param_hash", layer=layer, replica=rank, metadata=metadata)


@given(first=st.integers(1, 18), odd=st.integers(0, 3))
def test_the_first_differing_step_and_the_odd_rank_are_named(first: int, odd: int) -> None:
    signals = []
    for rank in range(4):
        own = [float(step if step < first or rank != odd else 1000 + step) for step in range(20)]
        signals += [hashes("w", rank, own), hashes("b", rank, [7.0] * 20)]
    (found,) = found_by(DistributedDesyncDetector(), *signals)
    assert (found.first_step, found.replica, found.layer) == (first, odd, "w")


def test_parameters_marked_as_sharded_may_differ() -> None:
    signals = [hashes("shard", rank, [float(rank)] * 5, sharded=True) for rank in range(2)]
    assert found_by(DistributedDesyncDetector(), *signals) == ()


def test_parameters_that_never_agreed_while_others_do_are_shards() -> None:
    signals = [hashes("shard", rank, [float(rank)] * 5) for rank in range(2)]
    signals += [hashes("replicated", rank, [3.0] * 5) for rank in range(2)]
    assert found_by(DistributedDesyncDetector(), *signals) == ()


def test_ranks_that_start_from_different_weights_are_desynchronised() -> None:
    signals = [hashes(layer, rank, [float(rank + 1)] * 5) for rank in range(2) for layer in ("w", "b")]
    (found,) = found_by(DistributedDesyncDetector(), *signals)
    assert (found.first_step, found.replica) == (0.0, None)


def test_only_steps_that_ranks_share_are_compared() -> None:
    early = signal("w/rank0", [1, 2, 3], kind="param_hash", layer="w", replica=0, steps=[0, 1, 2])
    late = signal("w/rank1", [3, 4, 5], kind="param_hash", layer="w", replica=1, steps=[2, 3, 4])
    assert found_by(DistributedDesyncDetector(), early, late) == ()


def status(rank: int, group: str, ranks: tuple[int, ...], enqueued: int, completed: int) -> dict[str, Any]:
    return {
        "type": "collective_status",
        "replica": rank,
        "group": group,
        "group_description": "default",
        "group_ranks": ranks,
        "last_enqueued": enqueued,
        "last_started": -1,
        "last_completed": completed,
    }


def hung_ranks(*events: dict[str, Any]) -> list[int | None]:
    collective = signal("collective/0", np.zeros(1), kind="collective")
    found = found_by(HangDetector(), collective, context=DetectionContext(events=events))
    return [detection.replica for detection in found]


@given(world=st.integers(2, 16), data=st.data())
def test_every_rank_that_never_entered_is_named_and_no_other(world: int, data: st.DataObject) -> None:
    hung = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=world - 1))
    ranks = tuple(range(world))
    events = [status(rank, "0", ranks, 9 if rank in hung else 10, 9) for rank in ranks]
    assert hung_ranks(*events) == sorted(hung)


def test_a_rank_stuck_behind_another_group_is_a_victim() -> None:
    # Rank 2 hangs. Rank 1 waits for it in group "b", and therefore never reaches group "a", where rank 0 waits.
    events = [
        status(0, "a", (0, 1), 5, 4),
        status(1, "a", (0, 1), 4, 4),
        status(1, "b", (1, 2), 8, 7),
        status(2, "b", (1, 2), 7, 7),
    ]
    assert hung_ranks(*events) == [2]


def test_a_rank_that_left_no_dump_is_named_while_others_wait() -> None:
    events = [status(rank, "0", (0, 1, 2), 10, 9) for rank in (0, 1)]
    assert hung_ranks(*events) == [2]


def test_ranks_that_finished_the_same_collectives_are_not_hung() -> None:
    assert hung_ranks(*[status(rank, "0", (0, 1), 10, 10) for rank in (0, 1)]) == []


def test_pipeline_stages_may_count_their_messages_differently() -> None:
    message = {
        "type": "collective",
        "replica": 0,
        "group": "p",
        "point_to_point": True,
        "sequence": 3,
        "state": "scheduled",
    }
    events = [message, status(0, "p", (0, 1), 40, 39), status(1, "p", (0, 1), 25, 24)]
    assert hung_ranks(*events) == []
