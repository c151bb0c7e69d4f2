"""Datasets: named, endless, stateful; the part of a pipeline that says which samples there are and in what order.

``TuneIterableDataset`` is the contract. ``OrderedDataset`` is the base of every dataset whose order is computed:
sources and the weights that mix them. ``StreamDataset`` is the simplest, with one source; ``InterleavedDataset`` (in
its own module) mixes several. Data that can only be read forwards is in ``holdfast.stream.forward``. Iterating a
dataset directly yields single samples; ``StreamingShardLoader`` reads the same order in batches, over ranks and
workers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
from torch.utils.data import IterableDataset

from holdfast.errors import ConfigError, StateMismatchError
from holdfast.lazy_names import public_name
from holdfast.metrics import MetricTransform
from holdfast.order import ARRANGEMENTS, Order, Partition, RoundRobin, Shuffle
from holdfast.order.mixture import ArrangementName
from holdfast.order.numbers import Position, Positions, whole_number
from holdfast.order.order import StopPolicy
from holdfast.order.shuffle import WindowShuffle
from holdfast.order.step_rows import Cut, Locates, locate_steps
from holdfast.order.weights import WeightSchedule
from holdfast.sources import Source
from holdfast.stream.named_source import (
    ColumnTransform,
    HasSources,
    NamedSource,
    Sample,
    Transform,
    named_copy,
)
from holdfast.stream.process import Process, check_enough, check_ranks, everything_left_out, this_process
from holdfast.stream.read_batches import read_batches
from holdfast.versioned import Count, Format

__all__ = [
    "DATASET_STATE",
    "DatasetInfo",
    "DescribedDataset",
    "OrderedDataset",
    "Sample",
    "StreamDataset",
    "TuneIterableDataset",
    "mismatch",
    "single",
]

# Samples located and read at a time when a dataset is iterated directly: locating 64 takes longer than reading them.
LOCATED_AT_ONCE, READ_AT_ONCE = 2048, 64


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A dataset's name, its weight in its parent, and its children.

    ``length`` is its number of samples, or None if that is known only after reading everything.
    """

    name: str
    length: int | None
    weight: float = 1.0
    children: tuple[DatasetInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetState:
    """The position of a dataset that is iterated directly."""

    position: Count  # positions of its order already passed
    epoch: Count  # the epoch at that point
    fingerprint: str  # of the order
    children: dict[str, Any]  # their states by name, nested like the children


DATASET_STATE = Format(
    "dataset state",
    DatasetState,
    unmarked=1,
    hint="a nested mixture has no state of its own: load the state of the outermost one",
)


class TuneIterableDataset(IterableDataset[Sample]):
    """A named, endless, stateful dataset. It is also a torch ``IterableDataset``, so a ``DataLoader`` accepts it."""

    def __repr__(self) -> str:
        return f"{public_name(type(self))}({self.dataset_name!r})"

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
        """Yield samples indefinitely, from the state's position."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the dataset's position, as plain JSON. A parent puts it under the child's name."""

    @abstractmethod
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the state's position."""

    def read_as(self, *, rank: int, world_size: int) -> None:
        """Set the data-parallel rank to iterate as, if those ranks are not all ranks of ``torch.distributed``.

        Ranks that share data (tensor, pipeline or context parallel) pass the same numbers here, and get the same
        samples. Call it before iterating. ``StreamingShardLoader`` does not need it: its config says the same.
        A dataset that does not split itself over processes ignores it.
        """
        check_ranks(rank, world_size)


class DescribedDataset(TuneIterableDataset):
    """A dataset with a given name, which splits itself over the processes that read it.

    Args:
        info: name, length, weight and children.
    """

    def __init__(self, info: DatasetInfo) -> None:
        self._info = info
        self._ranks: tuple[int, int] | None = None

    @final
    @property
    def dataset_name(self) -> str:
        """The name under which its samples and metrics are counted."""
        return self._info.name

    @final
    @property
    def info(self) -> DatasetInfo:
        """Name, length, weight and children."""
        return self._info

    def read_as(self, *, rank: int, world_size: int) -> None:
        """Set the data-parallel rank to iterate as."""
        self._ranks = check_ranks(rank, world_size)

    @final
    def process(self) -> Process:
        """Return this process's number among those that read the dataset."""
        return this_process(self._ranks)


class OrderedDataset(DescribedDataset):
    """A dataset whose order is computed: sources and the weights that mix them.

    Args:
        sources: the sources with their options, each under its own name.
        weights: the weights of the sources, as ``[(from_position, weights), …]``.
        info: name, length, weight and children.
        seed: the seed of the mixture's arrangement, and of the stream.
        stop: where the stream ends.
        children: the datasets it is made of, by name; none for a single source.
    """

    @abstractmethod  # a subclass decides what its sources are
    def __init__(
        self,
        sources: Sequence[NamedSource],
        weights: WeightSchedule,
        *,
        info: DatasetInfo,
        seed: int,
        stop: StopPolicy,
        children: Mapping[str, OrderedDataset] | None = None,
    ) -> None:
        super().__init__(info)
        self.sources = tuple(sources)
        self.weight_schedule = weights
        self.seed = whole_number(seed, "a seed")
        self.stop = stop
        self.children = dict(children or {})
        self._position = Position(0)
        self._own = self._plain = self._order(RoundRobin(), "even")

    @final
    def order(self, partition: Partition | None = None, *, arrangement: ArrangementName = "even") -> Order:
        """Return the order of this dataset's samples under a partition."""
        resolved = RoundRobin() if partition is None else partition.resolve(self._read_column)
        is_plain = resolved == self._plain.partition and arrangement == "even"
        return self._plain if is_plain else self._order(resolved, arrangement)

    def _order(self, partition: Partition, arrangement: ArrangementName) -> Order:
        return Order(
            [source.spec() for source in self.sources],
            weights=self.weight_schedule,
            seed=self.seed,
            name=self.dataset_name,
            partition=partition,
            stop=self.stop,
            arrangement=arrangement,
        )

    @final
    def __iter__(self) -> Iterator[Sample]:
        """Yield samples from the state's position: all of them, or this process's own under torch's workers.

        The processes take positions in turn. So a state of one process, taken when all have had equally many samples,
        fits all of them, and any other number of processes too.
        """
        process = self.process()
        samples = sum(len(source.source) for source in self.sources)
        check_enough(process, samples, what="samples", dataset=self.dataset_name)
        left_out = 0
        while True:
            order = self._own
            positions = self._position + process.number + process.total * np.arange(LOCATED_AT_ONCE, dtype=np.int64)
            if order.length is not None:
                positions = positions[positions < order.length]
            if not positions.size:
                return
            after = cast("list[Position]", (positions - process.number + process.total).tolist())
            for following, sample in zip(after, single(self, order, Positions(positions)), strict=True):
                self._position = following
                if sample is None:  # the transform left it out
                    left_out += 1
                    continue
                left_out = 0
                yield sample
                if self._position != following or self._own is not order:  # a state was loaded in between
                    break
            if left_out > samples:
                raise everything_left_out(process, dataset=self.dataset_name, what="pass")

    @final
    def state_dict(self) -> dict[str, Any]:
        """Return the position, and under ``children`` the state of each child by its name, nested like the children.

        A child that is a single source may be continued alone from its part of the state. A child that is a mixture
        may not: within its parent its samples are chosen by the parent.
        """
        counts = {
            source.name: int(self._own.count(number, np.array([self._position]))[0])
            for number, source in enumerate(self.sources)
        }
        return self._state_at(self._position, counts)

    @final
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to the state's position, after checking that it belongs to this order.

        A mixture continues a state of an earlier release in the arrangement it began with.
        """
        state = DATASET_STATE.from_json(state_dict)
        orders = {order.fingerprint(): order for order in (self.order(arrangement=name) for name in ARRANGEMENTS)}
        if state.fingerprint not in orders:
            raise mismatch(state.fingerprint, state.children, self.state_dict(), dataset=self.dataset_name)
        self._own = orders[state.fingerprint]
        self._position = Position(state.position)

    @final
    def state_in_parent(self, counts: Mapping[str, int]) -> dict[str, Any]:
        """Return this dataset's position inside a mixture that has read this many samples of each source."""
        position = Position(sum(counts[source.name] for source in self.sources))
        if not self.children:
            return self._state_at(position, counts)
        children = {name: child.state_in_parent(counts) for name, child in self.children.items()}
        return {"position": position, "children": children}

    def _state_at(self, position: Position, counts: Mapping[str, int]) -> dict[str, Any]:
        children = {name: child.state_in_parent(counts) for name, child in self.children.items()}
        state = DatasetState(position, self._own.epoch_of(position), self._own.fingerprint(), children)
        return DATASET_STATE.to_json(state)

    def _read_column(self, column: str) -> np.ndarray[Any, Any]:
        first = self.sources[0]
        columns = first.source.read(np.arange(len(first.source), dtype=np.int64))
        if column not in columns:
            raise ConfigError(
                "the source has no such column", source=first.name, column=column, columns=sorted(columns)
            )
        values = columns[column]
        if not isinstance(values, np.ndarray):
            values = np.array(values.to_strings() if values.encoding else [row.tobytes() for row in values])
        return values


@final
class StreamDataset(OrderedDataset):
    """A dataset over one source.

    Args:
        source: its storage.
        name: the name under which its samples and metrics are counted.
        shuffle: ``"full"``, ``"window"`` (uses the source's own shards), ``"none"`` or a ``WindowShuffle``. By default
            ``full``; if the source is remote, windows of a size chosen to fit the cache, which ``repr`` shows.
        seed: the seed of its shuffles.
        transform: Python function of one sample, applied while reading.
        column_transform: function of a batch of columns, applied before ``transform``; no per-sample Python.
        metric_transform: makes metrics from the samples.
        weight: its weight in a mixture that gives none.
        stop: ``cycle_forever``, or ``first_exhausted`` to end after one pass.
    """

    def __init__(
        self,
        source: Source,
        *,
        name: str,
        shuffle: Shuffle | str | None = "auto",
        seed: int = 0,
        transform: Transform | None = None,
        column_transform: ColumnTransform | None = None,
        metric_transform: MetricTransform | None = None,
        weight: float = 1.0,
        stop: StopPolicy = "cycle_forever",
    ) -> None:
        metric_transform = named_copy(metric_transform, name)
        named = NamedSource(name, source, seed, shuffle, transform, column_transform, metric_transform)
        super().__init__([named], [(0, {name: 1.0})], info=DatasetInfo(name, len(source), weight), seed=seed, stop=stop)

    def __repr__(self) -> str:
        """Show how it is shuffled, if by windows."""
        (named,) = self.sources
        if not isinstance(named.layout, WindowShuffle):
            return super().__repr__()
        shards = named.layout.shards if isinstance(named.layout.shards, int) else len(named.layout.shards)
        mixed = named.layout.group * len(named.source) // shards
        window = f"window of about {mixed:,} samples from {named.layout.group} of {shards:,} shards"
        return f"holdfast.StreamDataset({self.dataset_name!r}, shuffle={window!r})"


def single(dataset: HasSources, order: Locates, positions: Positions) -> Iterator[Sample | None]:
    """Yield the single samples at the positions, with their metrics; None for one that a transform left out."""
    count = len(positions)
    # A transform may leave out a sample, and metrics come with a batch's first sample: then each is its own batch.
    each = 1 if any(source.transform or source.metric_transform for source in dataset.sources) else READ_AT_ONCE
    cut = Cut(order, positions, np.append(np.arange(0, count, each), count))
    located = locate_steps(cut, range(len(cut.offsets) - 1), 0, "short")
    as_they_are: Any = list
    for start in range(0, len(located.steps), READ_AT_ONCE // each):
        steps = located.steps[start : start + READ_AT_ONCE // each]
        for batch in read_batches(dataset, cut, steps, 0, collate=as_they_are, located=located):
            content: Any = batch.content
            yield from (None,) if content is None else content.batch


def mismatch(found: str, children: Mapping[str, Any], own: Mapping[str, Any], *, dataset: str) -> StateMismatchError:
    """Return the error for a state that does not belong to the dataset whose own state is given."""
    return StateMismatchError(
        "the state was made with different sources, weights or seeds",
        dataset=dataset,
        fingerprint=own["fingerprint"],
        expected=found,
        children=_changes(children, own["children"]),
    )


def _changes(before: Any, now: Mapping[str, Any]) -> dict[str, str]:
    """Return for each child whether it is gone, new, or different from the saved one."""
    if not isinstance(before, Mapping):
        return {}
    found = {name: "gone" for name in before if name not in now}
    found |= {name: "new" for name in now if name not in before}
    for name in before.keys() & now.keys():
        known = before[name] if isinstance(before[name], Mapping) else {}
        if known.get("fingerprint") != now[name].get("fingerprint"):
            found[name] = "other data, shuffle or seed"
        inner = _changes(known.get("children"), now[name].get("children", {}))
        found |= {f"{name}/{child}": text for child, text in inner.items()}
    return found
