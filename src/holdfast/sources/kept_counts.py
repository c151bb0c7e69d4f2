"""Counts about a source stored in a folder, so that they are computed only once.

A file identifies its counts and ends with a digest: one that is torn, damaged or about something else is never used.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError

__all__ = ["Kept", "keep_counts", "kept_counts", "kept_file"]

_MAGIC = b"holdfast counts 1\n"
_DIGEST_BYTES = 16


class Kept(NamedTuple):
    """The content of a file."""

    about: str
    counts: NDArray[Any]


def kept_file(folder: str | os.PathLike[str], kind: str, about: str) -> Path:
    """Return the path of counts of a kind, given what they are about."""
    return Path(folder) / f"{kind}-{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}"


def kept_counts(path: Path) -> Kept | None:
    """Return the counts in a file, or None if it does not exist or is invalid."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    body, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
    if not body.startswith(_MAGIC) or hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        return None
    head, _, data = body[len(_MAGIC) :].partition(b"\n")
    told = json.loads(head)
    return Kept(told["about"], np.frombuffer(data, dtype=told["dtype"]).reshape(told["shape"]))


def keep_counts(path: Path, kept: Kept) -> None:
    """Write a file of counts, completely or not at all.

    Raises:
        SourceError: the folder cannot be written to.
    """
    counts = np.ascontiguousarray(kept.counts, dtype=kept.counts.dtype.newbyteorder("<"))
    head = json.dumps({"about": kept.about, "dtype": counts.dtype.str, "shape": counts.shape})
    body = _MAGIC + head.encode() + b"\n" + counts.tobytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as aside:
            aside.write(body + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest())
        os.replace(aside.name, path)
    except OSError as error:
        raise SourceError(
            f"the folder of indexes cannot be written to: {error.strerror}",
            index_dir=str(path.parent),
            hint="pass a writable index_dir, or none",
        ) from error
