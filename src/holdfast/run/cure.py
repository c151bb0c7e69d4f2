"""A cure: what a run does differently after a rollback, and how it is read back from the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.run.run_log import Record
from holdfast.run.snapshot import Components

__all__ = ["Cure", "abandoned_name", "cures_for", "cures_since", "unfinished"]


@dataclass(frozen=True, slots=True)
class Cure:
    """What is done differently after a rollback. It is recorded in the log, and can be applied again from there.

    Attributes:
        skip_batches: the first batch to leave out, and one past the last; later batches close the gap.
        mask_batches: the same for batches that keep their place with every sample marked invalid.
        mask_samples: source → indices marked invalid from here on.
        skip_samples: source → indices left out from here on.
        rate_scale: what the learning rate is multiplied by.
    """

    skip_batches: tuple[int, int] | None = None
    mask_batches: tuple[int, int] | None = None
    mask_samples: Mapping[str, list[int]] = field(default_factory=dict)
    skip_samples: Mapping[str, list[int]] = field(default_factory=dict)
    rate_scale: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the cure as plain JSON, with only the fields that are set."""
        value: dict[str, Any] = {}
        for name in ("skip_batches", "mask_batches"):
            if getattr(self, name) is not None:
                value[name] = list(getattr(self, name))
        for name in ("mask_samples", "skip_samples"):
            if getattr(self, name):
                value[name] = {source: list(indices) for source, indices in getattr(self, name).items()}
        if self.rate_scale is not None:
            value["rate_scale"] = self.rate_scale
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Cure:
        """Read what ``to_json`` wrote."""
        return cls(
            skip_batches=tuple(value["skip_batches"]) if "skip_batches" in value else None,
            mask_batches=tuple(value["mask_batches"]) if "mask_batches" in value else None,
            mask_samples=value.get("mask_samples", {}),
            skip_samples=value.get("skip_samples", {}),
            rate_scale=value.get("rate_scale"),
        )

    def apply(self, components: Components, discard: set[int]) -> None:
        """Apply the cure to what follows. If the loader cannot skip, its batches are taken and discarded."""
        loader = components.loader
        if self.skip_batches is not None:
            first, stop = self.skip_batches
            if components.has_order:
                loader.skip(steps=range(max(first, loader.step), stop))
            else:
                discard.update(range(first, stop))
        if self.skip_samples:
            loader.skip(samples=self.skip_samples)
        if self.mask_batches is not None:
            loader.mask(steps=range(*self.mask_batches))
        if self.mask_samples:
            loader.mask(samples=self.mask_samples)
        if self.rate_scale is not None:
            _scale_rate(components, self.rate_scale)


def cures_since(events: Iterable[Record], step: int) -> dict[int, list[Cure]]:
    """Return the cures decided since the checkpoint of this step was saved, by the step at which they take effect.

    The checkpoint does not contain them yet. Cures of an abandoned branch do not count.
    """
    found: dict[int, list[Cure]] = {}
    for event in events:
        if event["event"] == "checkpoint" and event["step"] == step:
            found = {}
        elif event["event"] == "rollback":
            found = {at: cures for at, cures in found.items() if at <= event["to"]}
            if event["to"] >= step:
                found.setdefault(event["to"], []).append(Cure.from_json(event["cure"]))
    return found


def cures_for(events: Iterable[Record], step: int) -> list[Cure]:
    """Return the cures that apply from the checkpoint of this step on, in order."""
    return cures_since(events, step).get(step, [])


def unfinished(events: Iterable[Record]) -> Record | None:
    """Return a rollback that was decided but not completed."""
    decided: Record | None = None
    for event in events:
        if event["event"] == "rollback":
            decided = event
        elif event["event"] == "rolled_back":
            decided = None
    return decided


def abandoned_name(decision: Mapping[str, Any]) -> str:
    """Return the name of the folder for checkpoints that a rollback abandons."""
    return f"rollback-{decision['number']:03d}"


def _scale_rate(components: Components, factor: float) -> None:
    """Multiply the learning rate, both the current one and the scheduler's base rates."""
    for optimizer in components.optimizers:
        for group in optimizer.param_groups:
            for name in ("lr", "initial_lr"):
                if name in group:
                    group[name] = group[name] * factor
    scheduler = components.parts.get("scheduler")
    rates = getattr(scheduler, "base_lrs", None)
    if isinstance(rates, list):
        scheduler.base_lrs = [rate * factor for rate in rates]  # type: ignore[union-attr]
