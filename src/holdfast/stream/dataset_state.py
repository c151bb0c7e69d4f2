"""Whether a state belongs to a dataset, and if not, which of its children differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import StateMismatchError
from holdfast.versioned import Count, Format

__all__ = ["DATASET_STATE", "DatasetState", "check_fingerprint"]


@dataclass(frozen=True, slots=True)
class DatasetState:
    """Where a dataset stands that is iterated on its own.

    Attributes:
        position: positions of its order that lie behind.
        epoch: the epoch at that point.
        fingerprint: of the order.
        children: the states of its children by name, nested as the children are.
    """

    position: Count
    epoch: Count
    fingerprint: str
    children: dict[str, Any]


DATASET_STATE = Format(
    "dataset state",
    DatasetState,
    unmarked=1,
    hint="a mixture inside another has no state of its own: load the state of the outermost one",
)


def check_fingerprint(found: str, children: Mapping[str, Any], own: Mapping[str, Any], *, dataset: str) -> None:
    """Raise ``StateMismatchError`` where a state does not belong to the dataset whose own state is given."""
    if found != own["fingerprint"]:
        raise StateMismatchError(
            "the state was made with other sources, weights or seeds",
            dataset=dataset,
            fingerprint=own["fingerprint"],
            expected=found,
            children=_changes(children, own["children"]),
        )


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
