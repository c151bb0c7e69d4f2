"""Stretches of a run: which batches were trained on under which schedule, read from the log alone.

A stretch begins where an attempt starts or a rollback ends. The log holds the stream's state whenever its schedule
changed, so the samples of every recorded step follow by arithmetic. A step without a record had no lasting effect:
every checkpoint is saved after the records of its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import RunLogError
from holdfast.run.run_log import Record, RunLog, branch_step, is_step
from holdfast.run_records import MAX_BATCHES_PER_STEP, Batch
from holdfast.versioned import Between, Count, Format

if TYPE_CHECKING:
    from holdfast.order import Partition, Schedule

__all__ = ["Stretch", "check_stretches", "counted_steps", "read_stretches", "rebuild"]

Int64 = NDArray[np.int64]
MAX_STEPS = 1 << 26
"""Maximum number of steps of a stretch in a statement: a row of four numbers could describe more than fit in memory."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps made one after the other.

    Attributes:
        state: the stream's state, as logged; its history covers every batch of the stretch.
        steps: the recorded steps.
        first_batches: the first batch of each.
        stop_batches: one past the last batch of each.
        counts_before: steps from this one on were redone later; None if all of them count.
    """

    state: dict[str, Any]
    steps: Int64
    first_batches: Int64
    stop_batches: Int64
    counts_before: int | None = None

    @property
    def stop_batch(self) -> int:
        """One past the last batch."""
        return int(self.stop_batches[-1])

    def steps_of(self, batches: Int64) -> Int64:
        """Return the step that trained on each batch; -1 where none did."""
        rows = np.searchsorted(self.first_batches, batches, side="right") - 1
        inside = (rows >= 0) & (batches < self.stop_batches[np.maximum(rows, 0)])
        return np.where(inside, self.steps[np.maximum(rows, 0)], -1)

    def counted(self, steps: Int64) -> NDArray[np.bool_]:
        """Return which of the steps count: those not redone after a restart or a rollback."""
        return np.ones(len(steps), dtype=bool) if self.counts_before is None else steps < self.counts_before

    def to_json(self) -> dict[str, Any]:
        """Return the stretch as plain JSON; evenly spaced steps form one row.

        A row is the first step, its first batch, the number of steps, and the batches per step.
        """
        rows: list[list[int]] = []
        for step, first, stop in zip(
            self.steps.tolist(), self.first_batches.tolist(), self.stop_batches.tolist(), strict=True
        ):
            last = rows[-1] if rows else None
            if last and (step, first, stop - first) == (last[0] + last[2], last[1] + last[2] * last[3], last[3]):
                last[2] += 1
            else:
                rows.append([step, first, 1, stop - first])
        return {"state": self.state, "rows": rows, "counts_before": self.counts_before}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Stretch:
        """Read what ``to_json`` wrote.

        Raises:
            RunLogError: it is not what ``to_json`` writes.
        """
        steps, first, stop = [], [], []
        stored = STRETCH.from_json({"version": 1, **value})
        if sum(row[2] for row in stored.rows) > MAX_STEPS:
            raise RunLogError("a stretch has more steps than any run", max_steps=MAX_STEPS)
        for step, batch, count, each in stored.rows:
            numbers = np.arange(count, dtype=np.int64)
            steps.append(step + numbers)
            first.append(batch + numbers * each)
            stop.append(batch + (numbers + 1) * each)
        if not steps:
            raise RunLogError("a stretch has no steps")
        return cls(
            stored.state,
            np.concatenate(steps),
            np.concatenate(first),
            np.concatenate(stop),
            stored.counts_before,
        )


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stretch as plain JSON."""

    state: dict[str, Any]
    rows: list[tuple[Count, Batch, Count, Annotated[int, Between(0, MAX_BATCHES_PER_STEP)]]]
    counts_before: Count | None


STRETCH = Format("stretch of a run", _Stored, error=RunLogError, version_error=RunLogError)


@dataclass(slots=True)
class _Open:
    """A stretch that is being read."""

    begins: int
    state: dict[str, Any] | None = None
    rows: list[tuple[int, int, int]] = field(default_factory=list)


def read_stretches(log: RunLog) -> list[Stretch]:
    """Return every stretch in which a step was recorded, in order.

    Raises:
        RunLogError: the log does not say which samples its batches held.
    """
    stretches: list[_Open] = []
    for record in log.records(0):
        branch = branch_step(record)
        if branch is not None:
            stretches.append(_Open(branch))
        elif stretches:
            _take(stretches[-1], record, log)
    found = []
    for number, each in enumerate(stretches):
        if not each.rows:
            continue
        if each.state is None:
            raise RunLogError(
                "the log does not say which samples its batches held",
                folder=str(log.folder.root),
                step=each.rows[0][0],
                hint="only runs that read through a StreamingShardLoader can report their samples",
            )
        later = [other.begins for other in stretches[number + 1 :]]
        columns = np.array(each.rows, dtype=np.int64).T
        counts_before = min(later) if later and min(later) <= columns[0, -1] else None
        found.append(Stretch(each.state, columns[0], columns[1], columns[2], counts_before))
    return found


def check_stretches(stretches: Sequence[Stretch]) -> None:
    """Raise unless the steps are consecutive: a run makes and records them one by one.

    Raises:
        RunLogError: a step is missing, or a stretch does not begin where an earlier step ended.
    """
    reached = 0
    for stretch in stretches:
        first = int(stretch.steps[0])
        follow = bool(np.all(np.diff(stretch.steps) == 1))
        forward = bool(np.all(stretch.first_batches[1:] >= stretch.stop_batches[:-1]))
        if not follow or not forward or first > reached:
            raise RunLogError("steps are missing or not consecutive", step=first, reached=reached)
        reached = max(reached, int(stretch.steps[-1]) + 1)


def counted_steps(stretches: Sequence[Stretch]) -> int:
    """Return how many steps count: those not redone later."""
    return len({int(step) for each in stretches for step in each.steps[each.counted(each.steps)]})


def _take(stretch: _Open, record: Record, log: RunLog) -> None:
    if record.get("event") == "stream":
        stretch.state = record["state"]
    elif is_step(record):
        if "batches" not in record:
            raise RunLogError(
                "the log does not say which batches a step took", folder=str(log.folder.root), step=record["step"]
            )
        stretch.rows.append((record["step"], *record["batches"]))


def rebuild(state: dict[str, Any], partition: Partition | None = None) -> Schedule:
    """Return the schedule of a logged state, checked against the state's own fingerprint and position.

    Raises:
        RunLogError: the state contradicts itself.
    """
    from holdfast.stream.state import CheckpointState

    stored = CheckpointState.from_json(state)
    schedule = stored.rebuild(partition)
    if schedule.planned_order.fingerprint() != stored.fingerprint:
        raise RunLogError("the logged order does not match its fingerprint", fingerprint=stored.fingerprint)
    if schedule.delivered_before(stored.step) != stored.position:
        raise RunLogError("the logged position does not match the schedule", step=stored.step)
    return schedule


def sources_of(stretches: Sequence[Stretch]) -> dict[str, str]:
    """Return the fingerprint of every source; raise if the data changed during the run."""
    from holdfast.stream.state import CheckpointState

    found: dict[str, str] = {}
    for stretch in stretches:
        for name, fingerprint in CheckpointState.from_json(stretch.state).sources.items():
            if found.setdefault(name, fingerprint) != fingerprint:
                raise RunLogError(
                    "the run read different data under the same name", source=name, step=int(stretch.steps[0])
                )
    return found
