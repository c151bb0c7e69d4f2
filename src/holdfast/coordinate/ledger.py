"""A job's own record, in a folder that all workers share: what ended, with its result, even if the store is lost.

The model: a job goes through generations, one per store that it begins on. Each has a folder in which every accepted
commit becomes a file *before* its worker learns that it counts. Beginning a new generation renames the last one's
folder, which is atomic: a worker of the old store that is still alive (a zombie) finds no folder for its commit, and is
refused. So the folders hold exactly what was committed, each chunk once.

One file per commit would be too many: every ``interval`` seconds a worker appends its commits to its journal and
removes their files. A file is removed after the journal is on disk, so a chunk may be in both for a while, with the
same record.

Damage can be distinguished from what a crash leaves behind: each journal has its check, each generation knows the
number and digest of all records before it, and a commit's own file is never truncated. Damaged records are refused,
never skipped.

The folder must be on a file system where ``rename`` is atomic for all workers: local disks, NFS, Lustre, GPFS.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.coordinate.ends import Ends
from holdfast.coordinate.generation import BASE, Base, Generation, commit_name, newest_ends, read_base, read_generation
from holdfast.coordinate.home import Home
from holdfast.coordinate.job import JOB, LeasedJob
from holdfast.coordinate.job_files import damaged, read_json, sync_folder, told, write
from holdfast.coordinate.journal import Journal
from holdfast.coordinate.progress import Run, runs_of
from holdfast.coordinate.protocol import READ_AT_ONCE
from holdfast.coordinate.records import Dead, Done, is_final, to_line
from holdfast.errors import CoordinationError, SupersededError
from holdfast.versioned import Count, Format

__all__ = ["Ledger"]

_log = logging.getLogger(__name__)

# Maximum number of one worker's commits that are separate files at any time.
MAX_LOOSE = 512
_GENERATION = re.compile(r"generation-(\d{6})(\.sealed)?")


@dataclass(frozen=True, slots=True)
class _Retry:
    """Dead letters to be retried after a generation."""

    chunks: list[Count]


_RETRY = Format("retry of dead letters", _Retry, error=CoordinationError, version_error=CoordinationError)


class Ledger:
    """The folder of one job.

    Args:
        folder: the folder, shared by all workers; created if missing.
        owner: a unique id of this worker process.
        interval: seconds between appends to the journal.
    """

    def __init__(self, folder: str | Path, *, owner: str, interval: float = 30.0) -> None:
        self.folder = Path(folder)
        self._home = Home()
        self._owner = owner
        self._interval = interval
        self._open: Path | None = None
        self._journal: Journal | None = None
        self._loose: list[tuple[Path, str]] = []
        self._appended = time.monotonic()
        self._lock = threading.Lock()
        with told("cannot create the job's folder", folder):
            (self.folder / ".tmp").mkdir(parents=True, exist_ok=True)

    # --- the definition --------------------------------------------------------------------------------------------

    def definition(self) -> LeasedJob | None:
        """Return the folder's job; None for a new folder."""
        path = self.folder / "job.json"
        if path.exists():
            return JOB.from_json(read_json(path)).definition
        if self._last()[0]:
            raise damaged("it is missing", path)  # it is written before the first generation begins
        return None

    def define(self, job: LeasedJob) -> LeasedJob:
        """Write the definition unless another worker has; return the one that is there."""
        temporary = self._temporary("job")
        with told("cannot write the job to its folder", self.folder):
            write(temporary, json.dumps(JOB.to_json(job.record()), indent=1))
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self.folder / "job.json")  # unlike a rename, it never replaces a file
            temporary.unlink()
        stored = self.definition()
        assert stored is not None
        return stored

    # --- generations -----------------------------------------------------------------------------------------------

    def begin(self, mark: str | None = None) -> Generation:
        """Seal the last generation and begin the next, under a unique mark."""
        mark = uuid.uuid4().hex if mark is None else mark
        while True:
            number, is_open = self._last()
            if is_open:
                self.seal(number)
            ends, records = self._read()
            base = Base(number + 1, mark, runs_of(sorted(ends.entries)), records)
            with told("cannot begin a generation in the job's folder", self.folder):
                if not self._publish(base):
                    continue
            dead = sum(isinstance(entry, Dead) for entry in ends.entries.values())
            return Generation(base.generation, base.mark, base.finished, dead)

    def _publish(self, base: Base) -> bool:
        """Create a generation's folder; return whether no other worker was faster."""
        prepared = self._temporary("generation")
        prepared.mkdir()
        write(prepared / "base.json", json.dumps(BASE.to_json(base.checked())))
        mine = self._folder_of(base.generation)
        try:
            os.rename(prepared, mine)
        except OSError as error:
            shutil.rmtree(prepared)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            return False
        if self._folder_of(base.generation, sealed=True).exists():
            shutil.rmtree(mine, ignore_errors=True)  # others were two steps ahead; nobody knows of ours
            return False
        sync_folder(self.folder)
        return True

    def enter(self, generation: int, mark: str) -> list[Run]:
        """Record commits in this generation from now on; return the chunks that had ended before it.

        Raises:
            SupersededError: a newer generation has begun, on another store.
        """
        path = self._folder_of(generation)
        try:
            base = read_base(path)
        except FileNotFoundError:
            raise self._superseded(generation) from None
        if base.mark != mark:
            raise self._superseded(generation)
        self._open = path
        return base.finished

    @property
    def generation(self) -> int:
        """Number of the last generation, 0 for none."""
        return self._last()[0]

    def open_mark(self) -> str | None:
        """Return the mark of the generation that accepts commits; None if there is none."""
        number, is_open = self._last()
        try:
            return read_base(self._folder_of(number)).mark if is_open else None
        except FileNotFoundError:  # sealed in the meantime
            return None

    def seal(self, generation: int) -> None:
        """End a generation: it accepts no more commits."""
        with told("cannot seal a generation of the job", self.folder):
            with contextlib.suppress(FileNotFoundError):  # another worker has sealed it
                os.rename(self._folder_of(generation), self._folder_of(generation, sealed=True))
            sync_folder(self.folder)

    def _last(self) -> tuple[int, bool]:
        """Return the number of the last generation, 0 for none, and whether it is open."""
        found = [_GENERATION.fullmatch(entry.name) for entry in os.scandir(self.folder)]
        number = max((int(match[1]) for match in found if match), default=0)
        return number, number > 0 and not self._folder_of(number, sealed=True).exists()

    def _folder_of(self, generation: int, *, sealed: bool = False) -> Path:
        return self.folder / f"generation-{generation:06d}{'.sealed' if sealed else ''}"

    def _superseded(self, generation: int) -> SupersededError:
        return SupersededError(
            "this generation of the job has ended, because the job began again on another store or "
            "`holdfast job retry` was run; it can commit nothing more",
            folder=str(self.folder),
            generation=generation,
            hint="end this process; start workers with the store that the job uses now, or with an empty one",
        )

    # --- commits ---------------------------------------------------------------------------------------------------

    def record(self, entry: Done | Dead) -> None:
        """Record a chunk's end for good, or raise ``SupersededError`` if it does not count."""
        self._home.check()
        assert self._open is not None
        line = to_line(entry.chunk, entry.encode())
        temporary = self._temporary(str(entry.chunk))
        final = self._open / commit_name(entry, line)
        with told("cannot write a commit to the job's folder", self.folder):
            write(temporary, line)
            try:
                os.rename(temporary, final)
            except FileNotFoundError:
                temporary.unlink(missing_ok=True)
                raise self._superseded(int(self._open.name[-6:])) from None
            sync_folder(self._open)
        with self._lock:
            self._loose.append((final, line))
            due = time.monotonic() - self._appended > self._interval
        if due or len(self._loose) >= MAX_LOOSE:
            self.flush()

    def is_ahead_of(self, get_many: Callable[[Sequence[str]], list[bytes | None]]) -> bool:
        """Return whether the folder has an end that the store lacks: the store accepted it first, so it has lost data.

        Args:
            get_many: reads records of the generation in the store.
        """
        assert self._open is not None
        chunks = newest_ends(self._open)
        for first in range(0, len(chunks), READ_AT_ONCE):
            records = get_many([f"chunk/{chunk}" for chunk in chunks[first : first + READ_AT_ONCE]])
            if not all(record is not None and is_final(record) for record in records):
                return True
        return False

    def flush(self) -> None:
        """Append this worker's commits to its journal and remove their files."""
        if not self._home.here:
            return  # the journal belongs to the parent process
        with self._lock:
            self._appended = time.monotonic()
            loose, self._loose = self._loose, []
            if not loose or self._open is None:
                return
            try:
                if self._journal is None:
                    self._journal = Journal(self._open, self._owner, temporary=self._temporary("check"))
                self._journal.append(line for _, line in loose)
            except FileNotFoundError:
                return  # sealed in the meantime, the files with it
            except OSError as error:
                _log.warning("cannot write the journal in %s, so its commits stay in files: %s", self._open, error)
                self._loose = loose
                return
            for path, _ in loose:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Append what is left and close the journal."""
        if not self._home.here:
            return
        self.flush()
        with self._lock:
            if self._journal is not None:
                self._journal.close()

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> dict[int, Done | Dead]:
        """Return the end of every chunk that has ended, in any generation.

        Raises:
            CoordinationError: a file of the job is damaged.
        """
        return self._read()[0].entries

    def _read(self) -> tuple[Ends, str]:
        """Return the chunks that have ended, and the digest of all records, including those to be retried."""
        ends, records, again = Ends(), "", self.folder / "no retry"
        for name in sorted(entry.name for entry in os.scandir(self.folder) if _GENERATION.fullmatch(entry.name)):
            records = ends.digest()
            self._forget(again, ends)
            read_generation(self.folder / name, ends, before=records)
            again = self.folder / f"retry-{name.removesuffix('.sealed')[-6:]}.json"
        records = ends.digest()
        self._forget(again, ends)
        return ends, records

    def _forget(self, again: Path, ends: Ends) -> None:
        if again.exists():
            ends.forget_dead(_RETRY.from_json(read_json(again)).chunks)

    def retry(self, chunks: Collection[int] | None = None) -> list[int]:
        """Let the next workers retry chunks that were given up, all of them by default; return which.

        This ends the current generation: commits of workers that still run are refused, and the next workers begin a
        new one.
        """
        dead = {chunk for chunk, entry in self.read().items() if isinstance(entry, Dead)}
        if not dead.intersection(dead if chunks is None else chunks):
            return []
        number, is_open = self._last()
        if is_open:
            self.seal(number)
        dead = {chunk for chunk, entry in self.read().items() if isinstance(entry, Dead)}
        chosen = sorted(dead if chunks is None else dead & set(chunks))
        if chosen:
            path = self.folder / f"retry-{number:06d}.json"
            before = _RETRY.from_json(read_json(path)).chunks if path.exists() else []
            temporary = self._temporary("retry")
            with told("cannot write a retry to the job's folder", self.folder):
                write(temporary, json.dumps(_RETRY.to_json(_Retry(sorted({*before, *chosen})))))
                os.rename(temporary, path)
        return chosen

    def _temporary(self, what: str) -> Path:
        return self.folder / ".tmp" / f"{what}-{self._owner}-{uuid.uuid4().hex[:8]}"
