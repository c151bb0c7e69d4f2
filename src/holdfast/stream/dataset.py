"""Datasets: named, endless, stateful; the part of a pipeline that says which samples there are and in what order.

``TuneIterableDataset`` is the contract. ``OrderedDataset`` is every dataset whose samples have a computed order: it is
a list of ``Leaf``s (a source with its seed, shuffle and transforms) and the weights that mix them. ``StreamDataset`` is
the simplest, one leaf; ``InterleavedDataset`` (in its own module) mixes several. Iterating one directly yields single
samples; ``StreamingShardLoader`` reads the same order in batches, over ranks and workers.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import ConfigError, StateMismatchError
from holdfast.metrics import MetricTransform
from holdfast.order import Order, Partition, Shuffle, SourceSpec
from holdfast.order.mixture import Schedule
from holdfast.order.shuffle import parse_shuffle
from holdfast.sources import Columns, Source

__all__ = ["DatasetInfo", "Leaf", "OrderedDataset", "Sample", "StreamDataset", "Transform", "TuneIterableDataset"]

Sample = dict[str, Any]
Transform = Callable[..., Sample | None]
ColumnTransform = Callable[[Columns], Columns]

# Samples read at a time when a dataset is iterated on its own.
READ_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What a dataset is called, how many samples it has, its weight in its parent, and its children."""

    name: str
    length: int
    weight: float = 1.0
    children: tuple[DatasetInfo, ...] = ()


class TuneIterableDataset(ABC):
    """A named, endless, stateful dataset."""

    @property
    @abstractmethod
    def dataset_name(self) -> str:
        """The name under which its samples and metrics are counted."""

    @property
    @abstractmethod
    def info(self) -> DatasetInfo:
        """Name, length, weight and children."""

    @abstractmethod
    def __iter__(self) -> Iterator[Sample]:
        """Yield samples without end, from where the state stands."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return where the dataset stands, as plain JSON. A parent puts it under the child's name."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where the state stands."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One source with all that belongs to it.

    Args:
        name: the source's name.
        source: its storage.
        seed: of its shuffles.
        shuffle: how an epoch is laid out.
        transform: Python function of one sample; None leaves samples as they are. A transform with a parameter ``rng``
            is given a generator that depends only on (seed, name, epoch, index), so that augmentation repeats exactly.
        column_transform: function of a whole batch of columns, applied before ``transform``.
        metric_transform: makes metrics of the samples.
    """

    name: str
    source: Source
    seed: int = 0
    shuffle: Shuffle | str | None = "full"
    transform: Transform | None = None
    column_transform: ColumnTransform | None = None
    metric_transform: MetricTransform | None = None

    def spec(self) -> SourceSpec:
        """Return what the order needs to know of this leaf."""
        if len(self.source) < 1:
            raise ConfigError("the source has no samples", source=self.name)
        shards = self.source.shards() if self.shuffle == "window" else None
        return SourceSpec(self.name, len(self.source), self.seed, parse_shuffle(self.shuffle, shards))


class OrderedDataset(TuneIterableDataset):
    """A dataset whose order is computed: leaves and the weights that mix them.

    Sub-classes set the attributes below; they override nothing.
    """

    leaves: tuple[Leaf, ...]
    weight: float
    mixture_seed: int
    stop: Any
    _name: str
    _info: DatasetInfo
    _weights: Schedule
    _position: int = 0

    @property
    def dataset_name(self) -> str:
        """The name under which its samples and metrics are counted."""
        return self._name

    @property
    def info(self) -> DatasetInfo:
        """Name, length, weight and children."""
        return self._info

    @property
    def weight_schedule(self) -> Schedule:
        """The weights of the leaves, as ``[(from_position, weights), …]``."""
        return self._weights

    def order(self, partition: Partition | None = None) -> Order:
        """Return the order of this dataset's samples under a partition."""
        if partition is not None:
            partition = partition.resolve(self._read_column)
        specs = [leaf.spec() for leaf in self.leaves]
        return Order(
            specs, weights=self._weights, seed=self.mixture_seed, name=self._name, partition=partition, stop=self.stop
        )

    def __iter__(self) -> Iterator[Sample]:
        # Imported here: the reader is written in terms of this module's Leaf.
        from holdfast.stream.reader import Reader

        reader = Reader(self.leaves, self.order())
        share, shares = _share_of_process()
        while True:
            start = self._position
            first = start + (share - start) % shares  # this process's next position: those ≡ share (mod shares)
            positions = first + shares * np.arange(READ_AT_ONCE, dtype=np.int64)
            for position, sample in zip(positions.tolist(), reader.samples(positions), strict=True):
                self._position = position + 1
                yield sample
                if self._position != position + 1:  # a state was loaded in between
                    break

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and how far each child is by then."""
        order = self.order()
        children = {}
        for number, cycle in enumerate(order.cycles):
            count = order.count(number, np.array([self._position]))
            epoch, place = cycle.split(count)
            children[cycle.name] = {"samples": int(count[0]), "epoch": int(epoch[0]), "place": int(place[0])}
        return {"position": self._position, "fingerprint": order.fingerprint(), "children": children}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the state's position, after checking that it belongs to this very order."""
        found = self.order().fingerprint()
        if state_dict["fingerprint"] != found:
            raise StateMismatchError(
                "the state was made with other sources, weights or seeds",
                dataset=self.dataset_name,
                fingerprint=found,
                expected=state_dict["fingerprint"],
            )
        self._position = int(state_dict["position"])

    def _read_column(self, column: str) -> np.ndarray[Any, Any]:
        leaf = self.leaves[0]
        columns = leaf.source.read(np.arange(len(leaf.source), dtype=np.int64))
        if column not in columns:
            raise ConfigError("the source has no such column", source=leaf.name, column=column, columns=sorted(columns))
        values = columns[column]
        if not isinstance(values, np.ndarray):
            values = np.array(values.to_strings() if values.encoding else [row.tobytes() for row in values])
        return values


class StreamDataset(OrderedDataset):
    """A dataset over one source.

    Args:
        source: its storage.
        name: the name under which its samples and metrics are counted.
        shuffle: ``"full"``, ``"window"`` (uses the source's own shards), ``"none"`` or a ``WindowShuffle``.
        seed: of its shuffles.
        transform: Python function of one sample, applied while reading.
        column_transform: function of a batch of columns, applied before ``transform``; no per-sample Python.
        metric_transform: makes metrics of the samples.
        weight: its weight where it becomes part of a mixture that gives none.
        stop: ``cycle_forever``, or ``first_exhausted`` to end after one pass.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: str,
        shuffle: Shuffle | str | None = "full",
        seed: int = 0,
        transform: Transform | None = None,
        column_transform: ColumnTransform | None = None,
        metric_transform: MetricTransform | None = None,
        weight: float = 1.0,
        stop: str = "cycle_forever",
    ) -> None:
        if not name:
            raise ConfigError("a dataset needs a name")
        self._name = name
        self.weight = weight
        self.mixture_seed = seed
        self.stop = stop
        if metric_transform is not None:
            metric_transform.set_dataset_name(name)
        self.leaves = (Leaf(name, source, seed, shuffle, transform, column_transform, metric_transform),)
        self.leaves[0].spec()
        self._weights = [(0, {name: 1.0})]
        self._info = DatasetInfo(name, len(source), weight)
        self._position = 0


def _share_of_process() -> tuple[int, int]:
    """Return this process's share of positions when a dataset is iterated under plain torch: rank × worker."""
    share, shares = 0, 1
    torch = sys.modules.get("torch")
    if torch is None:
        return share, shares
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        share, shares = torch.distributed.get_rank(), torch.distributed.get_world_size()
    info = torch.utils.data.get_worker_info() if hasattr(torch, "utils") else None
    if info is not None:
        share, shares = share * info.num_workers + info.id, shares * info.num_workers
    return share, shares
