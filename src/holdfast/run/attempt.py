"""One start of a run: the folder locked, the log opened, the newest good checkpoint restored."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import RunFolderError, RunMismatchError, StateMismatchError, UnusableCheckpointError
from holdfast.run.buckets import Origin, Stopwatch
from holdfast.run.checkpoints import Checkpoints, Found
from holdfast.run.compact import Compaction
from holdfast.run.cure import abandoned_name, cures_for, unfinished
from holdfast.run.environment import describe_environment
from holdfast.run.history import History
from holdfast.run.identity import Identity
from holdfast.run.layout import RunFolder
from holdfast.run.lock import FolderLock
from holdfast.run.options import RunOptions
from holdfast.run.ranks import Ranks
from holdfast.run.recorder import Recorder
from holdfast.run.snapshot import Components

__all__ = ["REMEMBERED", "Attempt", "begin", "open_attempt", "restore_checkpoint"]

REMEMBERED = frozenset(("start", "checkpoint", "rollback", "rolled_back", "alert"))
"""Events that determine how a run continues."""


@dataclass(slots=True)
class Attempt:
    """The open resources of an attempt, and its progress.

    Attributes:
        ranks: the processes of the run.
        identity: which run this is.
        number: the number of this attempt, from 1.
        recorder: this rank's log.
        stopwatch: measures where the time goes.
        checkpoints: saves and finds checkpoints.
        history: what earlier attempts recorded.
        step: steps done.
        batch: batches taken for them.
        reached: one more than the highest step any attempt has done; steps below are redone.
        discard: batches that a rollback skips, if the loader cannot skip them itself.
        passing: whether a pass over the data is under way.
        saved_step: the step of the last checkpoint.
        saved_at: when its save began.
    """

    ranks: Ranks
    identity: Identity
    number: int
    recorder: Recorder
    stopwatch: Stopwatch
    checkpoints: Checkpoints
    compaction: Compaction
    history: History
    began: float
    lock: FolderLock | None
    step: int = 0
    batch: int = 0
    reached: int = 0
    discard: set[int] = field(default_factory=set)
    passing: bool = False
    saved_step: int = -1
    saved_at: float = field(default_factory=time.monotonic)

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event, with the time spent since the previous record."""
        spent, at = self.stopwatch.take()
        self.note(kind, **fields, **spent, at=at)

    def note(self, kind: str, **fields: Any) -> None:
        """Write an event without its times; threads other than the loop's must use this."""
        record = {"event": kind, **fields}
        self.recorder.write(record)
        if kind in REMEMBERED:
            self.history.events.append(record)

    def close(self) -> None:
        """Close the log and release the folder."""
        self.compaction.stop()
        self.recorder.close()
        if self.lock is not None:
            self.lock.release()
            self.lock = None


def begin(
    folder: RunFolder, components: Components, options: RunOptions, *, fresh: bool, config: Mapping[str, Any]
) -> Attempt:
    """Start an attempt: lock the folder, check that it belongs to this run, open the log, restore. All ranks call it.

    Raises:
        RunLockedError: another process is running here.
        RunMismatchError: the folder belongs to another run, other data or another model.
        RunFolderError: the folder holds checkpoints, but none that a run can continue from.
    """
    attempt, down = open_attempt(folder, components, options, fresh=fresh, config=config)
    try:
        _restore(attempt, components, down)
    except BaseException:
        attempt.close()
        raise
    attempt.compaction.start(before=attempt.recorder.file)
    return attempt


def open_attempt(
    folder: RunFolder, components: Components, options: RunOptions, *, fresh: bool, config: Mapping[str, Any]
) -> tuple[Attempt, float]:
    """Start an attempt without restoring, for callers that restore by themselves. All ranks call it.

    Returns:
        The attempt, and for how many seconds the run was down before it.

    Raises:
        RunLockedError: another process is running here.
        RunMismatchError: the folder belongs to another run, other data or another model.
    """
    ranks = Ranks.joined()
    locks: list[FolderLock] = []
    ranks.first(lambda: locks.append(FolderLock(folder.lock)))
    try:
        return _open(folder, components, options, ranks, locks, fresh=fresh, config=config)
    except BaseException:
        for lock in locks:
            lock.release()
        raise


def _open(
    folder: RunFolder,
    components: Components,
    options: RunOptions,
    ranks: Ranks,
    locks: list[FolderLock],
    *,
    fresh: bool,
    config: Mapping[str, Any],
) -> tuple[Attempt, float]:
    identity = ranks.first(lambda: _identify(folder, components, fresh=fresh))
    histories = ranks.each(lambda: _outline(History.read(folder, rank=ranks.rank)))
    history = histories[ranks.rank]
    history.events = list(histories[0].events)  # decisions are the same for all ranks
    number = 1 + max(each.attempts for each in histories)
    origin, down = _origin(history)
    stopwatch = Stopwatch(origin.monotonic, stall_after=options.stall_after)
    header = {
        "run": identity.run,
        "world_size": ranks.world,
        "time": origin.time,
        "monotonic": origin.monotonic,
        "boot": origin.boot,
        "pid": os.getpid(),
    }
    if ranks.is_first:
        header |= {
            "ranks_before": _heads(folder, histories),
            "config": dict(config),
            "environment": describe_environment(),
        }
    recorder = Recorder(folder, rank=ranks.rank, attempt=number, header=header, head=history.head)
    stopwatch.lap("startup")
    attempt = Attempt(
        ranks=ranks,
        identity=identity,
        number=number,
        recorder=recorder,
        stopwatch=stopwatch,
        checkpoints=Checkpoints(folder, ranks, run_id=identity.run, keep=options.keep),
        compaction=Compaction(folder, rank=ranks.rank, min_bytes=options.compact_bytes),
        history=history,
        began=origin.monotonic,
        lock=locks[0] if locks else None,
        reached=max(each.reached for each in histories),
    )
    return attempt, down


def _identify(folder: RunFolder, components: Components, *, fresh: bool) -> Identity:
    current = Identity.new(components.model, components.loader)
    if fresh:
        _move_aside(folder)
    known = Identity.read(folder)
    if known is None:
        current.write(folder)
        return current
    known.refuse_others(current, folder)
    return known


def _move_aside(folder: RunFolder) -> None:
    """Move the run that is there to a separate folder; nothing is deleted."""
    entries = [folder.identity, folder.logs, folder.checkpoints, folder.abandoned, folder.stalls, folder.progress]
    entries += [folder.investigations, folder.paused]
    present = [path for path in entries if path.exists()]
    if not present:
        return
    place = folder.earlier / f"{time.strftime('%Y%m%d-%H%M%S')}-{len(list(folder.earlier.glob('*')))}"
    place.mkdir(parents=True)
    # The identity last: after a crash in between, the folder still says which run it belongs to.
    for path in (*[path for path in present if path != folder.identity], folder.identity):
        if path.exists():
            os.replace(path, place / path.name)


def _outline(history: History) -> History:
    """Return the history with its decisions only, to send to every rank."""
    history.events = [event for event in history.events if event["event"] in REMEMBERED]
    return history


def _heads(folder: RunFolder, histories: list[History]) -> dict[str, str]:
    """Return the digest at the end of every rank's log before this attempt, including ranks of larger attempts."""
    heads = {str(rank): history.head for rank, history in enumerate(histories) if history.attempts}
    gone = {file.rank for file in folder.log_files()} - set(range(len(histories)))
    return heads | {str(rank): History.read(folder, rank=rank).head for rank in sorted(gone)}


def _origin(history: History) -> tuple[Origin, float]:
    """Return when this attempt began, and for how long the run was down before it."""
    if history.origin is None:
        return Origin.of_process(), 0.0
    ended = history.origin.monotonic + history.elapsed
    same_boot = Origin.of_process().boot == history.origin.boot
    origin = Origin.of_process(not_before=ended if same_boot else float("-inf"))
    return origin, origin.seconds_since(history.origin, history.elapsed)


def _restore(attempt: Attempt, components: Components, down: float) -> None:
    decided = unfinished(attempt.history.events)
    if decided is not None:
        attempt.checkpoints.abandon(after=decided["to"], name=abandoned_name(decided))
    try:
        found = attempt.checkpoints.newest()
    except UnusableCheckpointError as error:
        raise RunFolderError(
            f"the folder holds checkpoints, but {error.message}",
            hint="restore one from a backup, or pass fresh=True to start over at step 0",
        ) from error
    notes = attempt.ranks.doubts
    if found is None and attempt.ranks.is_first and attempt.history.saved >= 0:
        notes += (
            f"a checkpoint was saved at step {attempt.history.saved}, but none is left: the run starts over at step 0",
        )
    for doubt in notes:
        warnings.warn(doubt, RuntimeWarning, stacklevel=2)
    if found is not None:
        notes += restore_checkpoint(attempt, components, found)
        for cure in cures_for(attempt.history.events, found.step):
            cure.apply(components, attempt.discard)
    attempt.stopwatch.lap("restore")
    attempt.event(
        "start",
        step=attempt.step,
        batch=attempt.batch,
        checkpoint=None if found is None else found.path.name,
        passed_over=[list(entry) for entry in found.passed_over] if found is not None else [],
        notes=list(notes),
        down_time=down,
    )


def restore_checkpoint(attempt: Attempt, components: Components, found: Found) -> tuple[str, ...]:
    """Restore everything from a checkpoint; return what could not be restored exactly."""
    try:
        restored = components.restore(found.path, attempt.ranks)
    except StateMismatchError as error:
        raise RunMismatchError(
            f"the run's data has changed: {error.message}",
            folder=str(found.path.parent.parent),
            hint="restore the data and options of the run, or choose another folder",
        ) from error
    position = restored.position
    attempt.step, attempt.batch = position["step"], position["batch"]
    attempt.reached = max(attempt.reached, position["reached"])
    attempt.discard = set(position["discard"])
    attempt.passing = position.get("passing", False)
    attempt.saved_step = found.step
    return restored.notes
