"""One generation of a job: what it begins with, and how its folder is read back.

What a crash leaves is told from damage: each journal has its check, a commit's own file is never cut short, and each
generation knows how many records all before it hold, and their digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from holdfast.coordinate.ends import Ends
from holdfast.coordinate.job_files import damaged, read_json, read_text
from holdfast.coordinate.journal import read_journals
from holdfast.coordinate.progress import Run
from holdfast.coordinate.records import Dead, Done, from_line
from holdfast.errors import CoordinationError
from holdfast.versioned import Count, Format

__all__ = ["BASE", "Base", "Generation", "commit_name", "newest_ends", "read_base", "read_generation"]

_log = logging.getLogger(__name__)

# More bytes than a line of a journal has: a payload of 100,000 characters, of which each may take twelve.
MAX_LINE = 2 << 20
_COMMIT = re.compile(r"chunk-\d+-\d+-([0-9a-f]{16})\.json")  # those of earlier releases have no digest
_BEGINS_WITH_CHUNK = re.compile(r"\[(\d+),")


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
class Base:
    """What a generation begins with.

    Attributes:
        generation: its number.
        mark: unique to it; the store knows it, too.
        finished: the chunks that had ended before, as runs.
        records: the digest of all records of the generations before it; empty in those of earlier releases.
        check: the digest of all this; empty in those of earlier releases.
    """

    generation: Count
    mark: str
    finished: list[tuple[Count, Count]]
    records: str = ""
    check: str = ""

    def checked(self) -> Base:
        """Return it with the digest of itself."""
        content = json.dumps([self.generation, self.mark, self.finished, self.records])
        return replace(self, check=hashlib.blake2b(content.encode(), digest_size=16).hexdigest())


BASE = Format(
    "generation of a leased job",
    Base,
    version=2,
    upgrades={1: dict},  # the first had no digests
    error=CoordinationError,
    version_error=CoordinationError,
)


def read_base(folder: Path) -> Base:
    """Return what the generation in a folder begins with."""
    base = BASE.from_json(read_json(folder / "base.json"))
    if base.check and base.checked() != base:
        raise damaged("its content was changed", folder / "base.json")
    return base


def read_generation(path: Path, ends: Ends, *, before: str) -> None:
    """Add to what has ended before a generation, of which the digest is given, all that ended in it.

    Raises:
        CoordinationError: a file is damaged, here or in a generation before.
    """
    try:
        if (read_base(path).records or before) != before:
            raise damaged("records of an earlier generation are missing or changed", path)
        # Files first: one that is moved into a journal meanwhile is then found there.
        files = [path / name for name in os.listdir(path) if name.startswith("chunk-")]
        texts = [(file, read_text(file)) for file in files]
        journals = list(read_journals(path))
    except FileNotFoundError as error:
        sealed = path.with_name(path.name + ".sealed")
        if path.name.endswith(".sealed") or not sealed.exists():
            raise damaged("it is missing", Path(error.filename)) from None
        read_generation(sealed, ends, before=before)  # sealed while it was read
        return
    for file, text in texts:
        if text is None:
            continue
        digest = _COMMIT.fullmatch(file.name)
        if digest is not None and digest[1] != _short_digest(text):
            raise damaged("its content was changed", file)
        _add(text, ends, file)
    for file, vouched, _ in journals:
        for line in vouched.splitlines():
            _add(line, ends, file)
    for file, _, rest in journals:
        _add_rest(rest, ends, file)


def newest_ends(path: Path) -> list[int]:
    """Return chunks that ended in a generation: for each worker, the last that it kept is among them.

    Cheap at any size: only the last line of each journal is read. The list is empty if the generation has been sealed.
    """
    chunks: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(path):
            if name.startswith("chunk-"):
                chunks.add(int(name.split("-")[1]))
            elif name.startswith("journal-"):
                with open(path / name, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LINE))
                    lines = [line for line in file.read().split(b"\n") if line.endswith(b"]")]
                begun = _BEGINS_WITH_CHUNK.match(lines[-1].decode(errors="replace")) if lines else None
                chunks.update([int(begun[1])] if begun else [])
    return sorted(chunks)


def commit_name(entry: Done | Dead, line: str) -> str:
    """Return the name of a commit's own file, which tells the digest of the line in it."""
    return f"chunk-{entry.chunk}-{entry.token}-{_short_digest(line)}.json"


def _short_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _add(line: str, ends: Ends, file: Path) -> None:
    try:
        entry = from_line(line)
    except CoordinationError as error:
        raise damaged("a record is not what was written", file, line=line[:80]) from error
    if isinstance(entry, (Done, Dead)):
        ends.add(entry, line)


def _add_rest(text: str, ends: Ends, file: Path) -> None:
    """Add what follows the part of a journal that is vouched for: a crash may have cut it short at any place."""
    torn: list[str] = []
    for line in text.splitlines():
        if line.endswith("]"):  # whole
            _add(line, ends, file)
        elif line:
            torn.append(line)
    for line in torn:
        begun = _BEGINS_WITH_CHUNK.match(line)
        if begun is not None and int(begun[1]) not in ends.entries:
            _log.warning("a record in %s was cut short, and chunk %s is done again: %s", file, begun[1], line[:80])
