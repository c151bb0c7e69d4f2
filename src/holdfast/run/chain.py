"""The hash chain of a run log: every line carries a digest of itself and of the previous digest.

A line is a JSON object whose last field is ``chain``. Editing, removing, inserting or reordering lines breaks the chain
at that line. The first line of every file continues from the last line of the rank's previous file, so a missing file,
or one that was truncated before the next was begun, is noticed too.
"""

from __future__ import annotations

import json
from binascii import hexlify
from hashlib import blake2b

__all__ = ["START", "chained", "encode", "link", "split_line"]

START = "0" * 32
"""The digest that a chain begins with."""

_FIELD = b',"chain":"'
_END = b'"}\n'
_empty = blake2b(digest_size=16)
encode = json.JSONEncoder(separators=(",", ":")).encode  # writes NaN and Infinity unquoted


def link(previous: str, body: bytes) -> str:
    """Return the digest that follows ``previous`` when ``body`` is written."""
    return blake2b(previous.encode() + body, digest_size=16).hexdigest()


def split_line(line: bytes) -> tuple[bytes, str] | None:
    """Return a line's body and the digest it carries; None if it carries none."""
    body, found, rest = line.rstrip(b"\n").rpartition(_FIELD)
    if not found or len(rest) != 34 or not rest.endswith(b'"}'):
        return None
    try:
        return body, rest[:32].decode("ascii")
    except UnicodeDecodeError:
        return None


def chained(head: bytes, body: bytes) -> tuple[bytes, bytes]:
    """Return the line of a record and its digest.

    Args:
        head: the previous digest.
        body: the record as JSON, without its closing brace.
    """
    hashing = _empty.copy()  # a third faster than creating one with its options
    hashing.update(head + body)
    digest = hexlify(hashing.digest())
    return body + _FIELD + digest + _END, digest
