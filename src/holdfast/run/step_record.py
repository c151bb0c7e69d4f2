"""The record of one step: collected when the step is done, written when its numbers are on the host."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.errors import ConfigError
from holdfast.run.buckets import OWN_TIME, TIME_FIELDS
from holdfast.run.gauge import NOTHING, Deferred, Measured, by_layer, on_host, total_norm
from holdfast.run.ranks import Ranks
from holdfast.run.step_line import BITS_OF, bits_of

__all__ = ["RESERVED", "StepRecord"]

RESERVED = frozenset(
    ("step", "batches", "loss", "loss_bits", "grad_norm", "grad_norm_bits", "lr", "at", "chain", "redone", "event",
     "holdfast", "skipped", OWN_TIME, *TIME_FIELDS.values())
)  # fmt: skip
"""Fields of a step's record, whose names a program's own metrics cannot have."""


class StepRecord:
    """What is known about a step when the program reports that it is done.

    Args:
        step: its number, from 0.
        batches: the first batch it took, and one past the last.
        loss: its loss, if there is one.
        grad_norm: the norm of its gradient, as the program measured it.
        metrics: the program's own numbers.
        measured: what hooks measured during the step.

    Attributes:
        is_deferred: whether any of its numbers may still be on its way to the host.
        own_time: how long the rank was busy with the step before it waited for others; None in a single process.
        times: the time spent on it by field, and the attempt's age at its end; None if it is written at once.
    """

    __slots__ = ("_deferred", "_measured", "_numbers", "batches", "is_deferred", "own_time", "step", "times")

    def __init__(
        self,
        step: int,
        batches: tuple[int, int],
        loss: Any,
        grad_norm: Any,
        metrics: Mapping[str, Any],
        measured: Measured,
    ) -> None:
        self.step = step
        self.batches = batches
        self.own_time: float | None = None
        self.times: tuple[dict[str, float], float] | None = None
        self._numbers: dict[str, float] = {}
        self._deferred: dict[str, Deferred] | None = None
        self._measured = measured
        self.is_deferred = type(measured.norms) is Deferred
        if loss is not None:
            self._add("loss", loss)
        if grad_norm is not None:
            self._add("grad_norm", grad_norm)
        if metrics:
            for name, value in metrics.items():
                if name in RESERVED:
                    raise ConfigError("this name is reserved in the run log", metric=name, hint="choose another name")
                self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if type(value) is torch.Tensor and value.is_cpu:  # the common case: few checks, as this runs every step
            try:
                self._numbers[name] = float(value.item())
            except (RuntimeError, TypeError):
                pass  # refused below, with its shape
            else:
                return
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise ConfigError("the numbers of a step must be scalars", metric=name, shape=list(value.shape))
            if not value.is_cpu or hasattr(value, "to_local"):
                self._deferred = {**(self._deferred or {}), name: Deferred(value)}
                self.is_deferred = True
                return
            value = value.item()
        try:
            if isinstance(value, str | bytes):  # which ``float`` would parse
                raise TypeError
            self._numbers[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ConfigError(
                "the numbers of a step must be numeric", metric=name, found=type(value).__name__
            ) from None

    @property
    def is_ready(self) -> bool:
        """Whether it can be written without waiting."""
        waiting = (self._measured.norms, *(self._deferred or {}).values())
        return all(value.is_ready for value in waiting if isinstance(value, Deferred))

    def numbers(self) -> dict[str, float]:
        """Return every number of the step by name; wait for those that are not on the host yet."""
        given, measured = self._numbers, self._measured
        if self._deferred is not None:
            given.update((name, deferred.numbers()[0]) for name, deferred in self._deferred.items())
        if measured is NOTHING:  # in the order in which they were passed
            return given
        numbers: dict[str, float] = {}
        if "loss" in given:
            numbers["loss"] = given["loss"]
        norms: list[float] = []
        if measured.norms is not None:
            norms = measured.norms if type(measured.norms) is list else on_host(measured.norms)
            numbers["grad_norm"] = total = total_norm(norms)
            if measured.unclipped is not None:
                (numbers["grad_norm"],) = unclipped = on_host(measured.unclipped)
                ratio = unclipped[0] / total if total else math.nan
                if math.isfinite(ratio):  # clipping scales all of a gradient equally
                    norms = [norm * ratio for norm in norms]
        if measured.rate is not None:
            numbers["lr"] = measured.rate
        if len(given) > 1 or "loss" not in given:
            numbers.update(given)
        if measured.layers:
            numbers.update((f"grad_norm/{layer}", norm) for layer, norm in by_layer(measured.layers, norms).items())
            weights = on_host(measured.weights) if measured.weights is not None else []
            numbers.update((f"weight_norm/{layer}", norm) for layer, norm in by_layer(measured.layers, weights).items())
        return numbers

    def average_loss(self, ranks: Ranks) -> None:
        """Replace this rank's loss by the mean over the ranks that have one; all ranks call it."""
        own = self.numbers().get("loss")
        rows = ranks.exchange((own or 0.0, own is not None)).rows()
        losses = [loss for loss, is_known in rows if is_known]
        if losses:
            self._numbers = {
                "loss": sum(losses) / len(losses),
                **{k: v for k, v in self._numbers.items() if k != "loss"},
            }
            self._deferred = None

    def fields(self) -> dict[str, Any]:
        """Return the record's fields, without its times."""
        numbers = self.numbers()
        bits = {f"{name}_bits": bits_of(numbers[name]) for name in BITS_OF if name in numbers}
        return {"step": self.step, "batches": list(self.batches), **numbers, **bits}
