"""A file on disk as the readers see it: a bounded sample for recognition, bounded lines and bytes for reading."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from holdfast.debug.ingestion.limits import Limits
from holdfast.errors import UnreadableLogError

__all__ = ["LogFile", "clean_line"]

_SAMPLE = 1 << 16
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")


def clean_line(line: str) -> str:
    """Take terminal colours off a line and keep what stands after the last carriage return of a progress bar."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    return line


@dataclass(eq=False)
class LogFile:
    """One file, opened lazily and never read beyond its limits."""

    path: Path
    limits: Limits = field(default_factory=Limits)

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.name

    @cached_property
    def size(self) -> int:
        """Bytes on disk."""
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise self.unreadable(f"cannot be opened: {error.strerror or error}") from error

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, decompressed where the file is gzip."""
        try:
            with self._open() as stream:
                return stream.read(_SAMPLE)
        except (OSError, EOFError, zlib.error) as error:
            raise self.unreadable(f"cannot be read: {error}") from error

    @cached_property
    def is_text(self) -> bool:
        """Whether the file starts like text: no NUL bytes and hardly any other control bytes."""
        head = self.head
        if not head:
            return False
        if b"\0" in head:
            return head[:2] in (b"\xff\xfe", b"\xfe\xff")
        control = sum(head.count(bytes((code,))) for code in (*range(1, 8), *range(14, 27), *range(28, 32)))
        return control * 50 < len(head)

    @cached_property
    def sample_lines(self) -> list[str]:
        """Lines from the beginning, the middle and the end: what recognition looks at."""
        lines = _split(self.head, len(self.head) < _SAMPLE)
        if self.size > _SAMPLE and not self.compressed:
            # A script's source, or pages of warnings, may stand before the first line that counts.
            with self.path.open("rb") as stream:
                for offset in sorted({max(self.size // 2, _SAMPLE), max(self.size - _SAMPLE, _SAMPLE)}):
                    stream.seek(offset)
                    lines += _split(stream.read(_SAMPLE), False)[1:]
        return lines

    @cached_property
    def compressed(self) -> bool:
        """Whether the file is gzip, whatever it is called."""
        with self.path.open("rb") as stream:
            return stream.read(2) == b"\x1f\x8b"

    def _open(self) -> IO[bytes]:
        if self.compressed:
            return cast(IO[bytes], gzip.open(self.path, "rb"))
        return self.path.open("rb")

    def read_bytes(self, limit: int | None = None) -> bytes:
        """The whole file.

        Raises:
            UnreadableLogError: it is larger than the limit, also after decompression.
        """
        limit = self.limits.document_bytes if limit is None else limit
        try:
            with self._open() as stream:
                data = stream.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self.unreadable(f"cannot be read: {error}") from error
        if len(data) > limit:
            raise self.unreadable(
                f"holds more than {limit:,} bytes",
                hint="cut it, or convert it to JSON lines, which are read as a stream",
            )
        return data

    def read_text(self) -> str:
        """The whole file as text, undecodable bytes replaced."""
        data = self.read_bytes()
        return data.decode(_encoding(data), errors="replace").lstrip("\ufeff")

    def lines(self, *, longest: int | None = None) -> Iterator[str]:
        """Every line, cut at ``longest`` characters; a carriage return ends a line too, as progress bars write them."""
        longest = self.limits.line_characters if longest is None else longest
        encoding = _encoding(self.head)
        if encoding == "utf-16":  # As PowerShell redirects output: two bytes a character, so not to be cut at bytes.
            yield from (line[:longest] for line in self.read_text().replace("\r", "\n").split("\n"))
            return
        first = True
        left = self.limits.document_bytes if self.compressed else self.limits.text_bytes
        pending = b""
        cut = False
        try:
            with self._open() as stream:
                while left > 0:
                    block = stream.read(min(1 << 20, left))
                    if not block:
                        break
                    left -= len(block)
                    if first:
                        block, first = block.removeprefix(b"\xef\xbb\xbf"), False
                    pieces = (pending + block).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
                    pending = pieces.pop()
                    for piece in pieces:
                        if not cut:
                            yield piece[:longest].decode(encoding, errors="replace")
                        cut = False
                    if len(pending) > longest:
                        if not cut:
                            yield pending[:longest].decode(encoding, errors="replace")
                        pending, cut = b"", True
        except (OSError, EOFError, zlib.error):
            pass  # A truncated or damaged archive: what came before the damage has been yielded.
        if pending and not cut:
            yield pending[:longest].decode(encoding, errors="replace")

    def unreadable(self, what: str, *, hint: str | None = None) -> UnreadableLogError:
        """An error about this file."""
        return UnreadableLogError(
            f"the log {what}",
            hint=hint or "pass a training log in a supported format, see docs/log_formats.md",
            file=str(self.path),
        )


def _encoding(data: bytes) -> str:
    return "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"


def _split(block: bytes, complete: bool) -> list[str]:
    text = block.decode(_encoding(block), errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = [clean_line(line[:65536]) for line in text.split("\n")]
    return lines if complete or len(lines) == 1 else lines[:-1]
