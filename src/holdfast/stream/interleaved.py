"""``InterleavedDataset``: several datasets mixed by weight, nested as deep as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import ConfigError, MixtureError
from holdfast.order.weights import Weights, WeightSchedule, check_weight_schedule, nest
from holdfast.stream.dataset import DatasetInfo, Leaf, OrderedDataset, TuneIterableDataset
from holdfast.stream.streamed_mixture import StreamedMixture, streamed_leaf

__all__ = ["InterleavedDataset"]


class InterleavedDataset(OrderedDataset):
    """A mixture of datasets with exact ratios, and with random access if all its children have it.

    A child that can be read forwards only (an ``HFStreamingDataset``, or a ``TuneIterableDataset`` of your own) belongs
    to the mixture from then on: the mixture moves it, and keeps its state.

    Args:
        datasets: the children, each with its own name; children may be mixtures themselves, whose leaves' weights
            multiply.
        weights: by child name, or a schedule ``[(from_position, weights), …]``; None takes the children's own weights.
        seed: of the arrangement.
        name: of the mixture.
        weight: of the mixture itself where it is nested in another that gives none.
        stop: ``cycle_forever``, ``first_exhausted`` or ``all_exhausted``; only the first where a child is streamed.
    """

    def __init__(
        self,
        datasets: Sequence[TuneIterableDataset],
        weights: Weights | WeightSchedule | None = None,
        *,
        seed: int = 0,
        name: str = "mixture",
        weight: float = 1.0,
        stop: str = "cycle_forever",
    ) -> None:
        if not datasets:
            raise MixtureError("a mixture needs at least one dataset", mixture=name)
        for dataset in datasets:
            if not isinstance(dataset, TuneIterableDataset):
                raise MixtureError(
                    "only datasets can be mixed, which have a name and a state",
                    mixture=name,
                    dataset=type(dataset).__name__,
                    hint="wrap a source in StreamDataset, a datasets.IterableDataset in HFStreamingDataset",
                )
        _check_names(name, datasets)
        names = [dataset.dataset_name for dataset in datasets]
        if weights is None:
            weights = {dataset.dataset_name: dataset.info.weight for dataset in datasets}
        schedule = check_weight_schedule(weights, names)
        self.children: dict[str, TuneIterableDataset] = {dataset.dataset_name: dataset for dataset in datasets}
        self._children = self.children
        nested = {child: d.weight_schedule for child, d in self.children.items() if isinstance(d, InterleavedDataset)}
        self.leaves = tuple(leaf for dataset in datasets for leaf in _leaves(dataset))
        self.streams = _streams(self.children)
        self._name = name
        self.weight = weight
        self.mixture_seed = seed
        self.stop = stop
        self._weights = nest(schedule, nested)
        check_weight_schedule(self._weights, [leaf.name for leaf in self.leaves])
        first: Mapping[str, Any] = schedule[0][1]
        children = tuple(
            DatasetInfo(d.info.name, d.info.length, float(first[child]), d.info.children)
            for child, d in self.children.items()
        )
        length = None if self.streams else sum(len(leaf.source) for leaf in self.leaves)
        self._info = DatasetInfo(name, length, weight, children)
        self._position = 0
        if self.streams:
            if stop != "cycle_forever":
                raise MixtureError(
                    "a mixture with streamed children cannot stop by itself: how long they are is not known",
                    mixture=name,
                    stop=stop,
                    streamed=sorted(self.streams),
                    hint="leave stop='cycle_forever' and end the training loop by steps",
                )
            self._streamed = StreamedMixture(self._info, self.leaves, self._order(), self.children, self.streams)
            self._moved = (self._streamed, *self.streams.values())

    def merge_states(self, states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return one state from those of all processes (ranks × workers); load it in any number of them.

        Only mixtures with streamed children need it, whose processes have states of their own. No position and no
        sample is lost or comes twice; which process gets which does change.
        """
        if not isinstance(self._streamed, StreamedMixture):
            raise ConfigError(
                "every child of this mixture has random access: it has one state for all processes, nothing to merge",
                dataset=self._name,
                hint="load the state of any process, taken when all had as many samples",
            )
        return self._streamed.merge_states(states)


def _leaves(dataset: TuneIterableDataset) -> tuple[Leaf, ...]:
    return dataset.leaves if isinstance(dataset, OrderedDataset) else (streamed_leaf(dataset.dataset_name),)


def _streams(children: Mapping[str, TuneIterableDataset]) -> dict[str, TuneIterableDataset]:
    """Return the datasets of the whole tree that can be read forwards only, by name."""
    found: dict[str, TuneIterableDataset] = {}
    for name, child in children.items():
        if isinstance(child, InterleavedDataset):
            found |= child.streams
        elif not isinstance(child, OrderedDataset):
            found[name] = child
    return found


def _check_names(mixture: str, datasets: Sequence[TuneIterableDataset]) -> None:
    """Names are how samples, metrics and states are told apart, so each stands once in the whole tree."""
    seen = {mixture}
    waiting = [dataset.info for dataset in reversed(datasets)]
    while waiting:
        info = waiting.pop()
        if info.name in seen:
            raise MixtureError(
                "two datasets of a mixture have the same name", source=info.name, hint="give each its own name="
            )
        seen.add(info.name)
        waiting += reversed(info.children)
