"""Samples of another source, passed through a function: tokenization and chat templates before packing.

Packing needs to know how long every document is. Here the lengths that a transform gives are found in one pass and kept
with a fingerprint of the transform; another transform is noticed before its documents are packed by the lengths of the
old one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceChangedError, SourceFormatError
from holdfast.sources.base import Columns, Indices, Source, check_indices
from holdfast.sources.ragged import Ragged

__all__ = ["TransformedSource", "fingerprint_of"]

MAX_DEPTH = 32  # of functions and values inside a transform
AT_ONCE = 4096  # samples whose lengths are found together
_MAGIC = b"holdfast lengths 1\n"
_DIGEST_BYTES = 16


class TransformedSource(Source):
    """Documents that a function makes of another source's samples.

    Args:
        source: the samples.
        transform: makes the tokens of one sample, given as a dict of its columns: a list or an array of whole numbers.
            It must give the same tokens each time.
        index_dir: a folder in which the lengths are kept, so that they are found once.
        version: what tells the transform from another one. Without it, that is a fingerprint of its code, of the
            functions and constants it names and of the plain values it holds; give it where the transform uses
            something else, as a tokenizer.
        column: what the column of tokens is called.
    """

    def __init__(
        self,
        source: Source,
        transform: Callable[[Mapping[str, Any]], Any],
        *,
        index_dir: str | os.PathLike[str] | None = None,
        version: str | None = None,
        column: str = "tokens",
    ) -> None:
        self._source = source
        self._transform = transform
        self._index_dir = index_dir
        self._version = fingerprint_of(transform) if version is None else version
        self._column = column
        self._lengths: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Indices) -> Columns:
        """Read samples and pass each through the transform."""
        rows = check_indices(indices, len(self), source="TransformedSource")
        columns = self._source.read(rows)
        made = []
        for number, index in enumerate(rows.tolist()):
            sample = {name: _value(column, number) for name, column in columns.items()}
            tokens = np.asarray(self._transform(sample))
            if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and len(tokens)):
                raise SourceFormatError(
                    "the transform gives no list of whole numbers",
                    index=index,
                    dtype=str(tokens.dtype),
                    shape=tokens.shape,
                )
            made.append(tokens.astype(np.int64, copy=False))
        values = np.concatenate([*made, np.empty(0, dtype=np.int64)])
        offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in made])]).astype(np.int64)
        return {self._column: Ragged(values, offsets)}

    def row_lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return how many tokens each of the samples ``start`` … ``stop - 1`` has, from the lengths that are kept."""
        if self._lengths is None:
            self._lengths = self._kept_lengths()
        return self._lengths[start:stop].astype(np.int64)

    def fingerprint(self, length: int | None = None) -> str:
        """Made of the samples' fingerprint and the transform's, so that a run cannot resume with another unnoticed."""
        return hashlib.blake2b(
            f"{self._source.fingerprint(length)} {self._version}".encode(), digest_size=16
        ).hexdigest()

    def parts(self) -> Sequence[Source]:
        """The source of samples."""
        return (self._source,)

    def prefetch(self, indices: Indices, reader: int) -> bool:
        """Have the source underneath fetch samples that will be read soon."""
        return self._source.prefetch(indices, reader)

    def _kept_lengths(self) -> NDArray[np.int32]:
        if self._index_dir is None:
            return self._find_lengths()
        about = f"{self._source.fingerprint()} {self._column}"
        kept = Path(self._index_dir) / f"lengths-{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}"
        head = _MAGIC + self._version.encode() + b"\n"
        try:
            raw = kept.read_bytes()
        except OSError:
            raw = b""
        body, digest = raw[:-_DIGEST_BYTES], raw[-_DIGEST_BYTES:]
        sound = body.startswith(_MAGIC) and hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() == digest
        if sound and not body.startswith(head):
            raise SourceChangedError(
                "the transform has changed since the lengths of its documents were found",
                file=str(kept),
                was=body[len(_MAGIC) :].split(b"\n", 1)[0].decode(errors="replace")[:80],
                now=self._version[:80],
                hint="delete the file to find them again, or give another index_dir; a run cannot resume with it",
            )
        if sound and len(body) == len(head) + 4 * len(self):
            return np.frombuffer(body[len(head) :], dtype="<i4")
        lengths = self._find_lengths()
        kept.parent.mkdir(parents=True, exist_ok=True)
        body = head + lengths.astype("<i4").tobytes()
        with tempfile.NamedTemporaryFile(dir=kept.parent, prefix=".lengths-", delete=False) as aside:
            aside.write(body + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest())
        os.replace(aside.name, kept)
        return lengths

    def _find_lengths(self) -> NDArray[np.int32]:
        found = np.empty(len(self), dtype=np.int32)
        for start in range(0, len(self), AT_ONCE):
            stop = min(start + AT_ONCE, len(self))
            column = self.read(np.arange(start, stop))[self._column]
            assert isinstance(column, Ragged)
            found[start:stop] = column.row_lengths
        return found


def _value(column: Any, row: int) -> Any:
    if isinstance(column, Ragged):
        return column[row].tobytes().decode() if column.encoding else column[row]
    return column[row]


def fingerprint_of(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code, its defaults, and the plain values and functions it holds.

    Raises:
        ConfigError: it holds something whose content cannot be told.
    """
    digest = hashlib.blake2b(digest_size=16)
    _add(digest, function, 0, set())
    return digest.hexdigest()


def _add(digest: Any, value: Any, depth: int, known: set[int]) -> None:
    """Add a value to a digest; ``known`` are functions that were added, which may name each other in a circle."""
    if depth > MAX_DEPTH:
        raise ConfigError("the transform is nested too deeply for a fingerprint", hint="give version=…")
    if isinstance(value, functools.partial):
        _add_all(digest, (value.func, list(value.args), value.keywords), depth, known)
    elif isinstance(value, CodeType):
        digest.update(value.co_code + repr((value.co_names, value.co_varnames)).encode())
        _add_all(digest, value.co_consts, depth, known)
    elif hasattr(value, "__code__"):
        if id(value.__code__) not in known:
            known.add(id(value.__code__))
            held = [cell.cell_contents for cell in value.__closure__ or ()]
            _add_all(digest, (value.__code__, value.__defaults__, value.__kwdefaults__, held), depth, known)
            _add_all(digest, (getattr(value, "__self__", None), *_named(value)), depth, known)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes, type(...))):
        digest.update(f"{type(value).__name__} {value!r}|".encode())
    elif isinstance(value, (list, tuple)):
        digest.update(f"{type(value).__name__} {len(value)}|".encode())
        _add_all(digest, value, depth, known)
    elif isinstance(value, (set, frozenset)):
        _add(digest, sorted(map(repr, value)), depth + 1, known)
    elif isinstance(value, Mapping):
        _add(digest, [[str(key), value[key]] for key in value], depth + 1, known)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        digest.update(f"{value.dtype.str} {value.shape}|".encode() + value.tobytes())
    elif callable(value) and hasattr(value, "__qualname__"):
        digest.update(f"{value.__module__}.{value.__qualname__}|".encode())
    elif callable(value) and hasattr(value, "__dict__"):
        digest.update(f"{type(value).__module__}.{type(value).__qualname__}|".encode())
        _add_all(digest, (type(value).__call__, vars(value)), depth, known)
    else:
        raise ConfigError(
            "the transform holds something whose content cannot be told",
            kind=type(value).__name__,
            hint="give version=…, and another one when the transform changes",
        )


def _add_all(digest: Any, values: Iterable[Any], depth: int, known: set[int]) -> None:
    for value in values:
        _add(digest, value, depth + 1, known)


def _named(function: Any) -> list[Any]:
    """Return the functions and constants of its module that a function names."""
    found = [function.__globals__.get(name) for name in function.__code__.co_names]
    plain = (bool, int, float, str, bytes, list, tuple, dict, set, frozenset)
    return [value for value in found if hasattr(value, "__code__") or isinstance(value, plain)]
