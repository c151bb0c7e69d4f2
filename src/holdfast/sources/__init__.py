"""Where samples come from: arrays, token files, JSON lines, Parquet, Hugging Face datasets and webdataset tars.

Every source answers two questions, ``len(source)`` and ``source.read(indices)``. The names load on first use: reading
arrays needs NumPy alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy_names import lazy_names

if TYPE_CHECKING:
    from holdfast.sources.arrays import ArraySource as ArraySource
    from holdfast.sources.base import Columns as Columns
    from holdfast.sources.base import ReadCounters as ReadCounters
    from holdfast.sources.base import ReadCounts as ReadCounts
    from holdfast.sources.base import Source as Source
    from holdfast.sources.base import check_indices as check_indices
    from holdfast.sources.concat import ConcatSource as ConcatSource
    from holdfast.sources.hf import HFSource as HFSource
    from holdfast.sources.jsonl import JsonlSource as JsonlSource
    from holdfast.sources.packed import PackedSource as PackedSource
    from holdfast.sources.parquet import ParquetSource as ParquetSource
    from holdfast.sources.ragged import Ragged as Ragged
    from holdfast.sources.remote import RemoteOptions as RemoteOptions
    from holdfast.sources.tar import TarSource as TarSource
    from holdfast.sources.tokens import TokenFileSource as TokenFileSource

_HOME = {
    "ArraySource": "arrays",
    "Columns": "base",
    "ConcatSource": "concat",
    "HFSource": "hf",
    "JsonlSource": "jsonl",
    "PackedSource": "packed",
    "ParquetSource": "parquet",
    "Ragged": "ragged",
    "ReadCounters": "base",
    "ReadCounts": "base",
    "RemoteOptions": "remote",
    "Source": "base",
    "TarSource": "tar",
    "TokenFileSource": "tokens",
    "check_indices": "base",
}

__all__ = sorted(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
