"""Windows of consecutive documents: what packing and cutting go by, so that a sample depends on few documents."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.base import Source
from holdfast.sources.ragged import Ragged

__all__ = ["DocumentWindows"]


class DocumentWindows:
    """The documents of a source, some thousand at a time.

    Args:
        source: the documents.
        column: its column of tokens, of rows that differ in length.
        size: documents in a window.
    """

    def __init__(self, source: Source, *, column: str, size: int) -> None:
        if size < 1:
            raise ConfigError("a window holds at least one document", window=size)
        self.source = source
        self.column = column
        self.size = size

    def __len__(self) -> int:
        return -(-len(self.source) // self.size)

    def read(self, number: int) -> Ragged:
        """Return the documents of a window."""
        first = number * self.size
        columns = self.source.read(np.arange(first, min(first + self.size, len(self.source))))
        documents = columns.get(self.column)
        if not isinstance(documents, Ragged) or documents.values.ndim != 1 or documents.dtype.kind not in "iu":
            raise SourceFormatError(
                "documents are a column of whole numbers whose rows differ in length",
                column=self.column,
                found=sorted(columns),
            )
        return documents

    def count(
        self, count: Callable[[Ragged], int], *, kind: str, folder: str | os.PathLike[str] | None
    ) -> NDArray[np.int64]:
        """Count something in every window, in one pass over the source.

        Args:
            count: what to count in a window's documents.
            kind: what is counted, with all that decides the result beside the documents.
            folder: where the counts are kept, so that the pass is made once; None to keep them nowhere.
        """
        kept = None
        if folder is not None:
            about = f"{self.source.fingerprint()} {self.column} {self.size} {kind}"
            kept = Path(folder) / f"windows-{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}.npy"
            try:
                counts: NDArray[np.int64] = np.load(kept, allow_pickle=False)
                if counts.shape == (len(self),) and counts.dtype == np.int64 and (counts >= 0).all():
                    return counts
            except (OSError, ValueError, EOFError):
                pass  # not there, or torn: counted again
        counts = np.array([count(self.read(number)) for number in range(len(self))], dtype=np.int64)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".npy", delete=False) as aside:
                np.save(aside, counts)
            os.replace(aside.name, kept)
        return counts
