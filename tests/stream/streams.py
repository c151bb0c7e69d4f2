"""Streams to test with: five shards of unequal length, whose rows say which they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets

from holdfast.stream import HFStreamingDataset

__all__ = ["LENGTHS", "SHARDS", "TOTAL", "as_list", "ids", "rows", "stream", "streamed"]

SHARDS = 5
LENGTHS = [23, 7, 31, 16, 12]
TOTAL = sum(LENGTHS)


def rows(shards: list[int]) -> Iterator[dict[str, Any]]:
    """The rows of some shards."""
    for shard in shards:
        first = sum(LENGTHS[:shard])
        yield from ({"id": first + i, "tokens": [1] * (i % 3 + 1)} for i in range(LENGTHS[shard]))


def stream() -> Any:
    """A stream that can be read forwards only."""
    return datasets.IterableDataset.from_generator(rows, gen_kwargs={"shards": list(range(SHARDS))})


def streamed(**options: Any) -> HFStreamingDataset:
    """A dataset over such a stream."""
    return HFStreamingDataset(stream(), **{"name": "web", "seed": 3, "window": 8, **options})


def ids(samples: Any) -> list[int]:
    """Which rows these samples are."""
    return [int(sample["id"]) for sample in samples]


def as_list(batch: list[Any]) -> list[Any]:
    """Collate nothing."""
    return batch
