"""Whether a state belongs to a dataset, and if not, which of its children differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import StateError, StateMismatchError

__all__ = ["check_state"]


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], *, dataset: str) -> int:
    """Return the position of a state that belongs to the dataset whose own state is given, or say why it does not."""
    try:
        position, expected, before = int(state["position"]), state["fingerprint"], state["children"]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            "this is not the state of a dataset on its own",
            dataset=dataset,
            hint="a mixture inside another has no state of its own: load the state of the outermost one",
        ) from error
    if expected != own["fingerprint"]:
        raise StateMismatchError(
            "the state was made with other sources, weights or seeds",
            dataset=dataset,
            fingerprint=own["fingerprint"],
            expected=expected,
            children=_changes(before, own["children"]),
        )
    return position


def _changes(before: Any, now: Mapping[str, Any]) -> dict[str, str]:
    """Say of each child whether it is gone, new, or another than the state knew."""
    if not isinstance(before, Mapping):
        return {}
    found = {name: "gone" for name in before if name not in now}
    found |= {name: "new" for name in now if name not in before}
    for name in before.keys() & now.keys():
        known = before[name] if isinstance(before[name], Mapping) else {}
        if known.get("fingerprint") != now[name].get("fingerprint"):
            found[name] = "other data, shuffle or seed"
        inner = _changes(known.get("children"), now[name].get("children", {}))
        found |= {f"{name}/{child}": text for child, text in inner.items()}
    return found
