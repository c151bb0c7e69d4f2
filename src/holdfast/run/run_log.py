"""The reading end of the run log: all attempts of all ranks, with rollbacks and restarts applied and the chain checked.

Reading needs neither torch nor a lock: a log can be read while it is being written. A line that a crash left unfinished
is not part of the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.errors import RunFolderError, RunLogError
from holdfast.foreign import parse_json, read_plain
from holdfast.run.buckets import Goodput, goodput_of
from holdfast.run.chain import START, link, split_line
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run_files import CompactedFile, read_log_lines
from holdfast.run_records import Record, parse_record

__all__ = ["ChainFault", "Record", "RunLog", "parsed", "read_lines"]


@dataclass(frozen=True, slots=True)
class ChainFault:
    """A place at which the log differs from what was written."""

    file: str
    line: int
    reason: str


def read_lines(file: LogFile) -> list[bytes]:
    """Return the complete lines of a log file, compacted or not; anything after the last line break is left out."""
    try:
        return read_log_lines(file.path, within=file.folder)
    except RunLogError:
        if not file.is_compacted and not file.path.exists():
            compacted = LogFile(file.rank, file.attempt, file.part, file.path.with_suffix(".parquet"))
            if compacted.path.exists():
                return read_lines(compacted)  # compacted since the folder was listed
        raise


def parsed(file: LogFile, number: int, line: bytes) -> Record:
    """Return the record of one line of a file, checked; lines are numbered from 1.

    Raises:
        RunLogError: it is not a record of a run log.
    """
    return parse_record(line, file=str(file.path), number=number)


class RunLog:
    """The log of one run.

    Args:
        folder: the run's folder.

    Raises:
        RunFolderError: it is not the folder of a run.

    Example:
        >>> log = RunLog("runs/exp7")                    # doctest: +SKIP
        >>> [record["loss"] for record in log.steps()]   # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = RunFolder(Path(folder))
        if not self.folder.identity.is_file():
            raise RunFolderError(
                "this is not a run folder", folder=str(folder), hint="pass the folder given to Run(...)"
            )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What ``run.json`` says: the run's name and number, its data and its model."""
        try:
            value = parse_json(read_plain(self.folder.identity, within=self.folder.root))
        except (OSError, ValueError) as error:
            raise RunFolderError("run.json cannot be read", file=str(self.folder.identity)) from error
        if not isinstance(value, dict):
            raise RunFolderError("run.json is not an object", file=str(self.folder.identity))
        return value

    @property
    def ranks(self) -> list[int]:
        """Every rank that has written to the log, in order."""
        return sorted({file.rank for file in self.folder.log_files()})

    @property
    def attempts(self) -> list[int]:
        """Every attempt, in order."""
        return sorted({file.attempt for file in self.folder.log_files()})

    def records(self, rank: int = 0, *, attempt: int | None = None) -> Iterator[Record]:
        """Yield every record of a rank as it was written, including headers, from the first attempt on."""
        for file in self.folder.log_files(rank=rank):
            if attempt is None or file.attempt == attempt:
                for number, line in enumerate(read_lines(file), start=1):
                    yield parsed(file, number, line)

    def header(self, *, rank: int = 0, attempt: int | None = None) -> Record:
        """Return the first line of an attempt (default: the last): configuration, environment, world size."""
        found = [f for f in self.folder.log_files(rank=rank) if attempt in (None, f.attempt) and f.part == 0]
        for file in reversed(found):
            lines = read_lines(file)
            if lines:
                return parsed(file, 1, lines[0])
        raise RunLogError("the run log has no such attempt", attempt=attempt, rank=rank, folder=str(self.folder.root))

    def events(self, kind: str | None = None, *, rank: int = 0) -> list[Record]:
        """Return the events of a rank (``checkpoint``, ``finding``, ``rollback`` …), all or of one kind."""
        return [r for r in self.records(rank) if "event" in r and (kind is None or r["event"] == kind)]

    def steps(self, rank: int = 0) -> list[Record]:
        """Return the record of every step that counts, in order.

        Steps that were redone after a restart or a rollback appear once, as they were last done.
        """
        kept: dict[int, Record] = {}
        for record in self.records(rank):
            branch = branch_step(record)
            if branch is not None:
                for step in [step for step in kept if step >= branch]:
                    del kept[step]
            elif is_step(record):
                kept[record["step"]] = record
        return [kept[step] for step in sorted(kept)]

    def goodput(self, rank: int = 0) -> Goodput:
        """Return where the run's time went, over all attempts."""
        return goodput_of(self.records(rank))

    def verify(self) -> list[ChainFault]:
        """Check the chain of every rank; return every place at which the log differs from what was written.

        A checkpoint is saved after the records of its steps are on disk: one that is newer than the log shows that the
        end of the log was cut off.
        """
        faults: list[ChainFault] = []
        ends: dict[tuple[int, int], str] = {}
        for rank in self.ranks:
            faults += _check_rank(self.folder.log_files(rank=rank), ends)
        if not faults:  # only an unchanged log can be used to check what is missing
            for file in self.folder.log_files(rank=0):
                faults += _check_attempt(file, ends)
            faults += self._check_reach()
        return faults

    def _check_reach(self) -> Iterator[ChainFault]:
        """Find checkpoints that are newer than the log before them: on disk, or used by an attempt to continue."""
        reached, number, file = 0, 0, None
        for file in self.folder.log_files(rank=0):
            for number, line in enumerate(read_lines(file), start=1):
                record = parsed(file, number, line)
                if is_step(record):
                    reached = max(reached, record["step"] + 1)
                elif record.get("event") == "start" and record["step"] > reached:
                    reason = f"it continues at step {record['step']}, but the log before it ends at step {reached}"
                    yield ChainFault(file.path.name, number, f"{reason}: its end was cut off")
                    return
        saved = max(self.folder.checkpoint_steps(), default=0)
        if file is None and saved:
            yield ChainFault(self.folder.logs.name, 0, f"no log of rank 0 beside the checkpoint of step {saved}")
        elif file is not None and saved > reached:
            reason = f"the checkpoint of step {saved} is newer than the log: its end was cut off"
            yield ChainFault(file.path.name, number, reason)


def is_step(record: Record) -> bool:
    """Return whether the record is a step."""
    return "event" not in record and "step" in record


def branch_step(record: Record) -> int | None:
    """Return the step from which on earlier records no longer count, if this record starts a new branch."""
    return record["step"] if record.get("event") in ("start", "rolled_back") else None


def _check_rank(files: list[LogFile], ends: dict[tuple[int, int], str]) -> Iterator[ChainFault]:
    """Check one rank's files; store the digest that each attempt ended with in ``ends``."""
    head = START
    for file in files:
        lines = read_lines(file)
        for number, line in enumerate(lines, start=1):
            parts = split_line(line)
            if parts is None:
                yield ChainFault(file.path.name, number, "the line has no digest")
                return
            body, digest = parts
            if number == 1:
                header = _header(line)
                if header.get("previous") != head:
                    yield ChainFault(file.path.name, 1, "it does not follow the file before it: one is missing or cut")
                    return
                if [header.get(name) for name in ("attempt", "rank", "part")] != [file.attempt, file.rank, file.part]:
                    yield ChainFault(file.path.name, 1, "the file was renamed: its header names another file")
                    return
            if link(head, body) != digest:
                yield ChainFault(file.path.name, number, "the line, or one before it, was changed")
                return
            head = digest
        if file.is_compacted and not _columns_hold(file, lines):
            yield ChainFault(file.path.name, 1, "the columns of the compacted file do not match its lines")
            return
        ends[file.rank, file.attempt] = head


def _columns_hold(file: LogFile, lines: list[bytes]) -> bool:
    from holdfast.run.compact import columns_of  # imported here: it imports this module

    with CompactedFile(file.path, within=file.folder) as compacted:
        return compacted.says(columns_of(file, lines))


def _header(line: bytes) -> Record:
    """Return the header in the first line of a file; empty if it cannot be read."""
    try:
        record = parse_json(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _check_attempt(file: LogFile, ends: dict[tuple[int, int], str]) -> Iterator[ChainFault]:
    """Check the digests that rank 0 recorded at the start of an attempt for the end of every rank's log before it."""
    lines = read_lines(file)
    if file.part or not lines:
        return
    noted = parsed(file, 1, lines[0]).get("ranks_before") or {}
    for name, head in noted.items():
        rank = int(name)
        attempts = [attempt for known, attempt in ends if known == rank and attempt < file.attempt]
        if not attempts:
            yield ChainFault(file.path.name, 1, f"the log of rank {rank} before this attempt is missing")
        elif ends[rank, max(attempts)] != head:
            yield ChainFault(file.path.name, 1, f"the log of rank {rank} before this attempt was cut or replaced")
