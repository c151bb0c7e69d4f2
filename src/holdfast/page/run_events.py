"""What happened to a run, and what is known about its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.debug.reporting.words import clean
from holdfast.errors import HoldfastError
from holdfast.page.model import Event
from holdfast.run.columns import RunColumns
from holdfast.run.layout import RunFolder

__all__ = ["checkpoint_states", "rolled_back_to", "run_events", "verify_checkpoints"]

NOT_SHOWN = frozenset(("finding", "rolled_back", "stream", "metrics", "reading", "alert_sent"))
"""Events that did not happen to the run at a step, or are shown elsewhere."""
NOT_SAID = frozenset(("event", "step", "at", "chain", "attempt", "finding", "stacks", "cure", "notes", "batch"))
"""Fields of an event that its line does not repeat."""
MAX_CHECKPOINTS, MAX_OTHERS = 400, 1000
"""Maximum number of events on a page. Of more checkpoints every n-th is shown, and always the last, the damaged and
those resumed from; of more other events the newest."""


def run_events(columns: RunColumns, states: Mapping[str, tuple[str, str]]) -> tuple[Event, ...]:
    """Return what happened at which step.

    Args:
        columns: the run.
        states: what is known about each checkpoint by name: a word and a sentence.
    """
    events = list(_events(columns, states))
    saved = [event for event in events if event.kind == "checkpoint"]
    others = [event for event in events if event.kind != "checkpoint"]
    every = -(-len(saved) // MAX_CHECKPOINTS) if saved else 1
    kept = [
        event
        for place, event in enumerate(saved)
        if (len(saved) - 1 - place) % every == 0 or event.state in ("verified", "damaged")
    ]
    return tuple(sorted((*kept[-2 * MAX_CHECKPOINTS :], *others[-MAX_OTHERS:]), key=lambda event: event.step))


def _events(columns: RunColumns, states: Mapping[str, tuple[str, str]]) -> Iterator[Event]:
    sizes = {header["attempt"]: header.get("world_size") for header in columns.headers}
    for record in columns.events:
        kind, step = record["event"], record.get("step")
        is_last = record is columns.events[-1]
        if not isinstance(step, int) or kind in NOT_SHOWN or (kind == "end" and not is_last):  # a restart repeats it
            continue
        attempt = record["attempt"]
        if kind == "start":
            if attempt == 1:
                continue
            before, now = sizes.get(attempt - 1), sizes.get(attempt)
            resized = f", {before} → {now} ranks" if before and now and before != now else ""
            text = f"attempt {attempt}, from {record.get('checkpoint') or f'step {step:,}'}{resized}"
            yield Event(step, "resize" if resized else "restart", clean(text))
        elif kind == "checkpoint":
            name = _name(record)
            state, text = states.get(name, ("saved", ""))
            yield Event(step, kind, clean(f"{name}: {text}" if text else name), state)
        else:
            yield Event(step, clean(kind), clean(_said(record)))
            if kind == "rollback":
                yield from _cures(record)


def _cures(rollback: Mapping[str, Any]) -> Iterator[Event]:
    """Yield what is left out after the point to which the run went back."""
    for name, found in rollback["cure"].items():
        kind, _, what = name.partition("_")
        if found and kind in ("skip", "mask"):
            named = f"{found[0]} to {found[1] - 1}" if what == "batches" else _samples(found)
            yield Event(rollback["to"], kind, clean(f"{what} {named} are left out"))


def _samples(found: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{source} {', '.join(map(str, numbers))}" for source, numbers in found.items())


def _said(record: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in record.items() if name not in NOT_SAID and not name.endswith("_time")}
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def _name(record: Mapping[str, Any]) -> str:
    return Path(str(record.get("path") or "")).name or f"step {record['step']}"


def checkpoint_states(
    columns: RunColumns, folder: RunFolder, checked: Mapping[str, str | None]
) -> dict[str, tuple[str, str]]:
    """Return the state of each checkpoint in the log by name, as a word and a sentence.

    Args:
        columns: the run.
        folder: the folder of the run's own checkpoints.
        checked: the result of a verification by name: the damage, or None.
    """
    states: dict[str, tuple[str, str]] = {}
    there = {path.name for path in folder.checkpoint_steps().values()}
    for record in columns.events:
        if record["event"] == "checkpoint":
            name = _name(record)
            # A trainer's own checkpoints are elsewhere, and a path named in a log is not opened.
            is_gone = record.get("path") == name and name not in there
            states[name] = ("removed", "removed since") if is_gone else ("saved", "")
        elif record["event"] == "start":
            for name, reason in _passed_over(record.get("passed_over")):
                states[name] = ("damaged", f"skipped at a restart: {reason}")
            if isinstance(record.get("checkpoint"), str):
                states[record["checkpoint"]] = ("verified", "verified, and resumed from")
    for name, damage in checked.items():
        if name in states:
            states[name] = ("verified", "verified") if damage is None else ("damaged", f"damaged: {damage}")
    return states


def _passed_over(entries: Any) -> Iterator[tuple[str, str]]:
    for entry in entries if isinstance(entries, Sequence) else ():
        if isinstance(entry, list) and len(entry) == 2:
            yield Path(str(entry[0])).name, str(entry[1])


def verify_checkpoints(folder: RunFolder) -> dict[str, str | None]:
    """Verify every checkpoint in a run's folder; return the damage of each by name, or None if it is intact.

    This reads all of them.
    """
    from holdfast.checkpoint import verify_checkpoint

    found: dict[str, str | None] = {}
    for path in folder.checkpoint_steps().values():
        try:
            found[path.name] = verify_checkpoint(path).reason or None
        except HoldfastError as error:  # noqa: PERF203 - once per checkpoint
            found[path.name] = error.message
    return found


def rolled_back_to(columns: RunColumns) -> int | None:
    """Return the step to which the run went back, if it did so after the last serious finding."""
    step: int | None = None
    for record in columns.events:
        if record["event"] == "rolled_back":
            step = record["step"]
        elif record["event"] == "finding" and record.get("severity") in ("warning", "critical"):
            step = None
    return step
