"""One worker's journal in the folder of a generation, and a check file that says how much of it must be there.

The model: a worker appends records, flushes them to disk, and only then replaces the check: the number of bytes in the
journal, and their digest. A crash at any moment leaves a journal that begins with the bytes its check describes. The
rest may be cut short: those records still have files of their own, which are removed last. So if anything is missing or
changed in the part that the check covers, the cause is not a crash but damage, and the journal is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from holdfast.coordinate.job_files import damaged, read_json, sync_folder, write
from holdfast.errors import CoordinationError
from holdfast.versioned import Count, Format

__all__ = ["Journal", "read_journals"]


@dataclass(frozen=True, slots=True)
class _Check:
    """The length and digest of the first part of a journal."""

    bytes: Count
    digest: str


_CHECK = Format("check of a journal", _Check, error=CoordinationError, version_error=CoordinationError)


def _digest() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


class Journal:
    """A journal that this worker alone appends to.

    Args:
        folder: the generation's folder.
        owner: a unique id of this worker process.
        temporary: where the check is written before it is renamed, on the same file system.
    """

    def __init__(self, folder: Path, owner: str, *, temporary: Path) -> None:
        self._path = folder / f"journal-{owner}.jsonl"
        self._check = folder / f"check-{owner}.json"
        self._temporary = temporary
        self._file: BinaryIO | None = None
        self._bytes = 0
        self._digest = _digest()

    def append(self, lines: Iterable[str]) -> None:
        """Append lines and flush them to disk.

        Raises:
            FileNotFoundError: the generation was sealed in the meantime.
            OSError: the lines could not be written; the next call must begin with the same lines.
        """
        content = "".join(line + "\n" for line in lines).encode()
        try:
            if self._file is None:
                self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (kept open until ``close``)
                weakref.finalize(self, self._file.close).atexit = False  # or until the journal is garbage collected
                sync_folder(self._path.parent)
                self._file.truncate(self._bytes)  # a full disk may have cut the last append short
            _write_all(self._file, content)
            os.fsync(self._file.fileno())
            digest = self._digest.copy()
            digest.update(content)
            check = _CHECK.to_json(_Check(self._bytes + len(content), digest.hexdigest()))
            write(self._temporary, json.dumps(check))
            os.rename(self._temporary, self._check)
        except OSError:
            self._temporary.unlink(missing_ok=True)
            self.close()
            raise
        self._bytes, self._digest = self._bytes + len(content), digest

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def _write_all(file: BinaryIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def read_journals(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield every journal of a generation: its path, the text that its check covers, and the text after it.

    Checks are read first: the bytes that a check covers are on disk before the check is.

    Raises:
        CoordinationError: a journal does not match its check.
    """
    checks = {name[len("check-") : -len(".json")]: name for name in os.listdir(folder) if name.startswith("check-")}
    vouched = {owner: _CHECK.from_json(read_json(folder / name)) for owner, name in checks.items()}
    owners = {
        name[len("journal-") : -len(".jsonl")] for name in os.listdir(folder) if name.startswith("journal-")
    } | vouched.keys()
    for owner in sorted(owners):
        path, check = folder / f"journal-{owner}.jsonl", vouched.get(owner, _Check(0, _digest().hexdigest()))
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            if not folder.exists():
                raise
            raise damaged("it is missing", path, bytes_expected=check.bytes) from None
        if len(content) < check.bytes:
            raise damaged("it was cut short", path, bytes=len(content), bytes_expected=check.bytes)
        digest = _digest()
        digest.update(content[: check.bytes])
        if digest.hexdigest() != check.digest:
            raise damaged("its content was changed", path)
        try:
            yield path, content[: check.bytes].decode(), content[check.bytes :].decode()
        except UnicodeDecodeError as error:
            raise damaged(str(error), path) from error
