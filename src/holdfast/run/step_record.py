"""The record of one step: collected when the step is done, written when its numbers are on the host."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch

from holdfast.errors import ConfigError
from holdfast.run.buckets import TIME_FIELDS
from holdfast.run.gauge import Deferred, by_layer, total_norm

__all__ = ["RESERVED", "StepRecord", "bits_of", "number_from_bits"]

RESERVED = frozenset(
    ("step", "batches", "loss", "loss_bits", "grad_norm", "grad_norm_bits", "lr", "at", "chain", "redone", "event",
     "holdfast", "skipped", *TIME_FIELDS.values())
)  # fmt: skip
"""Fields of a step's record that a program's own metrics cannot be called."""


def bits_of(value: float) -> str:
    """Return the exact bits of a number, as 16 hexadecimal digits."""
    return struct.pack(">d", value).hex()


def number_from_bits(bits: str) -> float:
    """Return the number that ``bits_of`` was given."""
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    return float(value)


class StepRecord:
    """What is known of a step when the program says that it is done.

    Args:
        step: its number, from 0.
        batches: the first batch it took, and one past the last.
        loss: its loss, where there is one.
        grad_norm: the norm of its gradient, as the program measured it.
        metrics: the program's own numbers.
    """

    __slots__ = ("_deferred", "_numbers", "batches", "grad_norms", "layers", "rate", "sharded", "step", "weight_norms")

    def __init__(
        self, step: int, batches: tuple[int, int], loss: Any, grad_norm: Any, metrics: Mapping[str, Any]
    ) -> None:
        self.step = step
        self.batches = batches
        self._numbers: dict[str, float] = {}
        self._deferred: dict[str, Deferred] = {}
        if loss is not None:
            self._add("loss", loss)
        if grad_norm is not None:
            self._add("grad_norm", grad_norm)
        for name, value in metrics.items():
            if name in RESERVED:
                raise ConfigError("this name is taken in the run log", metric=name, hint="choose another name")
            self._add(name, value)
        self.grad_norms: Deferred | None = None
        self.weight_norms: Deferred | None = None
        self.layers: list[str] = []
        self.rate: float | None = None
        self.sharded = False

    def _add(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if value.numel() != 1:
                raise ConfigError("a step's numbers are single numbers", metric=name, shape=list(value.shape))
            if value.device.type == "cpu" and not hasattr(value, "to_local"):
                self._numbers[name] = value.item()
            else:
                self._deferred[name] = Deferred(value)
            return
        try:
            self._numbers[name] = float(value)
        except (TypeError, ValueError):
            raise ConfigError("a step's numbers are numbers", metric=name, found=type(value).__name__) from None

    @property
    def is_ready(self) -> bool:
        """Whether writing it waits for nothing."""
        if self._deferred and not all(value.is_ready for value in self._deferred.values()):
            return False
        return self.grad_norms is None or self.grad_norms.is_ready

    def fields(self) -> dict[str, Any]:
        """Return the record's fields, but for its times."""
        numbers = self._numbers
        for name, deferred in self._deferred.items():
            numbers[name] = deferred.numbers()[0]
        fields: dict[str, Any] = {"step": self.step, "batches": list(self.batches)}
        if "loss" in numbers:
            loss = numbers.pop("loss")
            fields["loss"] = loss
            fields["loss_bits"] = bits_of(loss)
        norms = self.grad_norms.numbers() if self.grad_norms is not None else []
        if "grad_norm" not in numbers and norms:
            numbers["grad_norm"] = total_norm(norms)
        if "grad_norm" in numbers:
            norm = numbers.pop("grad_norm")
            fields["grad_norm_shard" if self.sharded else "grad_norm"] = norm
            fields["grad_norm_bits"] = bits_of(norm)
        if self.rate is not None:
            fields["lr"] = self.rate
        fields.update(numbers)
        if self.layers:
            fields.update((f"grad_norm/{layer}", norm) for layer, norm in by_layer(self.layers, norms).items())
            weights = self.weight_norms.numbers() if self.weight_norms is not None else []
            fields.update((f"weight_norm/{layer}", norm) for layer, norm in by_layer(self.layers, weights).items())
        return fields
