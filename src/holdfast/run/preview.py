"""A safe preview of a sample: a few words on each of its columns, short, printable and on one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["preview"]

MAX_CHARACTERS = 80
MAX_VALUES = 6
MAX_COLUMNS = 12


def preview(batch: Mapping[str, Any], row: int) -> dict[str, str]:
    """Return column → what one row holds."""
    names = [name for name in batch if name not in ("metrics", "__valid__")]
    return {printable(name): _shown(batch[name], row) for name in names[:MAX_COLUMNS]}


def _shown(column: Any, row: int) -> str:
    try:
        value = column[row]
    except (IndexError, KeyError, TypeError):
        return printable(type(column).__name__)
    if not isinstance(value, torch.Tensor):
        return printable(str(value))
    flat = value.detach().reshape(-1).cpu()
    first = ", ".join(f"{number:.4g}" for number in flat[:MAX_VALUES].tolist())
    if flat.numel() <= MAX_VALUES:
        return printable(first)
    bounds = f"{flat.min().item():.4g} … {flat.max().item():.4g}"
    return printable(f"{first}, … ({flat.numel()} values, {bounds})")


def printable(text: str) -> str:
    """Return text on one line, without control characters, cut short."""
    shown = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text[: 2 * MAX_CHARACTERS])
    return shown if len(shown) <= MAX_CHARACTERS else shown[: MAX_CHARACTERS - 1] + "…"
