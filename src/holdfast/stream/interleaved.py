"""``InterleavedDataset``: several datasets mixed by weight, nested as deep as needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import final

from holdfast.errors import MixtureError
from holdfast.order.order import StopPolicy
from holdfast.order.weights import Weights, WeightSchedule, as_schedule, check_named, check_weight_schedule, nest
from holdfast.stream.dataset import DatasetInfo, OrderedDataset, TuneIterableDataset

__all__ = ["InterleavedDataset", "check_children"]


@final
class InterleavedDataset(OrderedDataset):
    """A mixture of datasets with exact ratios and random access.

    A child that can only be read forwards (an ``HFStreamingDataset``, or a ``TuneIterableDataset`` of your own) needs
    ``ForwardMixture`` instead.

    Args:
        datasets: the children, each with its own name; children may be mixtures themselves, whose sources' weights
            multiply.
        weights: by child name, or a schedule ``[(from_position, weights), …]``; None takes the children's own weights.
        seed: the seed of the arrangement.
        name: the name of the mixture.
        weight: the weight of the mixture itself in another that gives none.
        stop: ``cycle_forever``, ``first_exhausted`` or ``all_exhausted``.
    """

    def __init__(
        self,
        datasets: Sequence[OrderedDataset],
        weights: Weights | WeightSchedule | None = None,
        *,
        seed: int = 0,
        name: str = "mixture",
        weight: float = 1.0,
        stop: StopPolicy = "cycle_forever",
    ) -> None:
        schedule = check_children(name, datasets, weights)
        for dataset in datasets:
            if not isinstance(dataset, OrderedDataset):
                raise MixtureError(
                    "this child can only be read forwards, so the samples of the mixture cannot be computed",
                    mixture=name,
                    dataset=dataset.dataset_name,
                    hint="use ForwardMixture, and pass it to torch's DataLoader or torchdata's StatefulDataLoader",
                )
        sources = [source for dataset in datasets for source in dataset.sources]
        children = {dataset.dataset_name: dataset for dataset in datasets}
        nested = {child: dataset.weight_schedule for child, dataset in children.items() if dataset.children}
        flat = nest(schedule, nested)
        check_weight_schedule(flat, [source.name for source in sources])
        super().__init__(
            sources,
            flat,
            info=mixture_info(name, sum(len(source.source) for source in sources), weight, datasets, schedule[0][1]),
            seed=seed,
            stop=stop,
            children=children,
        )
        self._nested = nested

    def source_weights(self, weights: Weights, position: int) -> Weights:
        """Return the weights of the sources that result from these weights of the children, from a position on."""
        check_named([(0, weights)], list(self.children))
        checked = check_weight_schedule(weights, list(self.children))
        tables = [table for start, table in nest(checked, self._nested) if start <= position]
        return tables[-1]


def mixture_info(
    name: str, length: int | None, weight: float, datasets: Sequence[TuneIterableDataset], weights: Weights
) -> DatasetInfo:
    """Describe a mixture with the weights it begins with."""
    told = (replace(dataset.info, weight=float(weights[dataset.dataset_name])) for dataset in datasets)
    return DatasetInfo(name, length, weight, tuple(told))


def check_children(
    mixture: str, datasets: Sequence[TuneIterableDataset], weights: Weights | WeightSchedule | None
) -> WeightSchedule:
    """Return the weights of a mixture's children as a schedule, or raise an error if either is invalid."""
    if not datasets:
        raise MixtureError("a mixture needs at least one dataset", mixture=mixture)
    for dataset in datasets:
        if not isinstance(dataset, TuneIterableDataset):
            raise MixtureError(
                "only datasets can be mixed",
                mixture=mixture,
                dataset=type(dataset).__name__,
                hint="wrap a source in StreamDataset, a datasets.IterableDataset in HFStreamingDataset",
            )
    # Names are how samples, metrics and states are distinguished, so each occurs once in the entire tree.
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
    if weights is None:
        weights = {dataset.dataset_name: dataset.info.weight for dataset in datasets}
    names = [dataset.dataset_name for dataset in datasets]
    check_named(as_schedule(weights), names)
    return check_weight_schedule(weights, names)
