"""Datasets: named, endless, stateful; the part of a pipeline that says which samples there are and in what order.

``TuneIterableDataset`` is the contract. ``OrderedDataset`` is every dataset whose samples have a computed order: it is
a list of ``Leaf``s (a source with its seed, shuffle and transforms) and the weights that mix them. ``StreamDataset`` is
the simplest, one leaf; ``InterleavedDataset`` (in its own module) mixes several. Iterating one directly yields single
samples; ``StreamingShardLoader`` reads the same order in batches, over ranks and workers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from torch.utils.data import IterableDataset

from holdfast.errors import ConfigError, EmptyPartitionError
from holdfast.metrics import MetricTransform
from holdfast.order import Order, Partition, Shuffle, SourceSpec
from holdfast.order.shuffle import parse_shuffle
from holdfast.order.weights import WeightSchedule
from holdfast.sources import Columns, Source
from holdfast.stream.dataset_state import DATASET_STATE, DatasetState, check_fingerprint
from holdfast.stream.share import check_share, share_of_process

__all__ = ["DatasetInfo", "Leaf", "OrderedDataset", "Sample", "StreamDataset", "Transform", "TuneIterableDataset"]

Sample = dict[str, Any]
Transform = Callable[..., Sample | None]
ColumnTransform = Callable[[Columns], Columns]

# Samples read at a time when a dataset is iterated on its own.
READ_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What a dataset is called, its weight in its parent, and its children.

    ``length`` is how many samples it has, None where only reading it all would tell.
    """

    name: str
    length: int | None
    weight: float = 1.0
    children: tuple[DatasetInfo, ...] = ()


class TuneIterableDataset(IterableDataset[Sample]):
    """A named, endless, stateful dataset. It is a torch ``IterableDataset`` too, so a ``DataLoader`` takes it."""

    _ranks: tuple[int, int] | None = None
    _moved: tuple[TuneIterableDataset, ...] = ()  # the datasets this one moves as it is iterated

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

    @final
    def read_as(self, *, rank: int, world_size: int) -> None:
        """Be iterated as one of the data-parallel ranks, where those are not all ranks of ``torch.distributed``.

        Ranks that share data (tensor, pipeline or context parallel) give the same numbers here, and get the same
        samples. Call it before iterating. ``StreamingShardLoader`` does not ask for this: its config says the same.
        """
        if not 0 <= rank < world_size:
            raise ConfigError("a rank must be below the world size", rank=rank, world_size=world_size)
        self._ranks = rank, world_size
        for dataset in self._moved:
            dataset.read_as(rank=rank, world_size=world_size)


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

    Sub-classes set the attributes below; they override nothing. A mixture some of whose children can be read forwards
    only computes which child comes when, but not which sample: its ``_streamed`` then does the iterating.
    """

    leaves: tuple[Leaf, ...]
    weight: float
    mixture_seed: int
    stop: Any
    _name: str
    _info: DatasetInfo
    _weights: WeightSchedule
    _children: Mapping[str, TuneIterableDataset] = {}
    _streamed: TuneIterableDataset | None = None
    _position: int = 0
    _own: tuple[Order, str] | None = None

    @property
    def dataset_name(self) -> str:
        """The name under which its samples and metrics are counted."""
        return self._name

    @property
    def info(self) -> DatasetInfo:
        """Name, length, weight and children."""
        return self._info

    @property
    def weight_schedule(self) -> WeightSchedule:
        """The weights of the leaves, as ``[(from_position, weights), …]``."""
        return self._weights

    def order(self, partition: Partition | None = None) -> Order:
        """Return the order of this dataset's samples under a partition."""
        if self._streamed is not None:
            raise ConfigError(
                "this mixture has children that can be read forwards only, so no sample can be computed from its "
                "position",
                dataset=self._name,
                hint="give it to torch's DataLoader or torchdata's StatefulDataLoader instead of StreamingShardLoader",
            )
        if partition is not None:
            partition = partition.resolve(self._read_column)
        return self._order(partition)

    def _order(self, partition: Partition | None = None) -> Order:
        specs = [leaf.spec() for leaf in self.leaves]
        return Order(
            specs,
            weights=self._weights,
            seed=self.mixture_seed,
            name=self._name,
            partition=partition,
            stop=self.stop,
            arrangement="blocks",
        )

    def __iter__(self) -> Iterator[Sample]:
        """Yield samples from where the state stands: all of them, or this process's share under torch's workers.

        The processes' shares interleave, position by position. So a state of one process, taken when each has had as
        many samples as the others, fits all of them, and any other number of processes too.
        """
        return iter(self._streamed) if self._streamed is not None else self._samples()

    def _samples(self) -> Iterator[Sample]:
        # Imported here: the reader is written in terms of this module's Leaf.
        from holdfast.stream.reader import Reader

        order, _ = self._own_order()
        share = share_of_process(self._ranks)
        samples = sum(len(leaf.source) for leaf in self.leaves)
        check_share(share, samples, what="samples", dataset=self._name)
        reader = Reader(self.leaves, order)
        passed_over = 0
        while True:
            positions = self._position + share.number + share.total * np.arange(READ_AT_ONCE, dtype=np.int64)
            if order.length is not None:
                positions = positions[positions < order.length]
            if not positions.size:
                return
            for position, sample in zip(positions.tolist(), reader.samples(positions), strict=True):
                following = self._position = position - share.number + share.total
                if sample is None:  # the transform left it out
                    passed_over += 1
                    continue
                passed_over = 0
                yield sample
                if self._position != following:  # a state was loaded in between
                    break
            if passed_over > samples:
                raise EmptyPartitionError(
                    "the transforms left out every sample of a whole pass",
                    dataset=self._name,
                    rank=share.number,
                    world_size=share.total,
                    samples=samples,
                    hint="see why they return None",
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and under ``children`` the state of each child by its name, nested as the children are.

        A child that is a single source may be continued alone from its part of the state. A child that is a mixture
        may not: within its parent its samples are dealt by the parent.
        """
        if self._streamed is not None:
            return self._streamed.state_dict()
        order, fingerprint = self._own_order()
        counts = {
            spec.name: int(order.count(number, np.array([self._position]))[0])
            for number, spec in enumerate(order.sources)
        }
        children = states_of(self._children, counts)
        return DATASET_STATE.to_json(
            DatasetState(self._position, order.epoch_of(self._position), fingerprint, children)
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the state's position, after checking that it belongs to this very order."""
        if self._streamed is not None:
            self._streamed.load_state_dict(state_dict)
            return
        state = DATASET_STATE.from_json(state_dict)
        check_fingerprint(state.fingerprint, state.children, self.state_dict(), dataset=self._name)
        self._position = state.position

    def _own_order(self) -> tuple[Order, str]:
        """Return the order without a partition and its fingerprint; kept, as a state may be asked for every batch."""
        if self._own is None:
            order = self._order()
            self._own = order, order.fingerprint()
        return self._own

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
        metric_transform = named_copy(metric_transform, name)
        self.leaves = (Leaf(name, source, seed, shuffle, transform, column_transform, metric_transform),)
        self.leaves[0].spec()
        self._weights = [(0, {name: 1.0})]
        self._info = DatasetInfo(name, len(source), weight)
        self._position = 0


def named_copy(transform: MetricTransform | None, name: str) -> MetricTransform | None:
    """Return the transform reporting under this name; a copy, as one transform may serve several datasets."""
    if transform is None:
        return None
    own = copy(transform)
    own.set_dataset_name(name)
    return own


def states_of(
    children: Mapping[str, TuneIterableDataset],
    counts: Mapping[str, int],
    streams: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the states of a mixture's children by name, nested as they are.

    Args:
        children: the children.
        counts: how many samples of each leaf stand before where the mixture stands.
        streams: the states of those that can be read forwards only.
    """
    states: dict[str, Any] = {}
    for name, child in children.items():
        if not isinstance(child, OrderedDataset):
            assert streams is not None
            states[name] = streams[name]
            continue
        position = sum(counts[leaf.name] for leaf in child.leaves)
        if child._children:
            states[name] = {"position": position, "children": states_of(child._children, counts, streams)}
        else:
            order, fingerprint = child._own_order()
            states[name] = DATASET_STATE.to_json(DatasetState(position, order.epoch_of(position), fingerprint, {}))
    return states
