"""Keys of a state dict that torch cannot distinguish or sort: it converts all to text, and sorts the top-level ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint import _version

__all__ = ["alike", "flatten_as_now", "unsortable"]


def flatten_as_now() -> None:
    """Make torch flatten states as its current version does.

    While it looks for missing keys, torch flattens as an older version did, and continues to if that fails.
    """
    _version._derived_version = None


def unsortable(state_dict: Mapping[Any, Any]) -> str | None:
    """Return what is wrong with the top-level keys if torch cannot sort them when loading, or ``None``."""
    try:
        sorted(state_dict)
    except TypeError:
        types = ", ".join(sorted({type(key).__name__ for key in state_dict}))
        return f"the top-level keys of the state have types that cannot be sorted together: {types}"
    return None


def alike(state: Any, place: str = "the state") -> str | None:
    """Return which two keys of a dict, at any depth, have the same text, or ``None``: torch merges their values."""
    if isinstance(state, Mapping):
        seen: dict[str, Any] = {}
        for key in state:
            other = seen.setdefault(str(key), key)
            if other is not key:
                return f"{other!r} and {key!r} in {place} are the same key to torch, which converts keys to text"
        children = [(value, f"{place}[{key!r}]") for key, value in state.items()]
    elif isinstance(state, list):
        children = [(value, f"{place}[{number}]") for number, value in enumerate(state)]
    else:
        return None
    found = (alike(value, name) for value, name in children if isinstance(value, (Mapping, list)))
    return next((fault for fault in found if fault is not None), None)
