"""The ranks of a run side by side: which are slow, and which stalled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from holdfast.debug.reporting.words import clean
from holdfast.page.model import HeatMap, Line, Mark
from holdfast.run.buckets import OWN_TIME
from holdfast.run.columns import RunColumns

__all__ = ["MAX_RANKS", "rank_strip"]

MAX_RANKS = 64
"""Maximum number of ranks shown."""
TITLE = "Time per step by rank"
NOTE = "The time that each rank spends before it waits for the others. Stragglers and stalls are framed."
NOTE_WHOLE = "Whole steps, the time spent waiting for the others included. Stragglers and stalls are framed."


def rank_strip(ranks: Mapping[int, RunColumns]) -> HeatMap | None:
    """Return every rank's time per step, with stragglers and stalls marked, or None if there is only one rank.

    Args:
        ranks: the log of every rank; that of the first rank contains the findings.
    """
    if len(ranks) < 2:
        return None
    known = all(len(columns.series(OWN_TIME)[0]) for columns in ranks.values())
    rows = tuple(Line(f"rank {rank}", *_time(columns, own=known)) for rank, columns in ranks.items())
    places = {rank: place for place, rank in enumerate(ranks)}
    return HeatMap(TITLE, rows, tuple(_marks(ranks, places)), NOTE if known else NOTE_WHOLE)


def _time(columns: RunColumns, *, own: bool) -> tuple[Any, Any]:
    steps, seconds = columns.series(OWN_TIME if own else "step_time")
    waited_at, waited = columns.series("data_time")
    if len(waited_at):  # waiting for its own data does not concern other ranks
        seconds = seconds + np.where(np.isin(steps, waited_at), _at(steps, waited_at, waited), 0.0)
    return steps, seconds


def _at(steps: Any, known: Any, values: Any) -> Any:
    return values[np.minimum(np.searchsorted(known, steps), len(known) - 1)]


def _marks(ranks: Mapping[int, RunColumns], places: Mapping[int, int]) -> Iterator[Mark]:
    for rank, columns in ranks.items():
        for event in columns.events:
            if event["event"] == "stall" and isinstance(event.get("step"), int):
                named = [culprit for culprit in event.get("culprits") or () if culprit in places] or [rank]
                seconds, where = event.get("standing"), event.get("where")
                for culprit in named:
                    text = f"stall of rank {culprit} at step {event['step']:,}: {seconds} s in {where}"
                    yield Mark(places[culprit], event["step"], event["step"], clean(text))
            elif event["event"] == "finding" and event.get("names_rank") and event.get("rank") in places:
                onset = event.get("onset")
                if onset is not None:
                    last = event.get("last_step") or onset
                    yield Mark(places[event["rank"]], onset, max(onset, last), clean(event.get("title") or "finding"))
