"""An evaluation inside a run: its figures are a separate record, outside the training series."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError

__all__ = ["Evaluation"]


class Evaluation:
    """The figures of one evaluation.

    Args:
        name: the name of the evaluation.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.figures: dict[str, float] = {}

    def record(self, **figures: Any) -> None:
        """Record figures, to be written when the evaluation ends."""
        self.figures |= {name: _number(name, value) for name, value in figures.items()}


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):  # which ``float`` would parse
            raise TypeError
        # torch warns when a tensor that requires a gradient is converted to a number.
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # RuntimeError: a tensor with several elements
        raise ConfigError("a figure must be a number", figure=name, found=type(value).__name__) from None
