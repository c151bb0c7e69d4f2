"""Small per-rank state inside a checkpoint: any plain values, as one tensor of bytes.

A torch distributed checkpoint stores the tensors of every rank but other objects of rank 0 only, so the state of each
rank is stored as a tensor. Reading it runs no code: torch's weights-only unpickler decodes it.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from holdfast.errors import ConfigError, UnusableCheckpointError

__all__ = ["pack", "unpack"]


def pack(value: dict[str, Any], *, check: bool) -> torch.Tensor:
    """Return the values as a tensor of bytes.

    Args:
        value: named states.
        check: read it back, and raise for a state that would not load.
    """
    buffer = io.BytesIO()
    try:
        torch.save(value, buffer)
        if check:
            unpack(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))
    except (UnusableCheckpointError, AttributeError, TypeError) as error:
        raise ConfigError(
            "a state cannot be saved: it holds objects that are not plain values or tensors",
            state=_culprit(value),
            hint="return numbers, text, lists, dicts and tensors from its state_dict()",
        ) from error
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def unpack(packed: torch.Tensor) -> dict[str, Any]:
    """Return the values that ``pack`` was given."""
    try:
        value = torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)
    except Exception as error:
        raise UnusableCheckpointError(
            f"the run's state in the checkpoint cannot be read: {error}", hint="continue from an earlier checkpoint"
        ) from error
    if not isinstance(value, dict):
        raise UnusableCheckpointError("invalid run state in the checkpoint")
    return value


def _culprit(value: dict[str, Any]) -> str:
    for name, part in value.items():
        buffer = io.BytesIO()
        try:
            torch.save({name: part}, buffer)
            unpack(torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8))
        except (UnusableCheckpointError, AttributeError, TypeError):
            return name
    return ", ".join(value)
