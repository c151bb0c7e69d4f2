"""One generation of a job: what it begins with, and how its folder is read back.

What a crash leaves behind can be distinguished from damage: each journal has its check, a commit's own file is never
truncated, and each generation knows the number and digest of all records before it.
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

# Upper bound on the bytes in a line of a journal: a payload of 100,000 characters, up to twelve bytes each.
MAX_LINE = 2 << 20
_COMMIT = re.compile(r"chunk-\d+-\d+-([0-9a-f]{16})\.json")  # files of earlier releases have no digest
_BEGINS_WITH_CHUNK = re.compile(r"\[(\d+),")


class Generation(NamedTuple):
    """A generation that has just begun.

    Attributes:
        number: its number, from 1.
        mark: its unique mark.
        finished: the chunks that had ended before it, as runs.
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
        mark: its unique mark, also kept in the store.
        finished: the chunks that had ended before it, as runs.
        records: the digest of all records of earlier generations; empty in files of earlier releases.
        check: the digest of the other fields; empty in files of earlier releases.
    """

    generation: Count
    mark: str
    finished: list[tuple[Count, Count]]
    records: str = ""
    check: str = ""

    def checked(self) -> Base:
        """Return a copy that carries its own digest."""
        content = json.dumps([self.generation, self.mark, self.finished, self.records])
        return replace(self, check=hashlib.blake2b(content.encode(), digest_size=16).hexdigest())


BASE = Format(
    "generation of a leased job",
    Base,
    version=2,
    upgrades={1: dict},  # version 1 had no digests
    error=CoordinationError,
    version_error=CoordinationError,
)


def read_base(folder: Path) -> Base:
    """Return the base of the generation in a folder."""
    base = BASE.from_json(read_json(folder / "base.json"))
    if base.check and base.checked() != base:
        raise damaged("its content was changed", folder / "base.json")
    return base


def read_generation(path: Path, ends: Ends, *, before: str) -> None:
    """Add the chunks that ended in a generation to those that ended before it, whose digest is ``before``.

    Raises:
        CoordinationError: a file is damaged, in this or in an earlier generation.
    """
    try:
        if (read_base(path).records or before) != before:
            raise damaged("records of an earlier generation are missing or changed", path)
        # Files first: one that is moved into a journal in the meantime is then found there.
        files = [path / name for name in os.listdir(path) if name.startswith("chunk-")]
        texts = [(file, read_text(file)) for file in files]
        journals = list(read_journals(path))
    except FileNotFoundError as error:
        sealed = path.with_name(path.name + ".sealed")
        if path.name.endswith(".sealed") or not sealed.exists():
            raise damaged("it is missing", Path(error.filename)) from None
        read_generation(sealed, ends, before=before)  # it was sealed while being read
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
    """Return some chunks that ended in a generation, among them the last one that each worker recorded.

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
    """Return the name of a commit's own file, which includes the digest of the line in it."""
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
    """Add the part of a journal that its check does not cover: a crash may have cut it short anywhere."""
    torn: list[str] = []
    for line in text.splitlines():
        if line.endswith("]"):  # complete
            _add(line, ends, file)
        elif line:
            torn.append(line)
    for line in torn:
        begun = _BEGINS_WITH_CHUNK.match(line)
        if begun is not None and int(begun[1]) not in ends.entries:
            _log.warning("a record in %s was truncated, so chunk %s will be done again: %s", file, begun[1], line[:80])
