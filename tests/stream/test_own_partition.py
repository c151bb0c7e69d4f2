"""A partition and a shuffle of the user's own, which this package does not know, resume like any other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.stream.jobs import Job, numbers, run_job
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from holdfast.errors import StateMismatchError
from holdfast.order import Partition, Shuffle
from holdfast.order.assignment import Assignment, TableAssignment
from holdfast.order.shuffle import EpochOrder
from holdfast.stream import StreamDataset, StreamingConfig, StreamingShardLoader

LENGTH = 24


@dataclass(frozen=True)
class Snake(Partition):
    """Gives places to ranks there and back: 0, 1, 2, 2, 1, 0, 0, …"""

    marks: tuple[int, ...] = (1, 2)  # a tuple, which JSON knows as a list

    def assign(self, remaining: Any, sizes: Any, lanes: Any, mix: Any) -> Assignment:
        turn = np.arange(remaining.n) % (2 * sizes.world_size)
        rank = np.minimum(turn, 2 * sizes.world_size - 1 - turn)
        return TableAssignment(remaining, sizes, [np.flatnonzero(rank == each) for each in range(sizes.world_size)])

    def to_json(self) -> dict[str, Any]:
        return {"mine": "snake", "marks": self.marks}


@dataclass(frozen=True)
class Backwards(Shuffle):
    gaps: tuple[int, ...] = (1, 2)

    def bind(self, length: int, key: bytes) -> EpochOrder:
        return Reversed(length)

    def to_json(self) -> Any:
        return {"mine": "backwards", "gaps": self.gaps}


class Reversed(EpochOrder):
    def __init__(self, length: int) -> None:
        self._last = length - 1

    def forward(self, places: Any) -> Any:
        return self._last - places

    def inverse(self, indices: Any) -> Any:
        return self._last - indices


def loader_of(marks: tuple[int, ...] = (1, 2), gaps: tuple[int, ...] = (1, 2), **options: Any) -> StreamingShardLoader:
    dataset = StreamDataset(numbers(LENGTH), name="a", shuffle=Backwards(gaps))
    config = {"rank": 0, "world_size": 1, "batch_size": 2, "epochs": 1, "partition_strategy": Snake(marks), **options}
    return StreamingShardLoader(dataset, StreamingConfig(**config))


def in_memory(loader: StreamingShardLoader, again: StreamingShardLoader, _: Path) -> None:
    again.load_state_dict(loader.state_dict())


def as_text(loader: StreamingShardLoader, again: StreamingShardLoader, _: Path) -> None:
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))


def as_file(loader: StreamingShardLoader, again: StreamingShardLoader, folder: Path) -> None:
    loader.save(folder)
    again.resume(folder)


def through_dcp(loader: StreamingShardLoader, again: StreamingShardLoader, folder: Path) -> None:
    folder /= str(again.rank)
    dcp_save({"loader": loader}, checkpoint_id=folder, no_dist=True)
    dcp_load({"loader": again}, checkpoint_id=folder, no_dist=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("carry", [in_memory, as_text, as_file, through_dcp])
def test_a_state_of_your_own_partition_and_shuffle_is_continued_at_another_size(
    carry: Callable[[StreamingShardLoader, StreamingShardLoader, Path], None], tmp_path: Path
) -> None:
    loader = loader_of()
    before = [index for batch in islice(loader, 3) for index in batch["index"].tolist()]
    assert before == list(range(LENGTH - 1, LENGTH - 7, -1))
    after = []
    for rank in range(2):
        again = loader_of(world_size=2, rank=rank, last_batch="short")
        carry(loader, again, tmp_path)
        assert [ref.index for ref in again.samples_in(1)] == before[2:4]
        after.append([index for batch in again for index in batch["index"].tolist()])
    left = list(range(LENGTH - 7, -1, -1))
    assert after == [
        [i for n, i in enumerate(left) if n % 4 in (0, 3)],
        [i for n, i in enumerate(left) if n % 4 in (1, 2)],
    ]


def test_your_own_partition_and_shuffle_survive_several_sizes_and_worker_processes() -> None:
    jobs = [Job(2, 3, stop_after=1), Job(3, 1, workers=1, stop_after=2), Job(1, 4)]
    dataset = StreamDataset(numbers(LENGTH), name="a", shuffle=Backwards())
    steps, _ = run_job(dataset, jobs, partition=Snake(), epochs=2)
    read = [index for ranks in steps for batch in ranks for _, index in batch]
    assert sorted(read) == sorted([*range(LENGTH)] * 2)
    assert sorted(read[:LENGTH]) == [*range(LENGTH)]


def test_another_partition_or_shuffle_of_the_same_class_is_refused() -> None:
    state = json.loads(json.dumps(loader_of().state_dict()))
    for other in ({"marks": (1, 3)}, {"gaps": (9,)}):
        with pytest.raises(StateMismatchError, match="does not belong to this stream"):
            loader_of(**other).load_state_dict(state)
