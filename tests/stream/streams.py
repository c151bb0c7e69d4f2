"""Streams and mixtures of them to test with: five shards of unequal length, whose rows say which they are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import datasets
import numpy as np

from holdfast.sources import ArraySource
from holdfast.stream import DatasetInfo, ForwardMixture, HFStreamingDataset, StreamDataset, TuneIterableDataset

__all__ = [
    "LENGTHS",
    "SHARDS",
    "TOTAL",
    "WEIGHTS",
    "Counting",
    "as_list",
    "ids",
    "marks",
    "mixture",
    "resumed",
    "rows",
    "stored",
    "stream",
    "streamed",
    "told",
    "web",
]

SHARDS = 5
LENGTHS = [23, 7, 31, 16, 12]
TOTAL = sum(LENGTHS)
WEIGHTS = {"wiki": 3, "inner": 2}


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


def told(name: str) -> Any:
    """A transform that says whose sample it is."""
    return lambda sample: {"id": int(sample["id"]), "tokens": [1, 2], "of": name}


def stored(name: str = "wiki", length: int = 40, **options: Any) -> StreamDataset:
    source = ArraySource({"id": np.arange(length), "tokens": np.ones((length, 2), dtype=np.int64)})
    return StreamDataset(source, name=name, seed=3, **{"transform": told(name), **options})


def web(name: str = "web", **options: Any) -> HFStreamingDataset:
    return streamed(**{"name": name, "output_transform": told(name), **options})


def mixture(weights: Any = None, *, seed: int = 5, **options: Any) -> ForwardMixture:
    """A stored dataset beside an inner mixture of one streamed and one stored."""
    inner = ForwardMixture([web(**options), stored("code", 30)], {"web": 2, "code": 1}, name="inner")
    return ForwardMixture([stored(), inner], weights or WEIGHTS, seed=seed, name="mix")


def marks(samples: Any) -> list[tuple[str, int]]:
    return [(sample["of"], sample["id"]) for sample in samples]


def resumed(state: Mapping[str, Any], make: Any = mixture) -> Any:
    again = make()
    again.load_state_dict(json.loads(json.dumps(state)))
    return again


class Counting(TuneIterableDataset):
    """A dataset as a user writes one."""

    def __init__(self, end: int = 10**9) -> None:
        self.at, self.end = 0, end

    @property
    def dataset_name(self) -> str:
        return "own"

    @property
    def info(self) -> DatasetInfo:
        return DatasetInfo("own", None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.at + 1, self.end + 1):  # an iterator does not see a state that is loaded later
            self.at = number
            yield {"of": "own", "id": number}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.at = state_dict["at"]
