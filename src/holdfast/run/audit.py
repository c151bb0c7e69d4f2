"""Audit: at which steps a run saw given samples, or that it never did, as a statement that anyone can recompute.

The order is inverted, so a query needs arithmetic but no search. What the answer is based on is checked first: the
chain of the log, that no checkpoint contains steps the log lacks, and the fingerprints of the data if it is available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import OrderError, RunLogError
from holdfast.run.chain import split_line
from holdfast.run.layout import LogFile, checkpoint_step
from holdfast.run.run_log import RunLog, parsed, read_lines
from holdfast.run.stretches import Stretch, check_stretches, counted_steps, read_stretches, rebuild, sources_of
from holdfast.versioned import Between, Format

if TYPE_CHECKING:
    from holdfast.order import Partition, Schedule

__all__ = ["Audit", "Sightings", "audit", "check_statement"]

Int64 = NDArray[np.int64]
MAX_INDEX = 2**63 - 1
"""The largest index a sample can have."""
COLUMNS = ("index", "step", "batch", "epoch", "rank", "slot", "position", "counted", "masked")
ENDINGS = frozenset(("end", "preempted", "time_up", "stopped"))
"""Events that end a complete log."""


class Sightings(NamedTuple):
    """Every time samples of one source were trained on, one row each, sorted by index and then by time.

    ``counted`` is False for steps that were redone after a restart or a rollback; ``masked`` is True where the sample
    was in its batch, but marked as invalid.
    """

    index: Int64  # type: ignore[assignment]  # a sample's index, as everywhere; tuple.index is not used
    step: Int64
    batch: Int64
    epoch: Int64
    rank: Int64
    slot: Int64
    position: Int64
    counted: NDArray[np.bool_]
    masked: NDArray[np.bool_]

    def rows(self) -> list[list[Any]]:
        """Return the rows as plain values."""
        return [list(row) for row in zip(*(column.tolist() for column in self), strict=True)]


@dataclass(frozen=True, slots=True)
class Audit:
    """The times at which a run saw given samples.

    Attributes:
        run: the id of the run.
        heads: the digest at the end of every rank's log.
        ended: whether the log ends with an end event; otherwise the run may have continued.
        steps: how many steps count.
        data: source → fingerprint.
        data_checked: whether the data itself was available and had these fingerprints.
        asked: source → the indices in question.
        seen: source → every time one of them was trained on.
        stretches: the stretches of the run that it was computed from.
    """

    run: str
    heads: dict[str, str]
    ended: bool
    steps: int
    data: dict[str, str]
    data_checked: bool
    asked: dict[str, list[int]]
    seen: dict[str, Sightings]
    stretches: tuple[Stretch, ...]

    @property
    def never_seen(self) -> dict[str, list[int]]:
        """Source → indices that no step of the run, counted or not, received."""
        return {
            source: np.setdiff1d(np.array(indices, dtype=np.int64), self.seen[source].index).tolist()
            for source, indices in self.asked.items()
        }

    def to_json(self) -> dict[str, Any]:
        """Return the statement: the answer and everything needed to recompute it."""
        statement = _Statement(
            run=self.run,
            heads=self.heads,
            ended=self.ended,
            steps=self.steps,
            data=self.data,
            data_checked=self.data_checked,
            stretches=[stretch.to_json() for stretch in self.stretches],
            columns=list(COLUMNS),
            asked=self.asked,
            seen={source: sightings.rows() for source, sightings in self.seen.items()},
        )
        return STATEMENT.to_json(statement)


@dataclass(frozen=True, slots=True)
class _Statement:
    run: str
    heads: dict[str, str]
    ended: bool
    steps: int
    data: dict[str, str]
    data_checked: bool
    stretches: list[dict[str, Any]]
    columns: list[str]
    asked: dict[str, list[Annotated[int, Between(0, MAX_INDEX)]]]
    seen: dict[str, list[list[Any]]]


STATEMENT = Format("audit statement", _Statement, error=RunLogError, version_error=RunLogError)


def audit(
    folder: str | Path,
    samples: Mapping[str, Sequence[int]],
    *,
    loader: Any = None,
    head: str | None = None,
    unfinished: bool = False,
) -> Audit:
    """Find the steps at which a run saw given samples.

    Args:
        folder: the run's folder.
        samples: source → indices.
        loader: the run's loader, created again: its data must have the recorded fingerprints. Needed if the partition
            uses labels or keys.
        head: a digest that rank 0's log must contain, from an earlier statement or kept elsewhere.
        unfinished: accept a log without an end event, from a run that is still running or was killed.

    Raises:
        RunLogError: the log was edited, truncated or reordered, an attempt is missing, or it was made with other data.
        OrderError: there is no such source or sample.
    """
    log = RunLog(folder)
    heads = _check_chain(log, head)
    ended = _check_end(log, unfinished=unfinished)
    stretches = read_stretches(log)
    if not stretches:
        raise RunLogError("the log holds no steps", folder=str(folder))
    check_stretches(stretches)
    _check_checkpoints(log, stretches)
    data = sources_of(stretches)
    if loader is not None:
        _check_data(loader, data)
    partition = None if loader is None else loader.config.partition_strategy
    schedules = [rebuild(stretch.state, partition) for stretch in stretches]
    asked = {source: sorted({int(index) for index in indices}) for source, indices in samples.items()}
    for source, indices in asked.items():
        if indices and not (indices[0] >= 0 and indices[-1] <= MAX_INDEX):
            wrong = indices[0] if indices[0] < 0 else indices[-1]
            raise OrderError("there is no such sample", source=source, index=wrong)
    return Audit(
        run=str(log.identity.get("run")),
        heads=heads,
        ended=ended,
        steps=counted_steps(stretches),
        data=data,
        data_checked=loader is not None,
        asked=asked,
        seen={source: _sightings(stretches, schedules, source, indices) for source, indices in asked.items()},
        stretches=tuple(stretches),
    )


def check_statement(value: Any, *, partition: Partition | None = None) -> None:
    """Recompute a statement's answer from the order it contains, and compare.

    Only the log can show that the order is the run's, and that ``ended`` and ``data_checked`` are true: audit the log
    with one of the statement's ``heads``.

    Raises:
        RunLogError: it is not a statement, or its answer does not follow from its order.
    """
    statement = STATEMENT.from_json(value)
    stretches = [Stretch.from_json(each) for each in statement.stretches]
    check_stretches(stretches)
    schedules = [rebuild(stretch.state, partition) for stretch in stretches]
    if counted_steps(stretches) != statement.steps:
        raise RunLogError("the steps of the statement do not match its stretches", steps=statement.steps)
    if sources_of(stretches) != statement.data:
        raise RunLogError("the data of the statement does not match its stretches")
    if sorted(statement.seen) != sorted(statement.asked) or statement.columns != list(COLUMNS):
        raise RunLogError("the statement does not answer what was asked")
    for source, indices in statement.asked.items():
        if _sightings(stretches, schedules, source, indices).rows() != statement.seen[source]:
            raise RunLogError("the statement does not follow from its order", source=source)


# --- what the answer is based on -----------------------------------------------------------------------------------


def _check_chain(log: RunLog, head: str | None) -> dict[str, str]:
    faults = log.verify()
    if faults:
        first = faults[0]
        raise RunLogError(
            f"the log was changed: {first.reason}",
            file=first.file,
            line=first.line,
            faults=len(faults),
            hint="restore the log from a backup; this one proves nothing",
        )
    files = log.folder.log_files()
    if not log.attempts:
        raise RunLogError("the run has no log of rank 0", folder=str(log.folder.root))
    run = log.identity.get("run")
    for file in files:
        lines = read_lines(file)
        if not lines:
            raise RunLogError("a file of the log is empty", file=str(file.path))
    for number, rank in enumerate(log.ranks):
        header = log.header(rank=rank)
        if header.get("run") != run or number != rank:
            raise RunLogError("the log belongs to another run, or the log of a rank is missing", rank=rank, run=run)
    _check_attempts(files)
    digests = {str(rank): _digests(log, rank) for rank in log.ranks}
    if head is not None and head not in digests["0"]:
        raise RunLogError("the log does not contain the required digest", head=head)
    return {rank: each[-1] for rank, each in digests.items()}


def _digests(log: RunLog, rank: int) -> list[str]:
    found = (split_line(line) for file in log.folder.log_files(rank=rank) for line in read_lines(file))
    return [parts[1] for parts in found if parts is not None]


def _check_attempts(files: Sequence[LogFile]) -> None:
    attempts = sorted({file.attempt for file in files if file.rank == 0})
    if attempts != list(range(1, len(attempts) + 1)):
        raise RunLogError("attempts are missing from the log", attempts=attempts)


def _check_end(log: RunLog, *, unfinished: bool) -> bool:
    """Return whether the last attempt has an end event on every rank; raise if it does not, unless ``unfinished``."""
    last = log.attempts[-1]
    ended = all(_has_ended(log, rank, last) for rank in range(int(log.header(attempt=last).get("world_size", 1))))
    if not ended and not unfinished:
        raise RunLogError(
            "the log does not have an end event on every rank: the run is still running, was killed, or the log "
            "was truncated",
            folder=str(log.folder.root),
            hint="pass --unfinished for a statement about the recorded steps",
        )
    return ended


def _has_ended(log: RunLog, rank: int, attempt: int) -> bool:
    files = log.folder.log_files(rank=rank)
    if not files or files[-1].attempt != attempt:
        return False
    lines = read_lines(files[-1])
    return parsed(files[-1], len(lines), lines[-1]).get("event") in ENDINGS


def _check_checkpoints(log: RunLog, stretches: Sequence[Stretch]) -> None:
    """Raise if the log lacks steps that a checkpoint contains: their records were on disk before it was saved."""
    reached = max(int(stretch.steps.max()) for stretch in stretches) + 1
    abandoned = log.folder.abandoned.glob("*/step-*") if log.folder.abandoned.is_dir() else ()
    for path in (*log.folder.checkpoint_steps().values(), *abandoned):
        step = checkpoint_step(path)
        if step is not None and step > reached:
            raise RunLogError(
                "a checkpoint is newer than the log: steps are missing from the log", checkpoint=path.name
            )


def _check_data(loader: Any, recorded: Mapping[str, str]) -> None:
    found = dict(loader.get_checkpoint().sources)
    for name in sorted({*found, *recorded}):
        if found.get(name) != recorded.get(name):
            raise RunLogError(
                "the data is not what the run read",
                source=name,
                fingerprint=found.get(name),
                expected=recorded.get(name),
                hint="open the data as the run's program did",
            )


# --- the answer ----------------------------------------------------------------------------------------------------


def _sightings(
    stretches: Sequence[Stretch], schedules: Sequence[Schedule], source: str, indices: Sequence[int]
) -> Sightings:
    wanted = np.array(indices, dtype=np.int64)
    found = [
        part
        for stretch, schedule in zip(stretches, schedules, strict=True)
        for part in _in_stretch(stretch, schedule, source, wanted)
    ]
    if not found:
        return Sightings(*(np.empty(0, dtype=bool if c in ("counted", "masked") else np.int64) for c in COLUMNS))
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    stretch_number = np.repeat(np.arange(len(found)), [len(part.index) for part in found])
    order = np.lexsort((columns[2], stretch_number, columns[0]))
    return Sightings(*(column[order] for column in columns))


def _in_stretch(stretch: Stretch, schedule: Schedule, source: str, wanted: Int64) -> list[Sightings]:
    from holdfast.stream.provenance import epochs_begun

    order = schedule.order
    cycle = order.cycles[order.number_of(source)]
    epochs = epochs_begun(schedule, source, stretch.stop_batch)
    length = max(cycle.epoch_length(epoch) for epoch in range(epochs))
    if len(wanted) and not (wanted[0] >= 0 and wanted[-1] < length):
        wrong = int(wanted[0] if wanted[0] < 0 else wanted[-1])
        raise OrderError("there is no such sample", source=source, index=wrong, length=length)
    found = []
    for epoch in range(epochs):
        inside = wanted[wanted < cycle.epoch_length(epoch)]
        position = np.asarray(order.position_of(source, epoch, inside))
        inside, position = inside[position >= 0], position[position >= 0]
        batch, rank, slot = schedule.assigned(position)
        step = stretch.steps_of(np.asarray(batch))
        kept = step >= 0
        columns = [np.asarray(c)[kept] for c in (inside, step, batch, rank, slot, position)]
        index, step, batch, rank, slot, position = columns
        masked = _masked(schedule, batch, position)
        epochs_column = np.full(len(index), epoch, dtype=np.int64)
        found.append(Sightings(index, step, batch, epochs_column, rank, slot, position, stretch.counted(step), masked))
    return found


def _masked(schedule: Schedule, batch: Int64, position: Int64) -> NDArray[np.bool_]:
    masked = np.zeros(len(position), dtype=bool)
    if schedule.masks and len(position):
        located = schedule.order.locate(position)
        for mask in schedule.masks:
            masked |= (batch >= mask.from_step) & mask.covers(schedule.order, position, located)
    return masked
