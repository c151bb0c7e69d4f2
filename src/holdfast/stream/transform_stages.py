"""The stages a sample passes through, as one transform: message, then model, then output.

Stages are kept apart so that each can be replaced alone: the message stage knows the data's columns, the model stage
the tokenizer, the output stage what the loss function wants. A stage that returns None leaves the sample out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError
from holdfast.stream.named_source import Sample, Transform, wants_rng

__all__ = ["SeededStages", "Stages", "in_stages"]


def in_stages(stages: Sequence[Transform | None]) -> Stages | SeededStages | None:
    """Return one transform that applies the stages in turn; None where there is none.

    A stage with a parameter ``rng`` gets the sample's own generator, which depends on nothing but (seed, name, epoch,
    index).
    """
    present = [stage for stage in stages if stage is not None]
    for stage in present:
        if not callable(stage):
            raise ConfigError("a transform must be callable", transform=repr(stage))
    if not present:
        return None
    wants = tuple(wants_rng(stage) for stage in present)
    return SeededStages(tuple(present), wants) if any(wants) else Stages(tuple(present))


@dataclass(frozen=True, slots=True)
class Stages:
    """Transforms applied in turn."""

    stages: tuple[Transform, ...]

    def __call__(self, sample: Sample) -> Sample | None:
        """Return the finished sample; None where a stage left it out."""
        made: Sample | None = sample
        for stage in self.stages:
            if made is None:
                return None
            made = stage(made)
        return made


@dataclass(frozen=True, slots=True)
class SeededStages:
    """Transforms applied in turn, some of which take the sample's own random generator."""

    stages: tuple[Transform, ...]
    wants_rng: tuple[bool, ...]

    def __call__(self, sample: Sample, *, rng: Any) -> Sample | None:
        """Return the finished sample; None where a stage left it out."""
        made: Sample | None = sample
        for stage, wants in zip(self.stages, self.wants_rng, strict=True):
            if made is None:
                return None
            made = stage(made, rng=rng) if wants else stage(made)
        return made
