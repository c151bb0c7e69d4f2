"""A source with its options: its name, its shuffle and its transforms.

A transform may have stages (message, then model, then output), so that each can be replaced on its own: the first knows
the data's columns, the second the tokenizer, the third what the loss needs. A stage that returns None leaves the sample
out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.arguments import check_type, is_function
from holdfast.errors import ConfigError
from holdfast.metrics import MetricTransform
from holdfast.order import Shuffle, SourceSpec
from holdfast.order.shuffle import FullShuffle, WindowShuffle, parse_shuffle
from holdfast.sources import Columns, Source

__all__ = ["Collate", "HasSources", "NamedSource", "Sample", "Stages", "Transform", "named_copy", "wants_rng"]

Sample = dict[str, Any]
Transform = Callable[..., Sample | None]
ColumnTransform = Callable[[Columns], Columns]
Collate = Callable[[list[Sample]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class NamedSource:
    """One source of a dataset.

    Args:
        name: the name under which its samples and metrics are counted.
        source: its storage.
        seed: the seed of its shuffles.
        shuffle: how an epoch is laid out; ``"auto"`` is ``full``, or windows if the source is remote.
        transform: Python function of one sample; None leaves samples as they are. A transform with a parameter ``rng``
            is given a generator that depends only on (seed, name, epoch, index), so that augmentation repeats exactly.
        column_transform: function of a whole batch of columns, applied before ``transform``.
        metric_transform: makes metrics from the samples.
    """

    name: str
    source: Source
    seed: int = 0
    shuffle: Shuffle | str | None = "auto"
    transform: Transform | None = None
    column_transform: ColumnTransform | None = None
    metric_transform: MetricTransform | None = None
    seeded: bool = field(init=False)
    layout: Shuffle = field(init=False)  # the resolved shuffle

    def __post_init__(self) -> None:
        check_type("name", self.name, _is_name, "a non-empty text without NUL characters")
        check_type("source", self.source, _is_source, "a Source, such as ArraySource, JsonlSource or HFSource")
        for what in ("transform", "column_transform"):
            check_type(what, getattr(self, what), is_function, "a function, or None")
        if len(self.source) < 1:
            raise ConfigError("the source has no samples", source=self.name)
        object.__setattr__(self, "seeded", wants_rng(self.transform))
        object.__setattr__(self, "layout", self._layout())

    def spec(self) -> SourceSpec:
        """Return what the order needs to know about this source."""
        return SourceSpec(self.name, len(self.source), self.seed, self.layout)

    def _layout(self) -> Shuffle:
        shards = self.source.shards() if self.shuffle == "window" else None
        if self.shuffle == "auto" or (self.shuffle == "window" and shards is None):
            window = self.source.window()
            if window is not None:
                mixed = window.shards if isinstance(window.shards, int) else tuple(window.shards)
                return WindowShuffle(mixed, window.group)
            if self.shuffle == "auto":
                return FullShuffle()
        return parse_shuffle(self.shuffle, shards)


class HasSources(Protocol):
    """What can be read: sources, numbered as the order numbers them."""

    @property
    def sources(self) -> tuple[NamedSource, ...]:
        """Return the sources."""


def named_copy(transform: MetricTransform | None, name: str) -> MetricTransform | None:
    """Return a copy of the transform that reports under this name; one transform may serve several datasets."""
    if transform is None:
        return None
    check_type("metric_transform", transform, MetricTransform, "a MetricTransform, or None")
    own = copy(transform)
    own.set_dataset_name(name)
    return own


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and "\0" not in value


def _is_source(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("__len__", "read", "fingerprint", "window", "shards"))


def wants_rng(function: Any) -> bool:
    """Return whether a transform takes the sample's own random generator."""
    if isinstance(function, Stages):
        return any(wants for _, wants in function.stages)
    try:
        return function is not None and "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


@dataclass(frozen=True, slots=True)
class Stages:
    """Transforms applied in turn, each with whether it takes the sample's own random generator."""

    stages: tuple[tuple[Transform, bool], ...]

    @classmethod
    def of(cls, stages: Sequence[Transform | None]) -> Stages | None:
        """Return one transform that applies the stages in turn; None if there are none."""
        for stage in stages:
            if stage is not None and not callable(stage):
                raise ConfigError("a transform must be callable", transform=repr(stage))
        present = tuple((stage, wants_rng(stage)) for stage in stages if stage is not None)
        return cls(present) if present else None

    def __call__(self, sample: Sample, *, rng: Any = None) -> Sample | None:
        """Return the finished sample; None if a stage left it out."""
        made: Sample | None = sample
        for stage, wants in self.stages:
            if made is None:
                return None
            made = stage(made, rng=rng) if wants else stage(made)
        return made
