"""A job's own memory, in a folder that every worker sees: what ended, with its result, whatever becomes of the store.

The model: a job goes through generations, one per store that it begins on. Each has a folder in which every accepted
commit becomes a file *before* its worker is told that it counted. Beginning a new generation renames the last one's
folder, which is atomic: a worker of the old store that is still alive (a zombie) finds no folder to put its commit
into, and is refused. So what is in the folders is exactly what was ever committed, each chunk once.

One file per commit would be many; every ``interval`` seconds a worker appends its own to its journal and removes them.
A file is removed after the journal is on disk, so a chunk may stand in both for a while, with the same record.

The folder must be on a file system where ``rename`` is atomic for all workers: local disks, NFS, Lustre, GPFS.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from holdfast.coordinate.job import JOB, LeasedJob
from holdfast.coordinate.progress import Run, runs_of
from holdfast.coordinate.records import Dead, Done, from_line, to_line
from holdfast.errors import CoordinationError, SupersededError
from holdfast.versioned import Count, Format

__all__ = ["Generation", "Ledger"]

_log = logging.getLogger(__name__)

# Commits of one worker that may be files of their own at any time.
MAX_LOOSE = 512
_BEGINS_WITH_CHUNK = re.compile(r"\[(\d+),")
_GENERATION = re.compile(r"generation-(\d{6})(\.sealed)?")


class Generation(NamedTuple):
    """A generation that has just begun.

    Attributes:
        number: from 1.
        mark: unique to it.
        finished: the chunks that had ended before, as runs.
        dead: how many of them were given up.
    """

    number: int
    mark: str
    finished: list[Run]
    dead: int


@dataclass(frozen=True, slots=True)
class _Base:
    """What a generation begins with: its mark, which the store knows, too, and the chunks that had ended before."""

    generation: Count
    mark: str
    finished: list[tuple[Count, Count]]


@dataclass(frozen=True, slots=True)
class _Retry:
    """Dead letters that are to be tried again after a generation."""

    chunks: list[Count]


_BASE = Format("generation of a leased job", _Base, error=CoordinationError, version_error=CoordinationError)
_RETRY = Format("retry of dead letters", _Retry, error=CoordinationError, version_error=CoordinationError)


class Ledger:
    """The folder of one job.

    Args:
        folder: shared by all workers; made if it is not there.
        owner: this worker's life, unique.
        interval: seconds between two appends to the journal.
    """

    def __init__(self, folder: str | Path, *, owner: str, interval: float = 30.0) -> None:
        self.folder = Path(folder)
        self._owner = owner
        self._interval = interval
        self._open: Path | None = None
        self._journal: TextIO | None = None
        self._loose: list[tuple[Path, str]] = []
        self._appended = time.monotonic()
        self._lock = threading.Lock()
        try:
            (self.folder / ".tmp").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CoordinationError(
                "a job's folder cannot be made here", folder=str(folder), problem=str(error)
            ) from error

    # --- the definition --------------------------------------------------------------------------------------------

    def definition(self) -> LeasedJob | None:
        """Return the job that the folder is about; None for a new folder."""
        path = self.folder / "job.json"
        return JOB.from_json(_read_json(path)).definition if path.exists() else None

    def define(self, job: LeasedJob) -> LeasedJob:
        """Write the definition down, unless another worker has; return the one that stands."""
        temporary = self._temporary("job")
        _write(temporary, json.dumps(JOB.to_json(job.record()), indent=1))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, self.folder / "job.json")  # unlike a rename it never replaces
        temporary.unlink()
        stored = self.definition()
        assert stored is not None
        return stored

    # --- generations -----------------------------------------------------------------------------------------------

    def begin(self) -> Generation:
        """Seal the last generation and begin the next."""
        while True:
            number, is_open = self._last()
            if is_open:
                self.seal(number)
            ended = self.read()
            mark, finished = uuid.uuid4().hex, runs_of(sorted(ended))
            prepared = self._temporary("generation")
            prepared.mkdir()
            base = _BASE.to_json(_Base(number + 1, mark, finished))
            _write(prepared / "base.json", json.dumps(base))
            mine = self._folder_of(number + 1)
            try:
                os.rename(prepared, mine)
            except OSError:  # another worker was quicker
                shutil.rmtree(prepared)
                continue
            if self._folder_of(number + 1, sealed=True).exists():
                shutil.rmtree(mine, ignore_errors=True)  # others were two steps quicker; nobody knows of ours
                continue
            _sync_folder(self.folder)
            return Generation(number + 1, mark, finished, sum(isinstance(entry, Dead) for entry in ended.values()))

    def enter(self, generation: int, mark: str) -> list[Run]:
        """Record commits in this generation from now on; return the chunks that had ended before it.

        Raises:
            SupersededError: a newer generation has begun, on another store.
        """
        path = self._folder_of(generation)
        try:
            base = _BASE.from_json(_read_json(path / "base.json"))
        except FileNotFoundError:
            raise self._superseded(generation) from None
        if base.mark != mark:
            raise self._superseded(generation)
        self._open = path
        return base.finished

    @property
    def generation(self) -> int:
        """The number of the last generation, 0 for none."""
        return self._last()[0]

    def is_open(self) -> bool:
        """Say whether there is a generation that commits can go into."""
        return self._last()[1]

    def seal(self, generation: int) -> None:
        """End a generation: from now on no commit can go into it."""
        with contextlib.suppress(FileNotFoundError):  # another worker has sealed it
            os.rename(self._folder_of(generation), self._folder_of(generation, sealed=True))
        _sync_folder(self.folder)

    def _last(self) -> tuple[int, bool]:
        """Return the number of the last generation, 0 for none, and whether it is open."""
        found = [_GENERATION.fullmatch(entry.name) for entry in os.scandir(self.folder)]
        number = max((int(match[1]) for match in found if match), default=0)
        return number, number > 0 and not self._folder_of(number, sealed=True).exists()

    def _folder_of(self, generation: int, *, sealed: bool = False) -> Path:
        return self.folder / f"generation-{generation:06d}{'.sealed' if sealed else ''}"

    def _superseded(self, generation: int) -> SupersededError:
        return SupersededError(
            "a newer generation of this job has begun on another store; this one can commit nothing more",
            folder=str(self.folder),
            generation=generation,
            hint="end this process; start workers with the store that the job is on now",
        )

    # --- commits ---------------------------------------------------------------------------------------------------

    def record(self, entry: Done | Dead) -> None:
        """Keep a chunk's end for good, or raise ``SupersededError``: then it does not count."""
        assert self._open is not None
        line = to_line(entry.chunk, entry.encode())
        temporary = self._temporary(str(entry.chunk))
        _write(temporary, line)
        final = self._open / f"chunk-{entry.chunk}-{entry.token}.json"
        try:
            os.rename(temporary, final)
        except FileNotFoundError:
            temporary.unlink(missing_ok=True)
            raise self._superseded(int(self._open.name[-6:])) from None
        _sync_folder(self._open)
        with self._lock:
            self._loose.append((final, line))
            due = time.monotonic() - self._appended > self._interval
        if due or len(self._loose) >= MAX_LOOSE:
            self.flush()

    def flush(self) -> None:
        """Append this worker's commits to its journal and remove their files."""
        with self._lock:
            self._appended = time.monotonic()
            loose, self._loose = self._loose, []
            if not loose or self._open is None:
                return
            try:
                if self._journal is None:
                    self._journal = (self._open / f"journal-{self._owner}.jsonl").open("a", encoding="utf-8")
                    _sync_folder(self._open)
                # A line's end first: a full disk may have cut the last append short.
                self._journal.write("\n" + "".join(line + "\n" for _, line in loose))
                self._journal.flush()
                os.fsync(self._journal.fileno())
            except FileNotFoundError:
                return  # sealed meanwhile, the files with it
            except OSError as error:
                _log.warning("the journal in %s cannot be written, its files stay: %s", self._open, error)
                self._loose = loose
                self._forget_journal()
                return
            for path, _ in loose:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Append what is left and close the journal."""
        self.flush()
        with self._lock:
            self._forget_journal()

    def _forget_journal(self) -> None:
        if self._journal is not None:
            with contextlib.suppress(OSError):  # what it could not write before it tries once more here
                self._journal.close()
            self._journal = None

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> dict[int, Done | Dead]:
        """Return the end of every chunk that has ended, over all generations."""
        found: dict[int, Done | Dead] = {}
        names = sorted(entry.name for entry in os.scandir(self.folder) if _GENERATION.fullmatch(entry.name))
        for name in names:
            self._read_generation(self.folder / name, found)
            again = self.folder / f"retry-{name.removesuffix('.sealed')[-6:]}.json"
            for chunk in _RETRY.from_json(_read_json(again)).chunks if again.exists() else ():
                if isinstance(found.get(chunk), Dead):
                    del found[chunk]
        return found

    def _read_generation(self, path: Path, found: dict[int, Done | Dead]) -> None:
        # Files first: one that is moved into a journal meanwhile is then found there.
        try:
            names = [entry.name for entry in os.scandir(path)]
            texts = [_read_text(path / name) for name in names if name.startswith("chunk-")]
            texts += [_read_text(path / name) for name in os.listdir(path) if name.startswith("journal-")]
        except FileNotFoundError:  # sealed while it is read
            sealed = path.with_name(path.name + ".sealed")
            if path.name.endswith(".sealed") or not sealed.exists():
                raise
            self._read_generation(sealed, found)
            return
        torn: list[str] = []
        for text in texts:
            for line in text.splitlines():
                try:
                    entry = from_line(line)
                except CoordinationError as error:
                    if line.endswith("]"):  # whole, and not what was written
                        raise CoordinationError(
                            "a record of the job is damaged", folder=str(path), line=line
                        ) from error
                    torn.append(line)  # cut short by a crash or a full disk: the chunk's own file is still there
                    continue
                if isinstance(entry, (Done, Dead)):
                    found[entry.chunk] = entry
        for line in torn:
            begun = _BEGINS_WITH_CHUNK.match(line)
            if begun is not None and int(begun[1]) not in found:
                _log.warning("a record in %s was cut short, and chunk %s is done again: %s", path, begun[1], line[:80])

    def retry(self, chunks: Collection[int] | None = None) -> list[int]:
        """Let chunks that were given up be tried again by the next workers; None for all. Return which.

        Ends the present generation: workers that still run are refused, so that the next ones begin a new one.
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
            before = _RETRY.from_json(_read_json(path)).chunks if path.exists() else []
            temporary = self._temporary("retry")
            _write(temporary, json.dumps(_RETRY.to_json(_Retry(sorted({*before, *chosen})))))
            os.rename(temporary, path)
        return chosen

    def _temporary(self, what: str) -> Path:
        return self.folder / ".tmp" / f"{what}-{self._owner}-{uuid.uuid4().hex[:8]}"


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # sealed meanwhile
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not path.parent.exists():
            raise
        return ""  # moved into its journal meanwhile
    except UnicodeDecodeError as error:
        raise CoordinationError("a file of the job is damaged", file=str(path), problem=str(error)) from error


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CoordinationError("a file of the job is damaged", file=str(path), problem=str(error)) from error
    return value
