"""A file on disk as readers see it: a bounded sample for recognition, bounded lines and bytes for reading."""

from __future__ import annotations

import codecs
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, cast

from holdfast.debug.ingestion.foreign_words import in_english, known_words
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.line_parts import parts_of_line
from holdfast.errors import UnreadableLogError

__all__ = ["LineSplitter", "LogFile", "clean_line"]

_SAMPLE = 1 << 16
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLOCK = 4 << 20
MAX_NUL_SHARE = 1000
"""One byte in this many may be NUL: a hole that a crash left in a text; binary files have far more."""
_HOLE = re.compile(rb"\0{8,}")
_BINARY = re.compile(rb"[\x01-\x07\x0e-\x1a\x1c-\x1f\x7f]")
_WIDE_TEXT = re.compile(rb"(?:[\t\r\n -~]\0){16,}")
OTHER_ENCODINGS = ("gb18030", "big5", "shift_jis", "euc_kr", "cp1251", "cp1252")
"""Encodings of text that is not UTF-8, from programs that use the system's encoding. A line break is the same byte in
all of them."""
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")
_BLOCKS = re.compile("[\u2580-\u259f]+")  # Characters with which progress bars are drawn.


def clean_line(line: str) -> str:
    """Remove colours, drawing characters and NUL bytes from a line, and translate the words that name series."""
    if "\x1b" in line:
        line = _ANSI.sub("", line)
    if "\0" in line:
        line = line.replace("\0", "")
    return line if line.isascii() else in_english(_BLOCKS.sub("#", line))


class LineSplitter:
    """Splits a stream of bytes into lines of at most ``longest`` characters, and keeps the last, incomplete one.

    A carriage return ends a line too, as progress bars write them.
    """

    def __init__(self, longest: int, encoding: str = "utf-8") -> None:
        self._longest = longest
        self._encoding = encoding
        self._pending = b""
        self._first = True
        self._cut = False

    def split(self, block: bytes) -> Iterator[str]:
        """Yield the lines that are complete after this block."""
        if self._first:
            block, self._first = block.removeprefix(b"\xef\xbb\xbf"), False
        pieces = (self._pending + block).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._pending = pieces.pop()
        for piece in pieces:
            if not self._cut:
                yield piece[: self._longest].decode(self._encoding, errors="replace")
            self._cut = False
        if len(self._pending) > self._longest:
            if not self._cut:
                yield self._pending[: self._longest].decode(self._encoding, errors="replace")
            self._pending, self._cut = b"", True

    def rest(self) -> Iterator[str]:
        """Yield the last line if the stream ended without a line break."""
        if self._pending and not self._cut:
            yield self._pending[: self._longest].decode(self._encoding, errors="replace")
        self._pending = b""


@dataclass(eq=False)
class LogFile:
    """One file, opened lazily and never read beyond its limits."""

    path: Path
    limits: Limits = field(default_factory=Limits)
    progress: Callable[[int], None] | None = None
    """Called with the number of bytes read, as they are read."""

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @cached_property
    def size(self) -> int:
        """The size on disk in bytes."""
        try:
            return self.path.stat().st_size
        except OSError as error:
            raise self.unreadable(f"cannot be opened: {error.strerror or error}") from error

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, decompressed if the file is gzip."""
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
        if head[:2] in _MARKS:
            return True
        # A file truncated while it was written, or with holes left by a full disk; UTF-16 appended to UTF-8.
        head, holes = _HOLE.subn(b"", head)
        head = _WIDE_TEXT.sub(lambda match: match[0].replace(b"\0", b""), head)
        if not head:
            return False
        if b"\0" in head:
            if head.count(b"\0") * MAX_NUL_SHARE < len(head):
                return b"\n" in head
            # Several processes writing to a truncated file leave holes of any size, and nothing else that is binary.
            return bool(holes) and b"\n" in head and not _BINARY.search(head)
        control = sum(head.count(bytes((code,))) for code in (*range(1, 8), *range(14, 27), *range(28, 32)))
        return control * 50 < len(head)

    @cached_property
    def sample_lines(self) -> list[str]:
        """Lines from the beginning, the middle and the end, used for recognition."""
        lines = _split(self.head_text, len(self.head) < _SAMPLE)
        if self.size > _SAMPLE and not self.compressed:
            # A script's source, or pages of warnings, may come before the first relevant line.
            with self.path.open("rb") as stream:
                for offset in sorted({max(self.size // 2, _SAMPLE), max(self.size - _SAMPLE, _SAMPLE)}):
                    stream.seek(offset)
                    lines += _split(self._decoded(stream.read(_SAMPLE)), False)[1:]
        return lines

    @cached_property
    def sample_parts(self) -> list[str]:
        """The non-blank lines of the sample, split into records; used by every format."""
        parts = (part for line in self.sample_lines for part in parts_of_line(line))
        return [part for part in parts if part and not part.isspace()]

    @cached_property
    def compressed(self) -> bool:
        """Whether the file is gzip, whatever its name."""
        with self.path.open("rb") as stream:
            return stream.read(2) == b"\x1f\x8b"

    @cached_property
    def encoding(self) -> str:
        """The encoding of the text, judged by its first bytes."""
        return _encoding(self.head)

    @cached_property
    def head_text(self) -> str:
        """The first 64 KiB as text."""
        return self._decoded(self.head).lstrip("\ufeff")

    def _decoded(self, block: bytes) -> str:
        """Return a block of the file as text; one from the middle has no byte order mark."""
        encoding = self.encoding
        if encoding == "utf-16" and block[:2] not in _MARKS:
            encoding = "utf-16-le" if self.head[:2] == _MARKS[0] else "utf-16-be"
        return block.decode(encoding, errors="replace")

    def _open(self) -> IO[bytes]:
        if self.compressed:
            return cast(IO[bytes], gzip.open(self.path, "rb"))
        return self.path.open("rb")

    def read_bytes(self, limit: int | None = None) -> bytes:
        """Return the whole file.

        Raises:
            UnreadableLogError: it is larger than the limit, possibly only after decompression.
        """
        limit = self.limits.document_bytes if limit is None else limit
        try:
            with self._open() as stream:
                data = stream.read(limit + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise self.unreadable(f"cannot be read: {error}") from error
        if len(data) > limit:
            raise self.unreadable(
                f"contains more than {limit:,} bytes",
                hint="shorten it, or convert it to JSON lines, which are read as a stream",
            )
        return data

    def read_text(self) -> str:
        """Return the whole file as text, undecodable bytes replaced."""
        data = self.read_bytes()
        return data.decode(self.encoding, errors="replace").lstrip("\ufeff")

    def lines(self, *, longest: int | None = None) -> Iterator[str]:
        """Return every line, truncated at ``longest`` characters.

        A carriage return ends a line too, as progress bars write them.
        """
        longest = self.limits.line_characters if longest is None else longest
        if (
            self.encoding == "utf-16"
        ):  # PowerShell redirects output with two bytes per character, so it cannot be split at bytes.
            yield from (
                line[:longest] for line in self.read_text().replace("\r\n", "\n").replace("\r", "\n").split("\n")
            )
            return
        splitter = LineSplitter(longest, self.encoding)
        left = self.limits.document_bytes if self.compressed else self.limits.text_bytes
        try:
            with self._open() as stream:
                while left > 0 and (block := stream.read(min(1 << 20, left))):
                    left -= len(block)
                    self._moved(len(block))
                    yield from splitter.split(block)
        except (OSError, EOFError, zlib.error):
            pass  # A truncated or damaged archive: what came before the damage has been yielded.
        yield from splitter.rest()

    def tail_lines(self) -> list[str]:
        """Return the lines of the last 64 KiB, without the incomplete one; of a compressed file, of its first part."""
        if self.compressed or self.size <= _SAMPLE:
            return _split(self.head_text, True)
        with self.path.open("rb") as stream:
            stream.seek(self.size - _SAMPLE)
            return _split(self._decoded(stream.read(_SAMPLE)), True)[1:]

    def count_lines_before_tail(self) -> int:
        """Return how many lines come before the first of ``tail_lines``."""
        if self.compressed or self.size <= _SAMPLE:
            return 0
        tail, lines = self.size - _SAMPLE, 1  # The incomplete line begins before the tail.
        with self.path.open("rb") as stream:
            while tail > 0 and (block := stream.read(min(_BLOCK, tail))):
                tail -= len(block)
                lines += block.count(b"\n")
        return lines

    def blocks(self) -> Iterator[bytes]:
        """Yield the text in blocks of whole lines; an overlong line is split."""
        left = self.limits.text_bytes
        pending = b""
        with self.path.open("rb") as stream:
            first = True
            while left > 0 and (block := stream.read(min(_BLOCK, left))):
                left -= len(block)
                self._moved(len(block))
                if first:
                    block, first = block.removeprefix(b"\xef\xbb\xbf"), False
                block = pending + block
                cut = block.rfind(b"\n") + 1
                pending = block[cut:] if len(block) - cut <= _BLOCK else b""
                if cut:
                    yield block[:cut]
        if pending:
            yield pending

    def _moved(self, count: int) -> None:
        if self.progress is not None:
            self.progress(count)

    def unreadable(self, what: str, *, hint: str | None = None) -> UnreadableLogError:
        """Return an error about this file."""
        return UnreadableLogError(
            f"the log {what}",
            hint=hint or "pass a training log in a supported format, see docs/log_formats.md",
            file=str(self.path),
        )


def _encoding(head: bytes) -> str:
    """Return the encoding in which the start of a file makes most sense: UTF-8, unless another one contains words."""
    if head[:2] in _MARKS:
        return "utf-16"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # The last character may be incomplete.
    except UnicodeDecodeError:
        # Of two encodings with the same words the first is used: the difference does not matter.
        return max(("utf-8", *OTHER_ENCODINGS), key=lambda name: known_words(head.decode(name, errors="replace")))
    return "utf-8"


def _split(text: str, complete: bool) -> list[str]:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [clean_line(line[:65536]) for line in text.split("\n")]
    return lines if complete or len(lines) == 1 else lines[:-1]
