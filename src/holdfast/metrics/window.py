"""The recent values of a distribution, merged as exactly as all its values.

A deque of the last values cannot be merged: which values are recent depends on which rank had them. Here recent means
the last steps of the *run*. Steps are grouped into panes, a pane is an ordinary state of the handler, and the panes of
all ranks line up by number. The newest pane anywhere decides which ones are still recent, so the merged window does not
depend on the order of merging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from numpy.typing import NDArray

from holdfast.metrics.handlers.base import MetricHandler, Scalar

#: Number of panes in a window; the window advances by one pane at a time.
PANES = 8

#: A handler's state by pane number.
Panes: TypeAlias = Mapping[int, Any]


def pane_of(step: int, recent_steps: int) -> int:
    """Return the pane a step belongs to, in a window of ``recent_steps`` steps."""
    return step // -(-recent_steps // PANES)


def update_panes(panes: Panes, handler: MetricHandler[Any], pane: int, values: NDArray[Any]) -> Panes:
    """Return the panes with ``values`` added to one of them."""
    state = panes[pane] if pane in panes else handler.init()
    return _recent({**panes, pane: handler.update(state, values)})


def merge_panes(windows: Sequence[Panes], handler: MetricHandler[Any]) -> Panes:
    """Return the panes of all windows together, pane by pane."""
    grouped: dict[int, list[Any]] = {}
    for window in windows:
        for pane, state in window.items():
            grouped.setdefault(pane, []).append(state)
    return {pane: handler.merge(states) for pane, states in _recent(grouped).items()}


def finalize_panes(panes: Panes, handler: MetricHandler[Any]) -> dict[str, Scalar]:
    """Return the figures of the window, with each suffix prefixed by ``recent_``."""
    if not panes:
        return {}
    figures = handler.finalize(handler.merge(list(panes.values())))
    return {f"recent_{suffix}": value for suffix, value in figures.items()}


def _recent(panes: Panes) -> Panes:
    newest = max(panes, default=0)
    return {pane: panes[pane] for pane in sorted(panes) if pane > newest - PANES}
