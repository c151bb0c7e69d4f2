"""The locations and names of a run's files.

::

    runs/exp7/
      run.json                                    the owner of the folder: run, data, model
      lock                                        held by the process that runs here
      log/attempt-00002.rank-00000.part-000.jsonl one file per rank and attempt (large ones are split into parts)
      log/…parquet                                the same, compacted after it was sealed
      checkpoints/step-00001000/                  ordinary torch distributed checkpoints
      abandoned/rollback-001/step-…/              checkpoints of a branch that was rolled back
      earlier/RUN/                                what ``fresh=True`` moved aside
      progress/rank-00000.json                    how far each rank is, for the watchdogs
      stalls/                                     stacks of every thread, written when a rank stalled
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import RunFolderError

__all__ = ["LogFile", "RunFolder", "checkpoint_name", "checkpoint_step", "is_run_folder"]

_LOG_NAME = re.compile(
    r"attempt-(?P<attempt>\d{5,})\.rank-(?P<rank>\d{5,})\.part-(?P<part>\d{3,})\.(?P<kind>jsonl|parquet)"
)
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """One file of the run log. The files of one rank, sorted, are that rank's log from the first step of the run."""

    rank: int
    attempt: int
    part: int
    path: Path

    @property
    def folder(self) -> Path:
        """The run's folder; links must not lead out of it."""
        return self.path.parent.parent

    @property
    def is_compacted(self) -> bool:
        """Whether it was compacted to Parquet."""
        return self.path.suffix == ".parquet"

    @classmethod
    def at(cls, folder: Path, *, rank: int, attempt: int, part: int) -> LogFile:
        """Return the file with these numbers in a folder of logs, whether it exists or not."""
        return cls(rank, attempt, part, folder / f"attempt-{attempt:05d}.rank-{rank:05d}.part-{part:03d}.jsonl")

    @classmethod
    def parse(cls, path: Path) -> LogFile | None:
        """Return what the file's name says, or None if it is not a run log."""
        match = _LOG_NAME.fullmatch(path.name)
        return None if match is None else cls(int(match["rank"]), int(match["attempt"]), int(match["part"]), path)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    root: Path

    @property
    def identity(self) -> Path:
        """The file that says which run the folder belongs to."""
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        """The file that the running process locks."""
        return self.root / "lock"

    @property
    def logs(self) -> Path:
        """The folder of the run log."""
        return self.root / "log"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.root / "checkpoints"

    @property
    def abandoned(self) -> Path:
        """The folder of checkpoints that were rolled back."""
        return self.root / "abandoned"

    @property
    def earlier(self) -> Path:
        """The folder of runs that ``fresh=True`` moved aside."""
        return self.root / "earlier"

    @property
    def progress(self) -> Path:
        """The folder in which every rank's watchdog records its progress."""
        return self.root / "progress"

    @property
    def stalls(self) -> Path:
        """The folder of stack dumps."""
        return self.root / "stalls"

    @property
    def investigations(self) -> Path:
        """The folder of the results of blame and proof."""
        return self.root / "investigations"

    @property
    def paused(self) -> Path:
        """The file that exists while the run is paused; deleting it lets the run continue."""
        return self.root / "PAUSED"

    def checkpoint(self, step: int) -> Path:
        """Return the folder of the checkpoint taken after this many steps."""
        return self.checkpoints / checkpoint_name(step)

    def checkpoint_steps(self) -> dict[int, Path]:
        """Return every checkpoint folder by its step, earliest first, without checking that it is complete."""
        if not self.checkpoints.is_dir():
            return {}
        found = ((checkpoint_step(path), path) for path in _entries(self.checkpoints))
        return dict(sorted((step, path) for step, path in found if step is not None))

    def log_files(self, *, rank: int | None = None) -> list[LogFile]:
        """Return the files of the log, sorted by rank, attempt and part; where both forms exist, the original one."""
        if not self.logs.is_dir():
            return []
        found: dict[tuple[int, int, int], LogFile] = {}
        for path in _entries(self.logs):  # "jsonl" sorts before "parquet"
            file = LogFile.parse(path)
            if file is not None and (rank is None or file.rank == rank):
                found.setdefault((file.rank, file.attempt, file.part), file)
        return sorted(found.values())


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise RunFolderError(f"a folder of the run cannot be read: {error.strerror}", folder=str(folder)) from error


def checkpoint_step(path: Path) -> int | None:
    """Return the step in a checkpoint's name; None if it is not one."""
    match = _CHECKPOINT_NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def checkpoint_name(step: int) -> str:
    """Return the name of the checkpoint taken after this many steps."""
    return f"step-{step:08d}"


def is_run_folder(path: Path) -> bool:
    """Return whether this is the folder of a run."""
    try:
        return (path / "run.json").is_file() and (path / "log").is_dir()
    except OSError:  # not accessible to this process
        return False
