"""Keys of a state dict that torch cannot keep apart or in order: it makes a text of each, and sorts the top ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["alike", "unsortable"]


def unsortable(state_dict: Mapping[Any, Any]) -> str | None:
    """Return what is wrong with the keys at the top, if torch cannot sort them when it loads."""
    try:
        sorted(state_dict)
    except TypeError:
        types = ", ".join(sorted({type(key).__name__ for key in state_dict}))
        return f"the keys at the top of the state are of types that cannot be sorted together: {types}"
    return None


def alike(state: Any, place: str = "the state") -> str | None:
    """Return which two keys of a dict, at any depth, are the same text: torch merges what is below them."""
    if isinstance(state, Mapping):
        seen: dict[str, Any] = {}
        for key in state:
            other = seen.setdefault(str(key), key)
            if other is not key:
                return f"{other!r} and {key!r} in {place} are the same key to torch, which makes a text of each"
        children = [(value, f"{place}[{key!r}]") for key, value in state.items()]
    elif isinstance(state, list):
        children = [(value, f"{place}[{number}]") for number, value in enumerate(state)]
    else:
        return None
    found = (alike(value, name) for value, name in children if isinstance(value, (Mapping, list)))
    return next((fault for fault in found if fault is not None), None)
