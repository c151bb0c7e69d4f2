"""``InterleavedDataset``: several datasets mixed by weight, nested as deep as needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import MixtureError
from holdfast.order.mixture import Schedule, Weights, check_schedule, nest
from holdfast.stream.dataset import DatasetInfo, OrderedDataset

__all__ = ["InterleavedDataset"]


class InterleavedDataset(OrderedDataset):
    """A mixture of datasets with exact ratios and random access.

    Args:
        datasets: the children, each with its own name; children may be mixtures themselves, whose leaves' weights
            multiply.
        weights: by child name, or a schedule ``[(from_position, weights), …]``; None takes the children's own weights.
        seed: of the arrangement.
        name: of the mixture.
        weight: of the mixture itself where it is nested in another that gives none.
        stop: ``cycle_forever``, ``first_exhausted`` or ``all_exhausted``.
    """

    def __init__(
        self,
        datasets: Sequence[OrderedDataset],
        weights: Weights | Schedule | None = None,
        *,
        seed: int = 0,
        name: str = "mixture",
        weight: float = 1.0,
        stop: str = "cycle_forever",
    ) -> None:
        if not datasets:
            raise MixtureError("a mixture needs at least one dataset", mixture=name)
        for dataset in datasets:
            if not isinstance(dataset, OrderedDataset):
                raise MixtureError(
                    "only datasets with random access can be mixed: the mixture computes which sample comes when",
                    mixture=name,
                    dataset=getattr(dataset, "dataset_name", type(dataset).__name__),
                    hint="load it without streaming, as an HFIterableDataset",
                )
        _check_names(name, datasets)
        names = [dataset.dataset_name for dataset in datasets]
        if weights is None:
            weights = {dataset.dataset_name: dataset.weight for dataset in datasets}
        schedule = check_schedule(weights, names)
        self.children: dict[str, OrderedDataset] = {dataset.dataset_name: dataset for dataset in datasets}
        self._children = self.children
        nested = {child: d.weight_schedule for child, d in self.children.items() if isinstance(d, InterleavedDataset)}
        self.leaves = tuple(leaf for dataset in datasets for leaf in dataset.leaves)
        self._name = name
        self.weight = weight
        self.mixture_seed = seed
        self.stop = stop
        self._weights = nest(schedule, nested)
        check_schedule(self._weights, [leaf.name for leaf in self.leaves])
        first: Mapping[str, Any] = schedule[0][1]
        children = tuple(
            DatasetInfo(d.info.name, d.info.length, float(first[child]), d.info.children)
            for child, d in self.children.items()
        )
        self._info = DatasetInfo(name, sum(len(leaf.source) for leaf in self.leaves), weight, children)
        self._position = 0


def _check_names(mixture: str, datasets: Sequence[OrderedDataset]) -> None:
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
